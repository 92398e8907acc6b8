"""What the entries of the log add up to: nodes, runs, steps, submissions, slashes; and the context of one entry.

Data only. The rules that change it are in accounts.py, work.py, audits.py and rewards.py. Everyone who folds the same
entries gets the same state, down to the last number.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from prime_protocol.constants import CANDIDATE_SPANS_KEPT, DIGEST_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.keys.rotation import KeyRotation
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role, RunStatus
from prime_protocol.ledger.funds import Funds, StakeKey
from prime_protocol.ledger.randomness import draw_witnesses
from prime_protocol.ledger.randomness_chain import QUICKNET, RandomnessChain
from prime_protocol.ledger.run_record import BetSums, RunRecord
from prime_protocol.ledger.snapshots.packed import PackedMapping
from prime_protocol.ledger.terms import RunTerms, SlashDestination
from prime_protocol.ledger.versions.lineage import OpenLineage
from prime_protocol.ledger.versions.plan import FIRST_RULES, RulesPlan
from prime_protocol.log.merkle import Frontier
from prime_protocol.wire.ids import DEFAULT_TICKER, Digest, NetworkId, NodeId, RunId, Slot, Step, Ticker
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain

NO_DIGEST = Digest(bytes(DIGEST_BYTES))
"""Where there is none yet."""


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
    rules: int
    """In force at this entry."""
    body: Digest
    """SHA-256 of the payload's body."""
    leaf_bytes: int
    """By how much the entry grows the log."""
    is_signature_checked: bool = False
    """The signatures that the entry alone decides were checked before, by this very party."""
    is_cosignature_checked: bool = False
    """So were cosignatures of heads, whose keys are in the state."""

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
    delegated: LogPosition | None = None
    """The last delegation that it brought, also when that was revoked since."""
    roles: tuple[Role, ...] = ()
    status: NodeStatus = NodeStatus.ACTIVE
    reason: str = ""
    """Of its status."""
    registered: LogPosition | None = None
    """Its last registration; None while only a delegation names it."""
    addresses: tuple[str, ...] = ()
    version: int = 0
    hardware: str = ""
    runs: tuple[RunId, ...] = ()
    """Whose audits it takes."""
    witness_key: bytes = b""
    past_owners: dict[NodeId, int] = field(default_factory=dict)
    """Owners that it left, and when; kept for the unbonding delay. None of their work is given to it for an audit."""
    settled: Counter[Outcome] = field(default_factory=Counter)
    units: int = 0
    """Credited so far, in all runs."""
    earned_nano: int = 0
    """Paid out so far for its work and its verdicts, to its owner at that time."""
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
    checkpoint_step: Step
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
    deadline_ms: int
    """Until when its commitments are waited for; in a round of one validator, until when its verdict is."""
    verdicts: dict[NodeId, Outcome] = field(default_factory=dict)
    commitments: dict[NodeId, Digest] = field(default_factory=dict)
    """What each validator has committed to."""
    committed: dict[NodeId, LogPosition] = field(default_factory=dict)
    """Where each commitment stands."""
    complete_ms: int | None = None
    """When the last validator committed; None: not all have."""
    read_proof: dict[NodeId, bytes] = field(default_factory=dict)
    """With which each was given."""
    blocks_read: dict[NodeId, int] = field(default_factory=dict)
    """How much of the file each read proof covers; 0: all of it."""
    positions: dict[NodeId, LogPosition] = field(default_factory=dict)
    """Where each verdict stands."""
    bets: dict[NodeId, BetSums] = field(default_factory=dict)
    """What the file weighs, by each verdict."""

    @property
    def is_committed_first(self) -> bool:
        """Verdicts are committed before they are given where there is another validator to copy from."""
        return len(self.validators) > 1

    @property
    def reveal_ms(self) -> int:
        """From when committed verdicts may be given: all are committed, or the time to commit is over."""
        return self.deadline_ms if self.complete_ms is None else self.complete_ms

    def list_unrevealed(self) -> list[NodeId]:
        """Who has committed to a verdict and not given it."""
        return [node for node in self.commitments if node not in self.verdicts]


