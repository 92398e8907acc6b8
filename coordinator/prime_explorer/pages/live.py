"""What only a running coordinator knows: status, presence and work of nodes, refused files, settlement. Data only."""

from dataclasses import dataclass

from prime_explorer.pages.keys import RotatedKeySummary


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """Nodes by liveness."""

    registered: int
    online: int
    late: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionCounts:
    """Submissions by progress. The first two count what is open, the others all since the log began."""

    waiting: int
    auditing: int
    accepted: int
    invalid: int
    fraudulent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTotals:
    """All value in the ledger. Held is deposited less withdrawn and burned."""

    deposited_nano: int
    withdrawn_nano: int
    burned_nano: int
    held_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A run as it stands now."""

    run: str
    status: str
    model: str
    task_set: str
    latest_step: int
    """Newest published checkpoint; -1 before the first."""
    slots_done: int
    """Slots of the latest step that are credited."""
    slots_held: int
    """Slots of the latest step that are leased or in audit."""
    slots_per_step: int
    leases_open: int
    validators: int
    """Nodes that can be drawn."""
    pool_nano: int
    step_budget_nano: int
    """What a step pays while the pool lasts."""
    version_min: int
    """Lowest protocol version that the run accepts now."""
    calibration: str
    """On what the bounds of its audits were measured; empty where they were not."""
    calibrated_at_ms: int
    """When they were measured."""
    engine_classes: tuple[str, ...]
    """Classes of engines that have bounds of their own; empty where the run does not tell them apart."""
    is_closed: bool
    """Whether the run takes work of these classes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomnessView:
    """Where beacons and audit draws come from, and what they wait for."""

    chain: str
    """Which chain it is, and who can predict it."""
    chain_hash: str
    """The chain's name in drand's HTTP paths."""
    waiting_for_round: int | None
    """The oldest round that a beacon or a draw waits for; null: nothing waits."""
    late_s: int
    """How long that round is overdue. Its source does not answer if this grows."""
    last_witnesses: int
    """Cosignatures in the last recorded round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesView:
    """The rules of the log over time."""

    before: int
    """In force until `from_ms`."""
    after: int
    """In force from then on."""
    from_ms: int
    release: str
    """First release of prime-swarm that knows them; empty where none were announced."""
    index: int
    """Entry that announced them."""
    notice_ms: int
    """Least notice of a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The coordinator at a glance."""

    network: str
    coordinator: str
    log_key: str
    """Verifier key of the tree heads."""
    rotations: tuple[RotatedKeySummary, ...]
    """Keys that the log had before, newest first."""
    ticker: str
    """The network's unit of value."""
    faucet_nano: int
    """What a new node gets once; 0: the network has no faucet."""
    now_ms: int
    entries: int
    root: str
    """Merkle root over all entries."""
    head_size: int
    """Entries under the newest signed tree head."""
    newest_entry_ms: int
    rules: RulesView
    randomness: RandomnessView
    nodes: NodeCounts
    leases_open: int
    submissions: SubmissionCounts
    slashes_open: int
    value: ValueTotals
    runs: tuple[LiveRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePresence:
    """The last heartbeat of a node."""

    phase: str
    activity: str | None
    """Null if there was none since the coordinator started."""
    checkpoint_step: int | None
    last_beat_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEligibility:
    """Whether a node may have work in a run, and what would change that."""

    run: str
    eligibility: str
    is_eligible: bool
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNodeWork:
    """How fast a node is, whether it gets work, and what it has to judge."""

    tokens_per_s: float | None
    """Measured by the coordinator; null before its first submission."""
    eligibility: tuple[NodeEligibility, ...]
    audits: tuple[str, ...]
    """Submissions it was drawn for and has given no verdict on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNode:
    """A node that serves weights, by its own announcement."""

    node: str
    depth: int
    slots_free: int
    urls: int
    """Number of addresses at which it can be reached."""
    manifests: tuple[str, ...]
    """Manifests that it serves, newest first."""
    parents: tuple[str, ...]
    """Nodes that sent it most of the newest manifest."""
    sent_bytes: int
    """Bytes sent since it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFile:
    """A rollout file that intake refused, and why. The log has no entry about it."""

    at_ms: int
    digest: str
    run: str
    node: str
    lease: int
    field: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAnchor:
    """A tree head that a contract holds."""

    run: str
    """The run's key on the chain: keccak256 of its name."""
    size: int
    root: str
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPromise:
    """A payout root that a contract holds."""

    run: str
    epoch: int
    root: str
    total: int
    """In the smallest unit of the ERC-20 token."""
    head_size: int
    matures_at_s: int
    votes: int
    """Staked owners who say that the log gives another root."""
    void: bool
    """A quorum said so before it matured: it is never paid."""
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementView:
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
    anchors: tuple[ChainAnchor, ...]
    """Newest first."""
    promises: tuple[ChainPromise, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidAccount:
    """Total paid to an account in a run."""

    account: str
    paid_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayoutView:
    """The table behind a payout root. It needs no trust: hash its tree and compare the root with the chain's."""

    run: str
    epoch: int
    size: int
    """Entries of the log it was computed from."""
    paid: tuple[PaidAccount, ...]
