"""The terms of a run: what its workers, validators and trainer are held to, and what they are paid.

They stand in the log, so everybody reads the same ones. Nothing here is applied; see ledger.py.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from prime_protocol.constants import (
    BASIS_POINTS,
    DIGEST_BYTES,
    FLOP_PER_CONTEXT_TOKEN_MAX,
    FLOP_PER_TOKEN_MAX,
    INSPECTORS_MAX,
    QUORUM_MAX,
    TEMPERATURE_MAX,
    TEMPERATURE_MIN,
)
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.rollouts.rollout import RolloutLimits
from prime_protocol.wire.codec import Range, Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NodeId, Slot

ANY_MODEL_FILES = Digest(bytes(DIGEST_BYTES))
"""Of a run that does not say which files describe its model."""

BasisPoints = Annotated[int, Range(0, BASIS_POINTS)]
"""Basis points: 10,000 is all."""


class SlashDestination(StrEnum):
    """Where slashed stake goes. Never to a judge."""

    BURN = "burn"
    POOL = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """What everybody in a run is held to."""

    trainer: NodeId
    model: Annotated[str, Size(1, 200)]
    model_files: Digest = ANY_MODEL_FILES
    """Of the files beside the tensors that say how the model is run: its shape, tokenizer, end tokens and prompt."""
    tolerance: Tolerance = field(default_factory=Tolerance)
    """What counts as noise in an audit."""
    task_set: Annotated[str, Size(1, 400)]
    slots_per_step: Annotated[int, Range(1, 2**20)]
    samples_per_slot: Annotated[int, Range(1, 1024)]
    vocabulary: Annotated[int, Range(1, 2**20)]
    prompt_tokens_max: Annotated[int, Range(1, 2**20)]
    output_tokens_max: Annotated[int, Range(1, 2**20)]
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
    """How long drawn validators have before another round may be drawn."""
    appeal_ms: Uint
    """How long a proposed slash can be appealed."""
    judgement_ms: Uint
    """How long an appeal may stay undecided; then the stake goes back, and there is no credit either."""
    stake_min_nano: Uint
    slash_nano: Uint
    appeal_bond_nano: Uint
    slash_to: SlashDestination
    step_budget_nano: Uint
    audit_share: BasisPoints
    """Part of a step's budget that goes to validators whose verdicts stood."""
    units_per_token: Annotated[int, Range(0, FLOP_PER_TOKEN_MAX)]
    units_per_context_token: Annotated[int, Range(0, FLOP_PER_CONTEXT_TOKEN_MAX)]
    """FLOP of one output token, and of one token of its context in attention. See units.py."""

    def __post_init__(self) -> None:
        if 0 < self.temperature < TEMPERATURE_MIN:
            raise RemoteError("temperature", f"is {self.temperature}, allowed is 0 or at least {TEMPERATURE_MIN}")
        if self.slash_nano > self.stake_min_nano:
            raise RemoteError("slash_nano", f"is {self.slash_nano}, more than the least stake {self.stake_min_nano}")
        if len(set(self.inspectors)) < len(self.inspectors):
            raise RemoteError("inspectors", "names a node twice")
        if bool(self.upgrade_by_ms) != (self.version_next > self.version_min):
            raise RemoteError("version_next", f"is {self.version_next}; a planned one is higher and has its date")

    def rollout_limits(self, first_slot: int, slots: int) -> RolloutLimits:
        """What a file that answers a lease of these slots is held to."""
        return RolloutLimits(
            first_slot=Slot(first_slot),
            slots=slots,
            samples_per_slot=self.samples_per_slot,
            vocab_size=self.vocabulary,
            prompt_tokens_max=self.prompt_tokens_max,
            output_tokens_max=self.output_tokens_max,
        )

    def get_version_min(self, at_ms: int) -> int:
        """The lowest version accepted at that time."""
        return self.version_next if 0 < self.upgrade_by_ms <= at_ms else self.version_min