UNDRAWN: tuple[AuditRoundState, ...] = (AuditRoundState({}, NO_DIGEST, 0, 0),)
"""The rounds of every submission that no audit fell on."""
NOTHING: dict[Any, Any] = {}


@dataclass(slots=True)
class SubmissionState:
    """A submission, from the log's intake to its end.

    It is kept until its pay has vested, and most are never drawn. So collections are replaced, never changed: those
    that have nothing to say share one object.
    """

    node: NodeId
    owner: NodeId
    lease: int
    step: Step
    checkpoint_step: Step
    file_digest: Digest
    rollout_root: Digest
    first_slot: Slot
    slots_total: int
    position: LogPosition
    leased_at_ms: int
    at_ms: int
    file_bytes: int
    output_tokens: int
    context_tokens: int
    randomness: tuple[int, Digest] | None = None
    """Round, and its randomness, that the next draw comes from. A head noted since the submission, its last draw or
    its appeal fixes the round before it is published, so no party can pick a lucky one."""
    awaits_since: int = 0
    """Entry that asked for the next draw. A round that was fixed by a head without this entry is ignored: the author
    of an appeal or a finding could otherwise wait until it is published, and know its judges."""
    candidates_before: int = 0
    """Size of the head that fixed the round. Validators that joined later may have known the draw, and come last."""
    is_unwitnessed: bool = False
    """A head over it was not cosigned in time. Its audit is certain then: otherwise a coordinator that dislikes a
    draw could lose the cosignatures and draw again."""
    rounds: tuple[AuditRoundState, ...] = field(default=(), metadata={"shared": UNDRAWN})
    evidence: dict[Digest, NodeId] = field(default_factory=lambda: NOTHING)
    """Evidence digests of fraudulent verdicts, and who gave them."""
    outcome: Outcome | None = None
    judged: Outcome | None = None
    """What a majority found; None where no validator was drawn, or they reached no decision."""
    scored: frozenset[NodeId] = frozenset()
    """Validators that lost score over it."""
    inspected: dict[NodeId, LogPosition] = field(default_factory=lambda: NOTHING)
    """Inspectors that have read it again, and where what they found stands."""
    refuted: frozenset[NodeId] = frozenset()
    """Validators that judged it and had not read it."""
    penalised: frozenset[NodeId] = frozenset()
    """Validators that lost stake over it to a court on a chain, which takes it once."""
    ruling: Outcome | None = None
    """What an inspector decided where validators could not; of the appeal while a slash is open."""
    rulings: dict[NodeId, LogPosition] = field(default_factory=lambda: NOTHING)
    """Inspectors that have decided about it, and where."""
    is_refuting: bool = False
    """The outcome refutes the verdicts against it: a clear lead, a ruling or an appeal decided it."""
    slashed: bool = False
    credited: bool = False
    trained_into: Step | None = None

    @property
    def slots(self) -> range:
        return range(self.first_slot, self.first_slot + self.slots_total)

    @property
    def is_closed(self) -> bool:
        """Only its pay, a finding or an appeal can still come: a start need not look at it."""
        return self.credited and self.outcome is Outcome.ACCEPT and not self.slashed

    @property
    def label(self) -> NodeId:
        return self.node


@dataclass(slots=True)
class SlashState:
    """A proposed slash, until it is executed or overturned."""

    node: NodeId
    owner: NodeId
    appeal_until_ms: int
    judgement_ms: int
    long_stop_ms: int
    bond_nano: int
    slash_to: SlashDestination
    rounds_before: int
    """Rounds up to this one led to the slash; the ones after it decide the appeal."""
    appealed_at_ms: int | None = None


