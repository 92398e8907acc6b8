"""What the entries of the log add up to: nodes, runs, steps, submissions, slashes. Data only; ledger.py has the rules.

Whoever folds the same entries holds the same state, down to the last number.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field

from prime_protocol.beacon import step_beacon
from prime_protocol.books import Books
from prime_protocol.constants import HEADS_KEPT
from prime_protocol.entries import NodeStatus, Outcome, Role, RunStatus
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId, RunId, Slot, Step
from prime_protocol.merkle import Frontier
from prime_protocol.terms import RunTerms, SlashTo
from prime_protocol.turn import Turn
from prime_protocol.typed_data import EMBEDDED, Domain


@dataclass(slots=True)
class NodeState:
    """A key that has registered or was delegated to."""

    delegated_until_ms: int | None = None
    """None: the node owns itself."""
    roles: tuple[Role, ...] = ()
    status: NodeStatus = NodeStatus.ACTIVE
    version: int = 0
    hardware: str = ""
    streak: int = 0
    """Submissions accepted since the last one that was not."""
    settled: Counter[Outcome] = field(default_factory=Counter)
    faults: int = 0
    """Verdicts that were not what was settled in the end."""


@dataclass(slots=True)
class CheckpointState:
    """A published checkpoint; its beacon is known once a head was noted after it."""

    root: Digest
    beacon: Digest | None = None


@dataclass(slots=True)
class LeaseState:
    """A lease that is still open."""

    node: NodeId
    step: Step
    first_slot: Slot
    slots: int
    deadline_ms: int

    def slot_range(self) -> range:
        return range(self.first_slot, self.first_slot + self.slots)


@dataclass(slots=True)
class Round:
    """One draw of validators and what they said."""

    validators: tuple[NodeId, ...]
    drawn_index: int
    drawn_at_ms: int
    verdicts: dict[NodeId, Outcome] = field(default_factory=dict)


@dataclass(slots=True)
class SubmissionState:
    """A submission, from the log's intake to its end."""

    node: NodeId
    owner: NodeId
    lease: int
    step: Step
    checkpoint_step: Step
    slots: range
    index: int
    output_tokens: int
    context_tokens: int
    rounds: list[Round] = field(default_factory=list)
    evidence: dict[Digest, NodeId] = field(default_factory=dict)
    """Evidence digests of hard verdicts, and who gave them."""
    outcome: Outcome | None = None
    scored: set[NodeId] = field(default_factory=set)
    """Validators that lost score over it."""
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
    slash_to: SlashTo
    rounds_before: int
    """Rounds up to this one led to the slash; the ones after it decide the appeal."""
    appealed_at_ms: int | None = None
    appealed_index: int = 0


@dataclass(slots=True)
class StepState:
    """The work of one step."""

    held: dict[int, int] = field(default_factory=dict)
    """Which open lease a slot is in; speculative leases do not hold."""
    credited: set[int] = field(default_factory=set)
    units: Counter[NodeId] = field(default_factory=Counter)
    upheld: Counter[NodeId] = field(default_factory=Counter)
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
    without_beacon: list[Step] = field(default_factory=list)
    latest: int = -1
    """Newest published step; -1 before the first."""
    leases: dict[int, LeaseState] = field(default_factory=dict)
    lease_next: int = 0
    steps: dict[Step, StepState] = field(default_factory=dict)
    submissions: dict[Digest, SubmissionState] = field(default_factory=dict)
    slashes: dict[Digest, SlashState] = field(default_factory=dict)
    carried: Counter[NodeId] = field(default_factory=Counter)
    """Units credited after their step was paid; the next payout takes them along."""
    validators: list[NodeId] = field(default_factory=list)
    """Sorted: who may be drawn."""

    def submission(self, name: Digest) -> SubmissionState:
        if name not in self.submissions:
            raise RemoteError("submission", f"{name} is not known in this run")
        return self.submissions[name]

    def slash(self, name: Digest) -> SlashState:
        if name not in self.slashes:
            raise RemoteError("submission", f"{name} has no open slash")
        return self.slashes[name]


@dataclass(slots=True)
class State:
    """Everything."""

    coordinator: NodeId | None = None
    domain: Domain = EMBEDDED
    log_key: str = ""
    unbonding_ms: int = 0
    frontier: Frontier = field(default_factory=Frontier)
    at_ms: int = 0
    sequences: dict[NodeId, int] = field(default_factory=dict)
    books: Books = field(default_factory=Books)
    references: set[Digest] = field(default_factory=set)
    nodes: dict[NodeId, NodeState] = field(default_factory=dict)
    owners: dict[NodeId, NodeId] = field(default_factory=dict)
    """Of every node; its own address where nobody delegated to it."""
    runs: dict[RunId, RunState] = field(default_factory=dict)
    heads: list[tuple[int, Digest]] = field(default_factory=list)
    """Noted heads, oldest first: entries covered, root."""

    @property
    def size(self) -> int:
        """Entries so far; the index of the next one."""
        return self.frontier.size

    def node(self, name: NodeId) -> NodeState:
        if name not in self.nodes:
            raise RemoteError("node", f"{name} is not registered")
        return self.nodes[name]

    def run(self, turn: Turn) -> RunState:
        name = turn.run_name()
        if name not in self.runs:
            raise RemoteError("run", f"{name} was not created")
        return self.runs[name]

    def enter(self, name: NodeId) -> NodeState:
        """A node's state, made new where the key is seen for the first time."""
        self.owners.setdefault(name, name)
        return self.nodes.setdefault(name, NodeState())

    def stake_of(self, node: NodeId) -> int:
        """What stands behind a node: its present owner's stake on it."""
        return self.books.stakes[(self.owners[node], node)]

    def head_after(self, index: int) -> tuple[int, Digest]:
        """The first head noted that covers entry `index`. There is no choice, so nobody can pick a lucky one."""
        place = bisect_right(self.heads, index, key=lambda head: head[0])
        if place == len(self.heads):
            raise RemoteError("head_size", f"no head was noted since entry {index}")
        return self.heads[place]

    def note_head(self, root: Digest) -> None:
        """Remember the head over all entries so far, and give the checkpoints that waited for it their beacons."""
        self.heads.append((self.size, root))
        del self.heads[:-HEADS_KEPT]
        for name, run in self.runs.items():
            for step in run.without_beacon:
                checkpoint = run.checkpoints[step]
                checkpoint.beacon = step_beacon(name, step, checkpoint_root=checkpoint.root, tree_head_root=root)
            run.without_beacon.clear()

    def refresh_validator(self, node: NodeId) -> None:
        """Put a node into, or take it out of, each run's list of who may be drawn."""
        known = self.nodes[node]
        fit = Role.VALIDATOR in known.roles and known.status is NodeStatus.ACTIVE
        for run in self.runs.values():
            place = bisect_left(run.validators, node)
            listed = run.validators[place : place + 1] == [node]
            wanted = fit and self.stake_of(node) >= run.terms.stake_min_nano
            if wanted and not listed:
                run.validators.insert(place, node)
            elif listed and not wanted:
                del run.validators[place]
