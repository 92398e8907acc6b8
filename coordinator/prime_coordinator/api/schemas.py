"""What people are shown of the coordinator: one frozen dataclass for each thing that is listed. Data only.

The JSON of the API, its OpenAPI description and the tables of the command line are all made from these fields. Ids are
0x and hex, times are Unix milliseconds, amounts are nano (10^-9 of a token).
"""

from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any


class SubmissionProgress(StrEnum):
    """How far a submission is: waiting for its draw, with its validators, or settled."""

    WAITING = "waiting"
    AUDITING = "auditing"
    ACCEPTED = "accepted"
    INVALID = "soft"
    FRAUDULENT = "hard"


class SlashProgress(StrEnum):
    """How far a slash is."""

    PROPOSED = "proposed"
    APPEALED = "appealed"
    EXECUTED = "executed"
    OVERTURNED = "overturned"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in one line."""

    run: str
    status: str
    latest_step: int
    """Newest published checkpoint; -1 before the first."""
    slots_done: int
    """Slots of the latest step that are credited."""
    slots_held: int
    """Slots of the latest step that are leased or being judged."""
    slots_per_step: int
    leases_open: int
    submissions_open: int
    slashes_open: int
    validators: int
    """Nodes that may be drawn."""
    pool_nano: int
    model: str
    task_set: str
    trainer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step that still owes or is owed something, or may still be trained on."""

    step: int
    slots: int
    slots_held: int
    slots_done: int
    submissions: int
    pending: int
    """Open leases, and submissions without an outcome."""
    units: int
    paid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail:
    """A run with its terms and steps."""

    summary: RunRow
    terms: dict[str, Any]
    """As in the log; see docs/protocol/ledger.md."""
    steps: tuple[StepRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """Nodes by what was last heard of them."""

    registered: int
    online: int
    late: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionCounts:
    """Submissions of steps that are not over, by how far they are."""

    waiting: int
    auditing: int
    accepted: int
    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRow:
    """All value in the books. Held is deposited less withdrawn and burned."""

    deposited_nano: int
    withdrawn_nano: int
    burned_nano: int
    held_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRow:
    """The coordinator at a glance."""

    network: str
    coordinator: str
    log_key: str
    """Verifier key of the tree heads."""
    now_ms: int
    entries: int
    root: str
    """Of all entries so far."""
    head_size: int
    """Entries under the newest signed tree head."""
    newest_entry_ms: int
    nodes: NodeCounts
    leases_open: int
    submissions: SubmissionCounts
    slashes_open: int
    value: ValueRow
    runs: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node in one line."""

    node: str
    owner: str
    status: str
    phase: str
    roles: tuple[str, ...]
    activity: str | None
    """What its last beat said; null where it has not beaten since the coordinator started."""
    checkpoint_step: int | None
    last_beat_ms: int | None
    stake_nano: int
    streak: int
    """Submissions accepted since the last one that was not."""
    accepted: int
    soft: int
    hard: int
    units: int
    earned_nano: int
    """Paid out so far for its work and its verdicts; units are what it was credited so far. Both in all runs."""
    faults: int
    """Verdicts that were not what was settled in the end, or were refuted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """An open lease."""

    run: str
    lease: int
    node: str
    owner: str
    step: int
    first_slot: int
    slots: int
    granted_at_ms: int
    deadline_ms: int
    speculative: bool
    """A second chance beside a slow lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibilityRow:
    """What a node is to a run, and what would change that."""

    run: str
    standing: str
    works: bool
    """Whether it is given work."""
    way_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """A node with all that is known of it."""

    summary: NodeRow
    reason: str
    """Why it has its status, in the operator's words."""
    version: int
    hardware: str
    addresses: tuple[str, ...]
    """Where it serves weights."""
    delegated_until_ms: int | None
    """Null: the node owns itself."""
    owner_balance_nano: int
    unbonding_nano: int
    tokens_per_s: float | None
    """As measured here; null before its first submission."""
    standings: tuple[EligibilityRow, ...]
    leases: tuple[LeaseRow, ...]
    audits: tuple[str, ...]
    """Submissions it was drawn for and has not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRow:
    """A submission in one line."""

    index: int
    """Its entry in the log."""
    at_ms: int
    run: str
    submission: str
    step: int
    node: str
    owner: str | None
    """Null where the step is over; so are the slots and what it was trained into. The log has them."""
    progress: SubmissionProgress
    lease: int
    first_slot: int | None
    slots: int | None
    output_tokens: int
    verdicts: int
    validators: int
    """Drawn so far, in all rounds."""
    credited: bool
    trained_into: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One draw of validators."""

    drawn_at_ms: int
    seed: str | None
    """Null where the step is over; it follows from the log."""
    validators: tuple[str, ...]
    verdicts: dict[str, str]
    """Outcome by validator, of those who have spoken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionDetail:
    """A submission with its judgement."""

    summary: SubmissionRow
    file_digest: str
    checkpoint_step: int
    context_tokens: int
    rounds: tuple[RoundRow, ...]
    evidence: tuple[str, ...]
    """Digests that hard verdicts name."""
    refuted: tuple[str, ...]
    """Validators that judged it and had not read it."""
    slash: SlashProgress | None
    """How far its slash is; null where none was proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """A validator's verdict, from the log."""

    index: int
    at_ms: int
    run: str
    submission: str
    validator: str
    outcome: str
    reason: str
    evidence: str
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashRow:
    """A slash, from its proposal to its end."""

    index: int
    """Entry that proposed it."""
    at_ms: int
    run: str
    submission: str
    node: str
    amount_nano: int
    evidence: str
    progress: SlashProgress
    appeal_until_ms: int | None
    """Null once it has ended."""
    ended_index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppealRow:
    """An appeal against a slash, from the log."""

    index: int
    at_ms: int
    run: str
    submission: str
    author: str
    reason: str
    progress: SlashProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A published checkpoint."""

    index: int
    at_ms: int
    run: str
    step: int
    root: str
    manifest: str
    beacon: str | None
    """Null until a head was noted after it."""
    trained_on: int
    """Submissions it was trained on; its entry in the log names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """An entry of the log, opened."""

    index: int
    at_ms: int
    kind: str
    author: str
    run: str | None
    body: dict[str, Any]
    leaf_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDetail:
    """An entry of the log with the proof that it stands under the newest signed tree head."""

    summary: EntryRow
    leaf: str
    """The leaf's bytes: what leaf_hash is the hash of."""
    head: str | None
    """The signed tree head; null where the entry is newer than it."""
    proof: tuple[str, ...]
    """Inclusion proof of RFC 9162 for that head, leaf side first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRow:
    """The newest signed tree head."""

    size: int
    root: str
    note: str
    """As signed: c2sp.org/tlog-checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyRow:
    """Proof that one tree is the beginning of another."""

    old_size: int
    old_root: str
    new_size: int
    new_root: str
    proof: tuple[str, ...]
    """Consistency proof of RFC 9162."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A rollout file that intake refused, and why."""

    at_ms: int
    digest: str
    run: str
    node: str
    lease: int
    field: str
    problem: str


def to_json_value(value: Any) -> Any:
    """A row, or anything inside one, as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json_value(item) for item in value]
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value