@dataclass(slots=True)
class FindingState:
    """A claim that an accepted submission is fraudulent, until judges dismiss it or the slash that follows ends."""

    finder: NodeId
    owner: NodeId
    """Of the finder: no validator of either judges it."""
    position: LogPosition
    judged_until_ms: int
    """An undecided finding may be dismissed then."""
    rounds_before: int
    """Rounds from this one on decide the finding."""
    units: int
    """Of the submission, held back from pay."""
    is_upheld: bool = False


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
    settled_ms: int = 0
    """When the last one of them was settled."""
    pending: int = 0
    """Open leases, and submissions without an outcome."""
    paid: bool = False

    def free(self, slots: range, lease: int) -> None:
        """Give back the slots that this lease still holds."""
        for slot in slots:
            if self.held.get(slot) == lease:
                del self.held[slot]


@dataclass(frozen=True, slots=True)
class CandidateSpan:
    """Two entries: a validator became a candidate with the first, and was suspended or banned with the second."""

    joined: int
    ended: int


@dataclass(slots=True)
class RunState:
    """One training run."""

    terms: RunTerms
    status: RunStatus = RunStatus.ACTIVE
    checkpoints: dict[Step, CheckpointState] = field(default_factory=dict)
    awaiting_beacon: list[Step] = field(default_factory=list)
    latest: int = -1
    """Newest published step; -1 before the first."""
    lineage: OpenLineage | None = None
    """What the next checkpoint is trained on, as far as it is listed."""
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
    submissions: PackedMapping[Digest, SubmissionState] = field(default_factory=PackedMapping)
    unsettled: set[Digest] = field(default_factory=set)
    """Those without an outcome."""
    slashes: dict[Digest, SlashState] = field(default_factory=dict)
    findings: dict[Digest, FindingState] = field(default_factory=dict)
    dismissed: dict[Digest, tuple[NodeId, ...]] = field(default_factory=dict)
    """Whose findings about a submission judges did not agree with."""
    awaiting_head: list[Digest] = field(default_factory=list)
    """Submissions whose next draw waits for a head."""
    carried_units: Counter[StakeKey] = field(default_factory=Counter)
    carried_upheld: Counter[StakeKey] = field(default_factory=Counter)
    """What was earned after its step was paid; the next payout takes it along."""
    debts: Counter[StakeKey] = field(default_factory=Counter)
    """Verdicts that stood and are not paid, since others of the validator were refuted."""
    validators: dict[NodeId, int] = field(default_factory=dict)
    """Who may be drawn, and the entry with which each joined; in that order."""
    suspended: dict[NodeId, str] = field(default_factory=dict)
    """Nodes that get no work in this run, and why. Other runs do not see it."""
    former: dict[NodeId, tuple[CandidateSpan, ...]] = field(default_factory=dict)
    """When validators that still qualify were candidates, until the coordinator suspended or banned them."""
    records: dict[NodeId, RunRecord] = field(default_factory=dict)
    """Of the nodes that had a submission settled."""

    def end_candidacy(self, node: NodeId, index: int, *, is_by_coordinator: bool) -> None:
        """Take a validator out of later draws; out of those whose head is older only if the coordinator had no part."""
        joined = self.validators.pop(node, None)
        if joined is not None and is_by_coordinator:
            kept = self.former.get(node, ())[-(CANDIDATE_SPANS_KEPT - 1) :]
            self.former[node] = (*kept, CandidateSpan(joined, index))

    def list_candidates(self, size: int) -> dict[NodeId, int]:
        """Who may be drawn with a head of this size, and the entry with which each joined.

        Among them are those that were candidates at the head and were suspended after it: the coordinator may have
        known the draw by then.
        """
        suspended = {
            node: span.joined
            for node, spans in self.former.items()
            for span in spans
            if span.joined < size <= span.ended
        }
        return {**self.validators, **suspended} if suspended else self.validators

    def get_record(self, node: NodeId) -> RunRecord:
        return self.records.get(node, RunRecord())

    def release_held(self, node: NodeId) -> None:
        """Pay what is no longer held with its step, or with the next one if that was paid."""
        for (owner, number), units in self.records[node].take_released().items():
            self.get_earned(number)[(owner, node)] += units

    def get_earned(self, number: Step) -> Counter[StakeKey]:
        """Where units of a step count: in the step, or carried to the next payout if it was paid."""
        step = self.steps.get(number)
        return self.carried_units if step is None or step.paid else step.units

    def submission(self, name: Digest) -> SubmissionState:
        if name not in self.submissions:
            raise RemoteError("submission", f"{name} is not known in this run")
        return self.submissions[name]

    def get_terms(self, submission: SubmissionState) -> RunTerms:
        return self.steps[submission.step].terms

    def list_recent(self) -> list[tuple[Digest, SubmissionState]]:
        """Submissions of the steps that may be leased or trained on, in the order of the log."""
        first = min(self.oldest, self.latest - self.terms.lag_max)
        names = [name for step, known in self.steps.items() if step >= first for name in known.submissions]
        self.submissions.unpack(names)
        return sorted(((name, self.submissions[name]) for name in names), key=lambda each: each[1].position.index)

    def await_head(self, name: Digest, index: int) -> None:
        """The next head that is noted fixes the round of the submission's next draw. `index`: the entry that asks."""
        submission = self.submissions[name]
        submission.randomness, submission.awaits_since, submission.candidates_before = None, index, 0
        self.awaiting_head.append(name)

    def get_first_round(self, name: Digest) -> int:
        """The first round that counts now: the ones before it led to what is judged again."""
        review = self.slashes.get(name) or self.findings.get(name)
        return review.rounds_before if review else 0

    def is_judged_again(self, name: Digest) -> bool:
        """Whether an appeal or a finding about a settled submission is to be decided."""
        slash = self.slashes.get(name)
        if slash is not None:
            return slash.appealed_at_ms is not None
        return self.get_open_finding(name) is not None

    def get_open_finding(self, name: Digest) -> FindingState | None:
        """The finding about a submission that is not decided yet."""
        finding = self.findings.get(name)
        return None if finding is None or finding.is_upheld else finding

    def slash(self, name: Digest) -> SlashState:
        if name not in self.slashes:
            raise RemoteError("submission", f"{name} has no open slash")
        return self.slashes[name]


