"""The circumstances of one entry: who wrote it, for which run, and when the log took it in.

What the entries of the log add up to: nodes, runs, steps, submissions, slashes. Data only; ledger.py has the rules.

Whoever folds the same entries holds the same state, down to the last number.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role, RunStatus
from prime_protocol.ledger.funds import Funds, StakeKey
from prime_protocol.ledger.randomness import compute_step_beacon
from prime_protocol.ledger.terms import RunTerms, SlashDestination
from prime_protocol.log.merkle import Frontier
from prime_protocol.wire.ids import DEFAULT_TICKER, Digest, NetworkId, NodeId, RunId, Slot, Step, Ticker
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where an entry stands in the log, and a digest of its body: a word that is sent again is known by it."""

    index: int
    at_ms: int
    body: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryContext:
    """Taken from the entry's opened envelope and its record."""

    network: NetworkId
    run: RunId | None
    author: NodeId
    at_ms: int
    index: int
    """Number of the entry in the log."""
    version: int
    body: Digest
    """SHA-256 of the payload's body."""
    is_signature_checked: bool = False
    """The signatures inside the entry were checked before, by this very party."""

    def position(self) -> LogPosition:
        return LogPosition(self.index, self.at_ms, self.body)

    def get_run_id(self) -> RunId:
        """The run this entry is about. ledger.py has refused entries that lack one and need it."""
        assert self.run is not None
        return self.run


@dataclass(slots=True)
class NodeState:
    """A key that has registered or was delegated to."""

    delegated_until_ms: int | None = None
    """None: the node owns itself."""
    roles: tuple[Role, ...] = ()
    status: NodeStatus = NodeStatus.ACTIVE
    reason: str = ""
    """Of its status."""
    registered: LogPosition | None = None
    """Its last registration; None while only a delegation names it."""
    addresses: tuple[str, ...] = ()
    version: int = 0
    hardware: str = ""
    streak: int = 0
    """Submissions accepted since the last one that was not."""
    settled: Counter[Outcome] = field(default_factory=Counter)
    units: int = 0
    """Credited so far, in all runs."""
    earned_nano: int = 0
    """Paid out so far for its work and its verdicts, to whoever was its owner then."""
    faults: int = 0
    """Verdicts that were not what was settled in the end, or were refuted."""


@dataclass(slots=True)
class CheckpointState:
    """A published checkpoint; its beacon is known once a head was noted after it."""

    root: Digest
    manifest: Digest
    position: LogPosition
    beacon: Digest | None = None
    measured: LogPosition | None = None
    """Where the trainer's numbers of its step stand."""


@dataclass(slots=True)
class LeaseState:
    """A lease that is still open."""

    node: NodeId
    owner: NodeId
    """Whose stake the lease was granted on, and whose reward it earns."""
    step: Step
    first_slot: Slot
    slots: int
    granted_at_ms: int
    deadline_ms: int
    speculative: bool

    def slot_range(self) -> range:
        return range(self.first_slot, self.first_slot + self.slots)


@dataclass(slots=True)
class AuditRoundState:
    """One draw of validators and what they said."""

    validators: dict[NodeId, NodeId]
    """Who was drawn, and its owner then: whose reward a verdict earns."""
    seed: Digest
    """Of this draw. Unknown to the worker when it submitted, so decoys come from it too."""
    drawn_at_ms: int
    verdicts: dict[NodeId, Outcome] = field(default_factory=dict)
    read_proof: dict[NodeId, bytes] = field(default_factory=dict)
    """With which each was given."""
    positions: dict[NodeId, LogPosition] = field(default_factory=dict)
    """Where each verdict stands."""


