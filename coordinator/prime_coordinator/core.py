"""The coordinator's decisions, all of them: requests and the clock in, entries and replies out. Pure.

The server, the simulator and the tests drive this same object. It is made from a ledger, so a restart is: replay the
log, make a new one. What it decides takes effect on disk when the server has written `scribe.drain()`.
"""

from typing import Any

from prime_coordinator.admission import Admission
from prime_coordinator.attendance import Attendance
from prime_coordinator.audits import AuditDesk
from prime_coordinator.conduct import Conduct
from prime_coordinator.constants import RETRY_MS_MAX
from prime_coordinator.inspections import InspectionDesk
from prime_coordinator.intake import Expected, expect
from prime_coordinator.leases import LeaseDesk, refuse
from prime_coordinator.liveness import Liveness, Phase
from prime_coordinator.own_secret import make_secret
from prime_coordinator.payouts import PayDesk
from prime_coordinator.plants import Plants
from prime_coordinator.recess import Recess
from prime_coordinator.repeats import find_repeat
from prime_coordinator.reputation import Reputation
from prime_coordinator.scribe import Scribe
from prime_coordinator.standing import Facts, Row, get_row
from prime_coordinator.tempo import TempoConfig
from prime_protocol.constants import AUDITS_TOLD_MAX
from prime_protocol.entries import (
    Appealed,
    CheckpointPublished,
    DelegationRevoked,
    Deposited,
    HeadNoted,
    Inspected,
    LeaseEnded,
    NodeStatus,
    NodeStatusSet,
    PlantRevealed,
    RunCreated,
    RunFunded,
    RunStatusSet,
    RunUpdated,
    Submitted,
    VerdictGiven,
)
from prime_protocol.envelope import Letter
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NodeId, RunId, Step
from prime_protocol.ledger import Ledger
from prime_protocol.messages import (
    Activity,
    Command,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    Logged,
    StepFacts,
    StepWanted,
    Weights,
)
from prime_protocol.receipts import receipt_id
from prime_protocol.signing import WalletKey
from prime_protocol.state import LeaseState, RunState, State

ORDERS = (Deposited, NodeStatusSet, RunCreated, RunFunded, RunStatusSet, RunUpdated)
"""Entries of the coordinator that an operator asks for. All others it writes by itself, when they are due. A run is
funded out of the coordinator's own balance, as any account may do."""

COMMANDS = {NodeStatus.ACTIVE: Command.NONE, NodeStatus.DRAINED: Command.DRAIN, NodeStatus.BANNED: Command.STOP}