@dataclass(slots=True)
class PendingRound:
    """A round of the randomness chain that noted heads have fixed and that is not in the log yet."""

    head_size: int = 0
    """Of the newest head that waits for it."""
    witnesses: dict[RunId, tuple[NodeId, ...]] = field(default_factory=dict)
    """Validators that are asked to cosign that head or a later one, of each run with submissions in it."""
    submissions: list[tuple[RunId, Digest]] = field(default_factory=list)
    checkpoints: list[tuple[RunId, Step]] = field(default_factory=list)


@dataclass(slots=True)
class LedgerState:
    """Everything."""

    coordinator: NodeId | None = None
    rules: RulesPlan = FIRST_RULES
    domain: Domain = EMBEDDED_DOMAIN
    log_key: str = ""
    key_rotations: list[KeyRotation] = field(default_factory=list)
    """Of the log's and the coordinator's key, oldest first: at most KEY_ROTATIONS_MAX."""
    unbonding_ms: int = 0
    randomness: RandomnessChain = QUICKNET
    draw_margin_ms: int = 0
    pending_rounds: dict[int, PendingRound] = field(default_factory=dict)
    """By number; heads are noted in the order of time, so the first is the oldest."""
    noted_heads: dict[int, Digest] = field(default_factory=dict)
    """Roots by size, from the head of the oldest pending round on: what a cosignature may be of."""
    newest_randomness: Digest = NO_DIGEST
    """Of the last round in the log."""
    ticker: Ticker = DEFAULT_TICKER
    snapshot_size: int = 0
    """Entries that the newest noted snapshot covers."""
    restored_size: int = 0
    """Entries that the newest restore found; 0: the log was never restored."""
    restores: int = 0
    frontier: Frontier = field(default_factory=Frontier)
    at_ms: int = 0
    sequences: dict[NodeId, int] = field(default_factory=dict)
    funds: Funds = field(default_factory=Funds)
    references: set[Digest] = field(default_factory=set)
    nodes: dict[NodeId, NodeState] = field(default_factory=dict)
    owners: dict[NodeId, NodeId] = field(default_factory=dict)
    """Of every node; its own address without a delegation."""
    revoked_ms: dict[StakeKey, int] = field(default_factory=dict)
    """When an owner took back what it had signed for a node; forgotten after a delegation's life."""
    owner_until_ms: dict[NodeId, int] = field(default_factory=dict)
    """When an owner's allowance of entries is whole again; see limits.py. Without those whose allowance is."""
    free_until_ms: int = 0
    """When the budget of free entries is whole again."""
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

    def note_head(self, root: Digest, at_ms: int) -> None:
        """Fix the round for the checkpoints and submissions that wait for a head: the first after the margin."""
        number = self.randomness.first_round_from(at_ms + self.draw_margin_ms)
        pending = self.pending_rounds.setdefault(number, PendingRound())
        pending.head_size = self.size
        self.noted_heads[self.size] = root
        for name, run in self.runs.items():
            pending.submissions += [(name, submission) for submission in run.awaiting_head]
            pending.checkpoints += [(name, step) for step in run.awaiting_beacon]
            if run.awaiting_head:
                pending.witnesses[name] = draw_witnesses(self.newest_randomness, name, sorted(run.validators))
            run.awaiting_head.clear()
            run.awaiting_beacon.clear()

    def remove_pending_round(self, number: int) -> PendingRound:
        """A round is in the log; heads that no other round waits for are forgotten."""
        pending = self.pending_rounds.pop(number)
        oldest = next(iter(self.pending_rounds.values()), None)
        for size in [size for size in self.noted_heads if oldest is None or size < oldest.head_size]:
            del self.noted_heads[size]
        return pending

    def get_version_min(self, terms: RunTerms, at_ms: int) -> int:
        """The lowest version that may work on a run: what its terms need, and at least the log's rules."""
        return max(terms.get_version_min(at_ms), self.rules.get_version(at_ms))

    def list_owners(self, node: NodeId, at_ms: int) -> list[NodeId]:
        """A node's owner, and those that it left within the unbonding delay."""
        past = self.nodes[node].past_owners
        recent = [owner for owner, left_ms in past.items() if at_ms < left_ms + self.unbonding_ms]
        return [self.owners[node], *recent]

    def change_owner(self, node: NodeId, owner: NodeId, at_ms: int) -> None:
        """Give a node another owner, and remember the one it leaves."""
        left, past = self.owners[node], self.nodes[node].past_owners
        if left != owner:
            past[left] = at_ms
        for former in [each for each, left_ms in past.items() if at_ms >= left_ms + self.unbonding_ms]:
            del past[former]
        self.owners[node] = owner

    def can_validate(self, node: NodeId, terms: RunTerms) -> bool:
        """Whether a node may be drawn under these terms, once it is registered for the run."""
        return self.nodes[node].status is NodeStatus.ACTIVE and self.is_equipped(node, terms)

    def is_equipped(self, node: NodeId, terms: RunTerms) -> bool:
        """Whether a node has all that validating takes, whatever the coordinator says about it."""
        known = self.nodes[node]
        return (
            Role.VALIDATOR in known.roles
            and bool(known.witness_key)
            and known.version >= terms.version_min
            and self.get_stake(node) >= terms.stake_min_nano
        )

    def is_registered_fit(self, name: RunId, node: NodeId) -> bool:
        """Whether a node is registered for the run, equipped and not excluded from it."""
        run = self.runs[name]
        is_wanted = name in self.nodes[node].runs and not run.get_record(node).restake_nano
        return is_wanted and self.is_equipped(node, run.terms)

    def refresh_validator(self, node: NodeId, *, is_by_coordinator: bool = False) -> None:
        """Put a node into, or take it out of, each run's list of who may be drawn."""
        for name, run in self.runs.items():
            is_active = self.nodes[node].status is NodeStatus.ACTIVE and node not in run.suspended
            is_fit = self.is_registered_fit(name, node)
            if is_active and is_fit:
                run.validators.setdefault(node, self.size)
            else:
                run.end_candidacy(node, self.size, is_by_coordinator=is_by_coordinator)
            if not is_fit:
                run.former.pop(node, None)