@dataclass(slots=True)
class SubmissionState:
    """A submission, from the log's intake to its end."""

    node: NodeId
    owner: NodeId
    lease: int
    step: Step
    checkpoint_step: Step
    file_digest: Digest
    slots: range
    position: LogPosition
    leased_at_ms: int
    at_ms: int
    file_bytes: int
    output_tokens: int
    context_tokens: int
    head: tuple[int, Digest] | None = None
    """Entries covered by, and root of, the first head noted since the submission, its last draw or its appeal.
    There is no choice, so nobody can pick a lucky one."""
    rounds: list[AuditRoundState] = field(default_factory=list)
    evidence: dict[Digest, NodeId] = field(default_factory=dict)
    """Evidence digests of fraudulent verdicts, and who gave them."""
    outcome: Outcome | None = None
    judged: Outcome | None = None
    """What a majority found; None where no validator was drawn, or they reached no decision."""
    scored: set[NodeId] = field(default_factory=set)
    """Validators that lost score over it."""
    inspected: dict[NodeId, LogPosition] = field(default_factory=dict)
    """Inspectors that have read it again, and where what they found stands."""
    refuted: set[NodeId] = field(default_factory=set)
    """Validators that judged it and had not read it."""
    slashed: bool = False
    credited: bool = False
    trained_into: Step | None = None


@dataclass(slots=True)
class SlashState:
    """A proposed slash, until it is executed or overturned."""

    node: NodeId
    owner: NodeId
    appeal_until_ms: int
    judgement_ms: int
    bond_nano: int
    slash_to: SlashDestination
    rounds_before: int
    """Rounds up to this one led to the slash; the ones after it decide the appeal."""
    appealed_at_ms: int | None = None


@dataclass(slots=True)
class StepState:
    """The work of one step."""

    terms: RunTerms
    """In force at the first lease; the step's work is judged and paid by them."""
    held: dict[int, int] = field(default_factory=dict)
    """Which open lease a slot is in; speculative leases do not hold."""
    credited: set[int] = field(default_factory=set)
    units: Counter[StakeKey] = field(default_factory=Counter)
    upheld: Counter[StakeKey] = field(default_factory=Counter)
    """Verdicts per validator that agree with what was settled."""
    submissions: list[Digest] = field(default_factory=list)
    pending: int = 0
    """Open leases, and submissions without an outcome."""
    paid: bool = False

    def free(self, slots: range, lease: int) -> None:
        """Give back the slots that this lease still holds."""
        for slot in slots:
            if self.held.get(slot) == lease:
                del self.held[slot]


@dataclass(slots=True)
class RunState:
    """One training run."""

    terms: RunTerms
    status: RunStatus = RunStatus.ACTIVE
    checkpoints: dict[Step, CheckpointState] = field(default_factory=dict)
    awaiting_beacon: list[Step] = field(default_factory=list)
    latest: int = -1
    """Newest published step; -1 before the first."""
    oldest: int = 0
    """Steps before this one are never leased again, whatever the lag becomes. It only rises."""
    funded: Counter[NodeId] = field(default_factory=Counter)
    """What each account put into the pool, until it has taken its part back."""
    forfeited_nano: int = 0
    """What slashes brought into the pool: for contributors, and never for a funder."""
    paid: Counter[NodeId] = field(default_factory=Counter)
    """What each account was paid out of it, in all. Settlement on a chain promises exactly this."""
    leases: dict[int, LeaseState] = field(default_factory=dict)
    lease_next: int = 0
    steps: dict[Step, StepState] = field(default_factory=dict)
    submissions: dict[Digest, SubmissionState] = field(default_factory=dict)
    slashes: dict[Digest, SlashState] = field(default_factory=dict)
    awaiting_head: list[Digest] = field(default_factory=list)
    """Submissions whose next draw waits for a head."""
    carried_units: Counter[StakeKey] = field(default_factory=Counter)
    carried_upheld: Counter[StakeKey] = field(default_factory=Counter)
    """What was earned after its step was paid; the next payout takes it along."""
    debts: Counter[StakeKey] = field(default_factory=Counter)
    """Verdicts that stood and are not paid, since others of the validator were refuted."""
    validators: list[NodeId] = field(default_factory=list)
    """Sorted: who may be drawn."""

    def submission(self, name: Digest) -> SubmissionState:
        if name not in self.submissions:
            raise RemoteError("submission", f"{name} is not known in this run")
        return self.submissions[name]

    def get_terms(self, submission: SubmissionState) -> RunTerms:
        return self.steps[submission.step].terms

    def await_head(self, name: Digest) -> None:
        """The submission's next draw takes the next head that is noted, not an earlier one."""
        self.submissions[name].head = None
        self.awaiting_head.append(name)

    def slash(self, name: Digest) -> SlashState:
        if name not in self.slashes:
            raise RemoteError("submission", f"{name} has no open slash")
        return self.slashes[name]


