"""The schemas of the read API: one frozen dataclass for each kind of row. Data only.

The JSON of the API, its OpenAPI description and the tables of the command line are made from these fields. Ids are 0x
and hex, times are Unix milliseconds, amounts are nano: 10^-9 of the network's unit of value.
"""

from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any


class SubmissionProgress(StrEnum):
    """State of a submission: waiting for its draw, with its validators, or settled."""

    WAITING = "waiting"
    AUDITING = "auditing"
    ACCEPTED = "accepted"
    INVALID = "invalid"
    FRAUDULENT = "fraudulent"


class SlashProgress(StrEnum):
    """State of a slash."""

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
    """Slots of the latest step that are leased or in audit."""
    slots_per_step: int
    leases_open: int
    submissions_open: int
    slashes_open: int
    validators: int
    """Nodes that can be drawn."""
    pool_nano: int
    model: str
    task_set: str
    trainer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step that is unpaid, has open work, or may still be trained on."""

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
    """Nodes by liveness."""

    registered: int
    online: int
    late: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionCounts:
    """Submissions of steps that are not over, by progress."""

    waiting: int
    auditing: int
    accepted: int
    invalid: int
    fraudulent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRow:
    """All value in the ledger. Held is deposited less withdrawn and burned."""

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
    ticker: str
    """The network's unit of value."""
    now_ms: int
    entries: int
    root: str
    """Merkle root over all entries."""
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
    """From its last heartbeat; null if there was none since the coordinator started."""
    checkpoint_step: int | None
    last_beat_ms: int | None
    stake_nano: int
    streak: int
    """Accepted submissions in a row."""
    accepted: int
    invalid: int
    fraudulent: int
    units: int
    earned_nano: int
    """Paid out for its work and its verdicts. Like `units`, the sum over all runs."""
    faults: int
    """Verdicts that were overturned or refuted."""


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
    """Duplicates the slots of a slow lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibilityRow:
    """Whether a node may have work in a run, and what would change that."""

    run: str
    standing: str
    works: bool
    """Whether it gets work."""
    way_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """Everything known about a node."""

    summary: NodeRow
    reason: str
    """Why it has its status, as the log states it."""
    version: int
    hardware: str
    addresses: tuple[str, ...]
    """Where it serves weights."""
    delegated_until_ms: int | None
    """Null: the node owns itself."""
    owner_balance_nano: int
    unbonding_nano: int
    tokens_per_s: float | None
    """Measured by the coordinator; null before its first submission."""
    standings: tuple[EligibilityRow, ...]
    leases: tuple[LeaseRow, ...]
    audits: tuple[str, ...]
    """Submissions it was drawn for and has given no verdict on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRow:
    """What every row has that an entry of a run begins: where that entry is in the log."""

    index: int
    at_ms: int
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRow(LoggedRow):
    """A submission in one line."""

    submission: str
    step: int
    node: str
    owner: str | None
    """Null once the step is over, like the slots and `trained_into`; the log has them."""
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
    """Null once the step is over; the log determines it."""
    validators: tuple[str, ...]
    verdicts: dict[str, str]
    """Outcome by validator, as far as given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionDetail:
    """A submission with its audit."""

    summary: SubmissionRow
    file_digest: str
    checkpoint_step: int
    context_tokens: int
    rounds: tuple[RoundRow, ...]
    evidence: tuple[str, ...]
    """Digests that fraudulent verdicts name."""
    refuted: tuple[str, ...]
    """Validators whose read proofs were refuted: they gave a verdict without reading the file."""
    slash: SlashProgress | None
    """Null if no slash was proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow(LoggedRow):
    """A validator's verdict, from the log."""

    submission: str
    validator: str
    outcome: str
    reason: str
    evidence: str
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashRow(LoggedRow):
    """A slash, from its proposal to its end."""

    submission: str
    node: str
    amount_nano: int
    evidence: str
    progress: SlashProgress
    appeal_until_ms: int | None
    """Null once it has ended."""
    ended_index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppealRow(LoggedRow):
    """An appeal against a slash, from the log."""

    submission: str
    author: str
    reason: str
    progress: SlashProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow(LoggedRow):
    """A published checkpoint."""

    step: int
    root: str
    manifest: str
    beacon: str | None
    """Null until a head is noted after it."""
    trained_on: int
    """Submissions it was trained on; its entry in the log names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """A decoded entry of the log."""

    index: int
    at_ms: int
    kind: str
    author: str
    run: str | None
    body: dict[str, Any]
    leaf_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDetail:
    """An entry of the log with its inclusion proof for the newest signed tree head."""

    summary: EntryRow
    leaf: str
    """The leaf's bytes: what leaf_hash is the hash of."""
    head: str | None
    """The signed tree head; null if the entry is newer."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRow:
    """A head of the log that a contract holds."""

    run: str
    """The run's key on the chain: keccak256 of its name."""
    size: int
    root: str
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRow:
    """A payout root that a contract holds."""

    run: str
    epoch: int
    root: str
    total: int
    """In the smallest unit of the ERC-20 token."""
    head_size: int
    matures_at_s: int
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRow:
    """Where value is held."""

    kind: str
    """embedded or evm."""
    chain_id: int
    """0 for embedded, as the network's first entry says."""
    court: str
    """Address of the contract that receipts are signed for; zeros for embedded."""
    head: int
    """Newest block seen."""
    followed: int
    """Block up to which the log includes the chain's events."""
    problem: str
    """Why settlement waits; empty if it does not."""
    pending: tuple[str, ...]
    """Transactions that are not in a block yet."""
    refused: tuple[str, ...]
    """Actions that a contract refused, and why; each is retried an epoch later."""
    anchors: tuple[AnchorRow, ...]
    """Newest first."""
    promises: tuple[PromiseRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidRow:
    """Total paid to an account in a run."""

    account: str
    paid_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayoutRow:
    """The table behind a payout root. It needs no trust: hash its tree and compare the root with the chain's."""

    run: str
    epoch: int
    size: int
    """Entries of the log it was computed from."""
    paid: tuple[PaidRow, ...]


def to_json_value(value: Any) -> Any:
    """A row, or a value inside one, as plain JSON types."""
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
