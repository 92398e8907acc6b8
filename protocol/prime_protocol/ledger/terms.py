"""The terms of a run: what its workers, validators and trainer must keep to, and what they are paid.

The terms are an entry of the log, so all parties read the same ones. The rules that apply them are in work.py,
audits.py and rewards.py.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from prime_protocol.constants import (
    BASIS_POINTS,
    CLASS_BOUNDS_RULES,
    DIGEST_BYTES,
    FLOP_PER_CONTEXT_TOKEN_MAX,
    FLOP_PER_TOKEN_MAX,
    INSPECTORS_MAX,
    LEASE_SLOTS_MAX,
    OUTPUT_TOKENS_MAX,
    PROMPT_TOKENS_MAX,
    QUORUM_MAX,
    READ_US_PER_TOKEN_MAX,
    READ_US_PER_TOKEN_MIN,
    RETENTION_MS_MAX,
    TEMPERATURE_MAX,
    TEMPERATURE_MIN,
)
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.class_bounds import NO_CLASS_BOUNDS, ClassBounds, EngineClass
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.rollouts.rollout import RolloutLimits
from prime_protocol.wire.codec import Range, Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NodeId, Slot

ANY_MODEL_FILES = Digest(bytes(DIGEST_BYTES))
"""Of a run that does not say which files describe its model."""

VESTING_MS = 24 * 3_600_000
"""A day: long enough for a stranger to read files that no audit fell on."""

DAY_MS = 24 * 3_600_000
ROLLOUTS_KEPT_MS = 7 * DAY_MS
"""The default windows need six days; the seventh is for a coordinator that is down meanwhile. With 1,000 nodes a day of
rollout files is about 1.4 TB."""
EVIDENCE_KEPT_MS = 30 * DAY_MS
"""Evidence without a slash is a few megabytes for each rejected submission: a month of it is little."""
SLASH_EVIDENCE_KEPT_MS = 366 * DAY_MS
"""A slash took money, and its owner may dispute it for long; there are few of them."""
CHECKPOINTS_KEPT_MS = 30 * DAY_MS
"""Manifests are small; with one, a copy of old weights can be checked against the log."""

RetentionMs = Annotated[int, Range(0, RETENTION_MS_MAX)]
"""How long a file is kept, in milliseconds."""
BasisPoints = Annotated[int, Range(0, BASIS_POINTS)]
"""Basis points: 10,000 is all."""


class SlashDestination(StrEnum):
    """Where slashed stake goes. Never to a judge."""

    BURN = "burn"
    POOL = "pool"


class TrainOn(StrEnum):
    """Which submissions a checkpoint may be trained on."""

    ACCEPTED = "accepted"
    """All that were settled as accepted, also those that no audit was drawn for."""
    AUDITED = "audited"
    """Only those that validators judged and accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """What everybody in a run is held to."""

    trainer: NodeId
    model: Annotated[str, Size(1, 200)]
    model_files: Digest = ANY_MODEL_FILES
    """Of the files beside the tensors that say how the model is run: its shape, tokenizer, end tokens and prompt."""
    tolerance: Tolerance = field(default_factory=Tolerance)
    """What counts as noise in an audit, between engines whose classes the table below does not have."""
    class_bounds: ClassBounds = NO_CLASS_BOUNDS
    """What counts as noise between two known classes. It is never more than `tolerance` allows."""
    calibration: Annotated[str, Size(0, 200)] = ""
    """On what the tolerance was measured, for people; empty where it was not."""
    calibrated_at_ms: Uint = 0
    """When it was measured."""
    task_set: Annotated[str, Size(1, 400)]
    slots_per_step: Annotated[int, Range(1, 2**20)]
    samples_per_slot: Annotated[int, Range(1, 1024)]
    vocabulary: Annotated[int, Range(1, 2**20)]
    prompt_tokens_max: Annotated[int, Range(1, 2**20)]
    output_tokens_max: Annotated[int, Range(1, 2**20)]
    context_tokens_max: Annotated[int, Range(2, PROMPT_TOKENS_MAX + OUTPUT_TOKENS_MAX)] = (
        PROMPT_TOKENS_MAX + OUTPUT_TOKENS_MAX
    )
    """The model's context. No row may be longer, so a file never has one that a validator's engine cannot read."""
    temperature: Annotated[float, Range(0.0, TEMPERATURE_MAX)]
    """Of the sampling; 0 is greedy."""
    lag_max: Annotated[int, Range(0, 64)]
    """Oldest checkpoint, in steps before the wanted one, whose rollouts are still taken."""
    version_min: Uint
    """Lowest protocol version this run accepts."""
    version_next: Uint = 0
    upgrade_by_ms: Uint = 0
    """From this time on the lowest version is `version_next`. Both 0 where nothing is planned."""
    quorum: Annotated[int, Range(1, QUORUM_MAX)]
    inspectors: Annotated[tuple[NodeId, ...], Size(0, INSPECTORS_MAX)] = ()
    """Nodes of the operator's that read judged files again, to see that validators had read them."""
    audit_probation: Annotated[int, Range(0, 2**20)]
    """A node's first accepted submissions, all audited."""
    audit_floor: Annotated[int, Range(1, BASIS_POINTS)]
    verdict_ms: Uint
    """How long drawn validators have before another round may be drawn, beside the time to read the file. The file of
    the largest lease takes at most as long again to read."""
    read_us_per_token: Annotated[int, Range(0, READ_US_PER_TOKEN_MAX)] = READ_US_PER_TOKEN_MIN
    """Microseconds that a validator is granted for each token that it has to read."""
    appeal_ms: Uint
    """How long a proposed slash can be appealed."""
    judgement_ms: Uint
    """How long judges have for an appeal, and an inspector for a file on which validators stay split."""
    long_stop_ms: Uint = 3 * 24 * 3_600_000
    """How long an appeal that has no judges keeps the stake in escrow; then it goes back, without credit."""
    stake_min_nano: Uint
    slash_nano: Uint
    validator_slash_nano: Uint = 0
    """What a validator loses over a verdict that is refuted: by an appeal, an inspector or a clear decision."""
    appeal_bond_nano: Uint
    slash_to: SlashDestination
    step_budget_nano: Uint
    audit_share: BasisPoints
    """Part of a step's budget that goes to validators whose verdicts stood."""
    units_per_token: Annotated[int, Range(0, FLOP_PER_TOKEN_MAX)]
    units_per_context_token: Annotated[int, Range(0, FLOP_PER_CONTEXT_TOKEN_MAX)]
    """FLOP of one output token, and of one token of its context in attention. See units.py."""
    train_on: TrainOn = TrainOn.ACCEPTED
    vesting_ms: Uint = VESTING_MS
    """How long after its last submission was settled a step is not paid. A node that is convicted until then loses all
    pay that it has not got."""
    finding_bond_nano: Uint = 10**9
    """What a finding costs its author if judges do not agree."""
    bounty_share: BasisPoints = 2_000
    """Part of an executed slash that goes to whoever filed the finding which led to it."""
    rollouts_kept_ms: RetentionMs = ROLLOUTS_KEPT_MS
    """How long after its step was settled a rollout file is kept; longer where its case is still open."""
    evidence_kept_ms: RetentionMs = EVIDENCE_KEPT_MS
    """The same for the evidence of verdicts, rulings and findings that led to no slash."""
    slash_evidence_kept_ms: RetentionMs = SLASH_EVIDENCE_KEPT_MS
    """How long after a slash has ended its evidence is kept, and the rollout file with it."""
    checkpoints_kept_ms: RetentionMs = CHECKPOINTS_KEPT_MS
    """How long after its step was settled the manifest of a checkpoint is kept."""

    def __post_init__(self) -> None:
        if 0 < self.temperature < TEMPERATURE_MIN:
            raise RemoteError("temperature", f"is {self.temperature}, allowed is 0 or at least {TEMPERATURE_MIN}")
        if self.slash_nano > self.stake_min_nano:
            raise RemoteError("slash_nano", f"is {self.slash_nano}, more than the least stake {self.stake_min_nano}")
        if self.validator_slash_nano > self.stake_min_nano:
            problem = f"is {self.validator_slash_nano}, more than the least stake {self.stake_min_nano}"
            raise RemoteError("validator_slash_nano", problem)
        if self.long_stop_ms < self.judgement_ms:
            raise RemoteError("long_stop_ms", f"is {self.long_stop_ms}, less than judgement_ms {self.judgement_ms}")
        if len(set(self.inspectors)) < len(self.inspectors):
            raise RemoteError("inspectors", "names a node twice")
        if bool(self.upgrade_by_ms) != (self.version_next > self.version_min):
            raise RemoteError("version_next", f"is {self.version_next}; a planned one is higher and has its date")
        if self.row_tokens_max > self.context_tokens_max:
            problem = f"is {self.context_tokens_max}, the longest prompt and output together are {self.row_tokens_max}"
            raise RemoteError("context_tokens_max", problem)
        if self.class_bounds.classes and self.version_min < CLASS_BOUNDS_RULES:
            problem = f"is {self.version_min}, a table of class_bounds needs {CLASS_BOUNDS_RULES}"
            raise RemoteError("version_min", problem)
        try:
            self.class_bounds.check(self.tolerance)
        except RemoteError as error:
            raise RemoteError(f"class_bounds.{error.field}", error.problem) from None
        self._check_retention()

    def _check_retention(self) -> None:
        """Nothing is deleted before the longest time in which something can be decided by it."""
        least_ms = self.compute_decided_ms()
        for name in ("rollouts_kept_ms", "evidence_kept_ms", "checkpoints_kept_ms"):
            kept_ms = getattr(self, name)
            if kept_ms < least_ms:
                windows = "vesting_ms, judgement_ms, appeal_ms and long_stop_ms"
                raise RemoteError(name, f"is {kept_ms}, the least is {least_ms}: {windows} together")
        least_ms = max(self.rollouts_kept_ms, self.evidence_kept_ms)
        if self.slash_evidence_kept_ms < least_ms:
            problem = f"is {self.slash_evidence_kept_ms}, the least is {least_ms}: other files may not be kept longer"
            raise RemoteError("slash_evidence_kept_ms", problem)

    def compute_decided_ms(self) -> int:
        """The longest time after a submission was settled in which its file can decide something.

        A finding comes until the pay has vested, and is judged; the slash that follows can be appealed until its window
        ends, and the appeal may wait for judges until the long stop.
        """
        return self.vesting_ms + self.judgement_ms + self.appeal_ms + self.long_stop_ms

    @property
    def row_tokens_max(self) -> int:
        """Most tokens of a row, prompt and output together."""
        return self.prompt_tokens_max + self.output_tokens_max

    def compute_read_ms(self, *, rows: int, output_tokens: int) -> int:
        """The time to read a file, its longest prompts assumed, and the longest row again before a verdict."""
        tokens = rows * self.prompt_tokens_max + output_tokens + self.row_tokens_max
        return -(-tokens * self.read_us_per_token // 1000)

    def compute_slots_readable(self) -> int:
        """Most slots of one lease: reading its longest file takes no longer than `verdict_ms`."""
        if not self.read_us_per_token:
            return LEASE_SLOTS_MAX
        tokens = 1000 * self.verdict_ms // self.read_us_per_token - self.row_tokens_max
        return min(LEASE_SLOTS_MAX, max(0, tokens) // (self.samples_per_slot * self.row_tokens_max))

    def get_tolerance(self, generating: EngineClass | None, judging: EngineClass | None) -> Tolerance:
        """What counts as noise where one engine generated a file and another one judges it."""
        return self.class_bounds.find(generating, judging, default=self.tolerance)

    def rollout_limits(self, first_slot: int, slots: int) -> RolloutLimits:
        """What a file that answers a lease of these slots is held to."""
        return RolloutLimits(
            first_slot=Slot(first_slot),
            slots=slots,
            samples_per_slot=self.samples_per_slot,
            vocab_size=self.vocabulary,
            prompt_tokens_max=self.prompt_tokens_max,
            output_tokens_max=self.output_tokens_max,
            names_class=bool(self.class_bounds.classes),
            classes=self.class_bounds.classes if self.class_bounds.is_closed else (),
        )

    def get_version_min(self, at_ms: int) -> int:
        """The lowest version accepted at that time."""
        return self.version_next if 0 < self.upgrade_by_ms <= at_ms else self.version_min