@dataclass(slots=True)
class LedgerState:
    """Everything."""

    coordinator: NodeId | None = None
    domain: Domain = EMBEDDED_DOMAIN
    log_key: str = ""
    unbonding_ms: int = 0
    ticker: Ticker = DEFAULT_TICKER
    frontier: Frontier = field(default_factory=Frontier)
    at_ms: int = 0
    sequences: dict[NodeId, int] = field(default_factory=dict)
    funds: Funds = field(default_factory=Funds)
    references: set[Digest] = field(default_factory=set)
    nodes: dict[NodeId, NodeState] = field(default_factory=dict)
    owners: dict[NodeId, NodeId] = field(default_factory=dict)
    """Of every node; its own address where nobody delegated to it."""
    revoked_ms: dict[StakeKey, int] = field(default_factory=dict)
    """When an owner took back what it had signed for a node."""
    runs: dict[RunId, RunState] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Entries so far; the index of the next one."""
        return self.frontier.size

    def node(self, name: NodeId) -> NodeState:
        if name not in self.nodes:
            raise RemoteError("node", f"{name} is not registered")
        return self.nodes[name]

    def run(self, context: EntryContext) -> RunState:
        name = context.get_run_id()
        if name not in self.runs:
            raise RemoteError("run", f"{name} was not created")
        return self.runs[name]

    def get_or_create_node(self, name: NodeId) -> NodeState:
        """A node's state, made new where the key is seen for the first time."""
        self.owners.setdefault(name, name)
        return self.nodes.setdefault(name, NodeState())

    def get_stake(self, node: NodeId) -> int:
        """What stands behind a node: its present owner's stake on it."""
        return self.funds.stakes[(self.owners[node], node)]

    def is_delegated(self, node: NodeId, at_ms: int) -> bool:
        """Whether the node's owner stands by it at that time; a node that owns itself always does."""
        until_ms = self.nodes[node].delegated_until_ms
        return until_ms is None or at_ms < until_ms

    def note_head(self, root: Digest) -> None:
        """Give the head over all entries so far to the checkpoints and submissions that wait for one."""
        for name, run in self.runs.items():
            for submission in run.awaiting_head:
                # A submission that was not drawn needs no further head and may be gone with its step.
                if submission in run.submissions:
                    run.submissions[submission].head = (self.size, root)
            run.awaiting_head.clear()
            for step in run.awaiting_beacon:
                checkpoint = run.checkpoints[step]
                checkpoint.beacon = compute_step_beacon(
                    name, step, checkpoint_root=checkpoint.root, tree_head_root=root
                )
            run.awaiting_beacon.clear()

    def refresh_validator(self, node: NodeId) -> None:
        """Put a node into, or take it out of, each run's list of who may be drawn."""
        known = self.nodes[node]
        fit = Role.VALIDATOR in known.roles and known.status is NodeStatus.ACTIVE
        for run in self.runs.values():
            place = bisect_left(run.validators, node)
            listed = run.validators[place : place + 1] == [node]
            terms = run.terms
            wanted = fit and known.version >= terms.version_min and self.get_stake(node) >= terms.stake_min_nano
            if wanted and not listed:
                run.validators.insert(place, node)
            elif listed and not wanted:
                del run.validators[place]