class Core:
    """One coordinator."""

    def __init__(
        self,
        key: WalletKey,
        ledger: Ledger,
        *,
        now_ms: int,
        plants: Plants | None = None,
        tempo: TempoConfig | None = None,
        inspect_share: int = 0,
    ) -> None:
        plants = plants or Plants.of(key)
        self._tempo = tempo or TempoConfig()
        self.scribe = Scribe(key, ledger)
        self.liveness = Liveness()
        self.conduct = Conduct()
        self.admission = Admission(ledger.state)
        self.recess = Recess(self.scribe)
        self.leases = LeaseDesk(self.scribe, self.conduct, plants, now_ms)
        attendance = Attendance(self.recess, self.liveness, now_ms)
        reputation = Reputation(self.recess, self.scribe)
        secret = make_secret(key, "inspection secret/1")
        self.inspections = InspectionDesk(self.scribe, reputation, secret, inspect_share)
        self.audits = AuditDesk(self.scribe, attendance, reputation, plants, self.inspections, now_ms)
        self.payouts = PayDesk(self.scribe)
        self.head = b""
        """The newest signed head that is on disk, for replies; the server sets it."""
        self.head_size = 0
        self._head_ms = 0
        self._told_weights: dict[RunId, Weights] = {}

    @property
    def state(self) -> State:
        return self.scribe.state

    # --- Requests ---------------------------------------------------------------------------------------------------

    def beat(self, node: NodeId, run: RunId, beat: Heartbeat, now_ms: int) -> HeartbeatReply:
        """Note that a node is there, and tell it all it needs."""
        state = self.state
        now_ms = max(now_ms, state.at_ms)
        known = state.node(node)
        run_state = self._run(run)
        terms = run_state.terms
        self.liveness.beat(node, beat.activity, beat.checkpoint_step, now_ms)
        self.recess.heard(node, known, now_ms)
        is_behind = known.version < terms.version_next and now_ms < terms.upgrade_by_ms
        return HeartbeatReply(
            now_ms=now_ms,
            next_beat_ms=self._tempo.beat_ms,
            head=self.head if self.head_size > beat.head_size else b"",
            weights=self._weights(run, run_state),
            lag_max=terms.lag_max,
            leases=self.leases.open_leases(run, node),
            audits=(*self.audits.tasks(node, run), *self.inspections.tasks(node, run))[:AUDITS_TOLD_MAX],
            command=COMMANDS[known.status],
            version_min=terms.version_at(now_ms),
            upgrade_by_ms=terms.upgrade_by_ms if is_behind else 0,
        )

    def request_lease(self, node: NodeId, run: RunId, request: LeaseRequest, now_ms: int) -> LeaseReply:
        now_ms = self._clock(now_ms)
        known = self.state.node(node)
        self._run(run)
        self.liveness.heard(node, request.checkpoint_step, now_ms)
        self.recess.heard(node, known, now_ms)
        row = self.standing(node, run, now_ms)
        if not row.works:
            wait_ms = self.conduct.wait_ms(node, now_ms)
            return refuse(f"you are {row.standing}, until {row.way_out}", wait_ms or RETRY_MS_MAX)
        return self.leases.request(run, node, request, now_ms)

    def take(self, letter: Letter, entry: Any, frame: bytes, *, address_group: str, now_ms: int) -> Logged:
        """Log an entry that somebody sent, and let it have its consequences. Sent again, it is answered again."""
        now_ms = self._clock(now_ms)
        repeat = self.repeated(letter, entry)
        if repeat is not None:
            return repeat
        sender = letter.sender
        self.admission.check(sender, entry, address_group, now_ms)
        owned = entry.node if isinstance(entry, DelegationRevoked) else sender
        old_owner = self.state.owners.get(owned)
        lease = self._ending_lease(letter.run, entry)
        logged = self.scribe.take(letter, frame, now_ms)
        self.admission.logged(owned, old_owner, address_group, now_ms)
        if letter.run is not None:
            self._follow(letter.run, sender, entry, lease, now_ms)
        return logged

    def repeated(self, letter: Letter, entry: Any) -> Logged | None:
        """Where this very entry stands in the log already; None where it is new. Ask before a file is looked at."""
        return find_repeat(self.state, letter, entry)

    def order(self, entry: Any, run: RunId | None, now_ms: int) -> Logged:
        """Log an entry on the operator's behalf; RemoteError if a rule refuses it."""
        assert isinstance(entry, ORDERS), f"{type(entry).__name__} is not the operator's to write"
        logged = self.scribe.order(entry, run, self._clock(now_ms))
        if isinstance(entry, NodeStatusSet) and entry.status is NodeStatus.BANNED:
            self.leases.distrust(entry.node)
        if run is not None:
            self.payouts.stir(run)
        return logged

    def appeal(self, entry: Appealed, run: RunId, now_ms: int) -> None:
        """Log an appeal that was made where value is kept; RemoteError if a rule refuses it."""
        self.scribe.order(entry, run, self._clock(now_ms))
        self.audits.wake(run, entry.submission)

    def _ending_lease(self, run: RunId | None, entry: Any) -> LeaseState | None:
        """The lease that an entry ends, read before the ledger forgets it."""
        if not isinstance(entry, LeaseEnded) or run is None or run not in self.state.runs:
            return None
        return self.state.runs[run].leases.get(entry.lease)

    def _follow(self, run: RunId, sender: NodeId, entry: Any, lease: LeaseState | None, now_ms: int) -> None:
        match entry:
            case CheckpointPublished():
                self.leases.published(run, now_ms)
                self.payouts.stir(run)
            case Submitted(receipt=receipt):
                name = receipt_id(receipt)
                self.leases.submitted(run, self.state.runs[run].submissions[name])
                self.audits.wake(run, name)
            case VerdictGiven(receipt=verdict):
                self.audits.judged(sender, run, verdict.submission)
            case Inspected():
                self.inspections.inspected(sender, run, entry, now_ms)
            case Appealed(submission=name) | PlantRevealed(submission=name):
                self.audits.wake(run, name)
            case LeaseEnded(lease=number):
                assert lease is not None
                self.leases.ended(run, number, lease, now_ms)
                self.payouts.stir(run)

    # --- Files ------------------------------------------------------------------------------------------------------

    def expect_file(self, sender: NodeId, run: RunId, entry: Submitted, now_ms: int) -> Expected:
        """What the file of a submission must answer to; RemoteError where it need not even be read."""
        expected = expect(run, self._run(run), entry.receipt)
        late_ms = self._clock(now_ms) - self.state.runs[run].leases[entry.receipt.lease].deadline_ms
        if late_ms > 0:
            raise RemoteError("receipt.lease", f"{entry.receipt.lease} ended {late_ms} ms ago")
        if sender != expected.header.node:
            raise RemoteError("receipt.node", f"is {sender}, the lease is {expected.header.node}'s")
        self.conduct.check_file(run, entry.receipt.lease)
        return expected

    def file_refused(self, sender: NodeId, run: RunId, lease: int, now_ms: int) -> None:
        """Intake found a lease's file wanting. Its node may send a better one, but not for ever."""
        if not self.conduct.bad_file(sender, run, lease, self._clock(now_ms)):
            self.leases.distrust(sender)

    # --- The clock --------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Everything that time makes due."""
        now_ms = self._clock(now_ms)
        size = self.state.size
        for node, phase in self.liveness.tick(now_ms):
            if phase is Phase.LOST:
                self.leases.distrust(node)
        self.leases.tick(now_ms)
        self.inspections.tick(now_ms)
        self.audits.tick(now_ms)
        if self._note_head(now_ms):
            self.audits.tick(now_ms)
        for run, submission in self.audits.just_settled:
            self.leases.settled(run, submission, now_ms)
        for run, submission in self.audits.just_credited:
            self.leases.credited(run, submission)
        self.audits.just_settled.clear()
        self.audits.just_credited.clear()
        if self.state.size > size:
            # An outcome or a lease that ran out may have been the last that a step waited for.
            for name in self.state.runs:
                self.payouts.stir(name)
        self.payouts.tick(now_ms)

    def _note_head(self, now_ms: int) -> bool:
        """Where a beacon or a draw waits for one, and not too often."""
        is_wanted = self.audits.without_head or any(run.without_beacon for run in self.state.runs.values())
        if not is_wanted or now_ms - self._head_ms < self._tempo.head_ms:
            return False
        self._head_ms = now_ms
        self.scribe.write(HeadNoted(root=self.state.frontier.root()), None, now_ms)
        self.audits.head_noted()
        return True

    def _clock(self, now_ms: int) -> int:
        """The log's time never runs backwards, and nothing is decided by another one."""
        return max(now_ms, self.state.at_ms)

    # --- Reading ----------------------------------------------------------------------------------------------------

    def standing(self, node: NodeId, run: RunId, now_ms: int) -> Row:
        """What a node is to a run, and the way out of it."""
        state, presence = self.state, self.liveness.get(node)
        facts = Facts(
            node=state.node(node),
            terms=self._run(run).terms,
            stake_nano=state.stake_of(node),
            is_delegated=state.is_delegated(node, now_ms),
            phase=presence.phase if presence else Phase.LOST,
            activity=presence.activity if presence else Activity.IDLE,
            wait_ms=self.conduct.wait_ms(node, now_ms),
            is_measured=self.leases.speeds.is_measured(node),
            now_ms=now_ms,
        )
        return get_row(facts)

    def tell_step(self, name: RunId, wanted: StepWanted) -> StepFacts:
        """What the log says about the work of a step."""
        run = self._run(name)
        own = run.checkpoints.get(wanted.step)
        if own is None:
            raise RemoteError("step", f"{wanted.step} has no checkpoint; the newest step is {run.latest}")
        step, told = wanted.step, own
        if wanted.root not in (None, own.root):
            known = reversed(run.checkpoints.items())
            step, told = next(((number, each) for number, each in known if each.root == wanted.root), (step, own))
            if told is own:
                raise RemoteError("root", f"{wanted.root} is no checkpoint of {name}")
        work = run.steps.get(wanted.step)
        return StepFacts(
            terms=work.terms if work else run.terms,
            beacon=own.beacon,
            weights=Weights(step=step, root=told.root, manifest=told.manifest, beacon=told.beacon),
        )

    def _run(self, name: RunId) -> RunState:
        if name not in self.state.runs:
            raise RemoteError("run", f"{name} was not created here")
        return self.state.runs[name]

    def _weights(self, name: RunId, run: RunState) -> Weights | None:
        """Of the newest checkpoint; made once, since every beat tells them."""
        step = Step(run.latest)
        checkpoint = run.checkpoints.get(step)
        if checkpoint is None:
            return None
        told = self._told_weights.get(name)
        if told is None or told.step != step or told.beacon is not checkpoint.beacon:
            told = Weights(step=step, root=checkpoint.root, manifest=checkpoint.manifest, beacon=checkpoint.beacon)
            self._told_weights[name] = told
        return told
