"""The coordinator's decisions: requests and the time in, entries and replies out. Pure.

The app, the simulator and the tests drive this same object. It is built from a ledger, so a restart is: replay the log,
build a new one. A decision takes effect once the app has written `entry_writer.drain()` to disk.
"""

from typing import Any

from prime_coordinator.audits.scheduler import AuditScheduler
from prime_coordinator.audits.validators import (
    InspectionScheduler,
    MissedVerdicts,
    Suspensions,
    ValidatorReputation,
    derive_secret,
)
from prime_coordinator.constants import RETRY_MS_MAX
from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.intake.checks import Admission, ExpectedSubmission, find_repeat, get_expected_submission
from prime_coordinator.intervals import IntervalsConfig
from prime_coordinator.scheduling.eligibility import (
    Backoff,
    EligibilityRule,
    Liveness,
    NodeFacts,
    NodePhase,
    get_eligibility,
)
from prime_coordinator.scheduling.leases import LeaseScheduler, refuse_lease
from prime_protocol.constants import AUDITS_LISTED_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    Appealed,
    CheckpointPublished,
    DelegationRevoked,
    Deposited,
    HeadNoted,
    Inspected,
    LeaseEnded,
    NodeStatus,
    NodeStatusSet,
    PaidOut,
    RunCreated,
    RunFunded,
    RunStatus,
    RunStatusSet,
    RunUpdated,
    Submitted,
    VerdictGiven,
)
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.state import LeaseState, LedgerState, RunState
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import NodeId, RunId, Step
from prime_protocol.wire.messages import (
    CheckpointRef,
    EntryReply,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeActivity,
    NodeCommand,
    StepReply,
    StepRequest,
)
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import compute_receipt_id


class PayoutScheduler:
    """Pays a step as soon as it is over and has no open work.

    Only runs marked dirty are checked, so an idle network costs nothing.
    """

    def __init__(self, entry_writer: EntryWriter) -> None:
        self._entry_writer = entry_writer
        self._dirty = set(entry_writer.state.runs)

    def mark_dirty(self, run: RunId) -> None:
        """Check this run at the next tick: something ended, or a new step began."""
        self._dirty.add(run)

    def tick(self, now_ms: int) -> None:
        stirred, self._dirty = self._dirty, set()
        for name in sorted(stirred):
            self._pay(name, now_ms)

    def _pay(self, name: RunId, now_ms: int) -> None:
        run = self._entry_writer.state.runs[name]
        is_closed = run.status is RunStatus.CLOSED
        if is_closed and run.slashes:
            return  # the slashes decide the last payments
        for number, step in sorted(run.steps.items()):
            is_over = number < run.latest or is_closed
            if is_over and not step.paid and not step.pending:
                self._entry_writer.append_own(PaidOut(step=number), name, now_ms)


OPERATOR_ENTRIES = (Deposited, NodeStatusSet, RunCreated, RunFunded, RunStatusSet, RunUpdated)
"""Entries that the operator requests. The coordinator appends all its other entries by itself, when they are due. A run
is funded from the coordinator's own balance, as any account may do."""

COMMANDS = {
    NodeStatus.ACTIVE: NodeCommand.NONE,
    NodeStatus.DRAINED: NodeCommand.DRAIN,
    NodeStatus.BANNED: NodeCommand.STOP,
}


class Core:
    """One coordinator."""

    def __init__(
        self,
        key: WalletKey,
        ledger: Ledger,
        *,
        now_ms: int,
        intervals: IntervalsConfig | None = None,
        inspect_share: int = 0,
    ) -> None:
        self._intervals = intervals or IntervalsConfig()
        self.entry_writer = EntryWriter(key, ledger)
        self.liveness = Liveness()
        self.backoff = Backoff()
        self.admission = Admission(ledger.state)
        self.suspensions = Suspensions(self.entry_writer)
        self.leases = LeaseScheduler(self.entry_writer, self.backoff, now_ms)
        missed_verdicts = MissedVerdicts(self.suspensions, self.liveness, now_ms)
        reputation = ValidatorReputation(self.suspensions, self.entry_writer)
        secret = derive_secret(key, "inspection secret/1")
        self.inspections = InspectionScheduler(self.entry_writer, reputation, secret, inspect_share)
        self.audits = AuditScheduler(self.entry_writer, missed_verdicts, reputation, self.inspections, now_ms)
        self.payouts = PayoutScheduler(self.entry_writer)
        self.head = b""
        """The newest signed head on disk, for replies; the app sets it."""
        self.head_size = 0
        self._head_ms = 0
        self._weights_cache: dict[RunId, CheckpointRef] = {}

    @property
    def state(self) -> LedgerState:
        return self.entry_writer.state

    # --- Requests ---------------------------------------------------------------------------------------------------

    def handle_heartbeat(self, node: NodeId, run: RunId, heartbeat: Heartbeat, now_ms: int) -> HeartbeatReply:
        """Record a heartbeat; the reply has everything that the node needs."""
        state = self.state
        now_ms = max(now_ms, state.at_ms)
        known = state.node(node)
        run_state = self._run(run)
        terms = run_state.terms
        self.liveness.beat(node, heartbeat.activity, heartbeat.checkpoint_step, now_ms)
        self.suspensions.resume_if_expired(node, known, now_ms)
        is_behind = known.version < terms.version_next and now_ms < terms.upgrade_by_ms
        return HeartbeatReply(
            now_ms=now_ms,
            next_heartbeat_ms=self._intervals.heartbeat_ms,
            head=self.head if self.head_size > heartbeat.head_size else b"",
            weights=self._weights(run, run_state),
            lag_max=terms.lag_max,
            leases=self.leases.open_leases(run, node),
            audits=(*self.audits.tasks(node, run), *self.inspections.tasks(node, run))[:AUDITS_LISTED_MAX],
            command=COMMANDS[known.status],
            version_min=terms.get_version_min(now_ms),
            upgrade_by_ms=terms.upgrade_by_ms if is_behind else 0,
        )

    def request_lease(self, node: NodeId, run: RunId, request: LeaseRequest, now_ms: int) -> LeaseReply:
        now_ms = self._log_time(now_ms)
        known = self.state.node(node)
        self._run(run)
        self.liveness.record_request(node, request.checkpoint_step, now_ms)
        self.suspensions.resume_if_expired(node, known, now_ms)
        rule = self.get_eligibility(node, run, now_ms)
        if not rule.is_eligible:
            wait_ms = self.backoff.wait_ms(node, now_ms)
            return refuse_lease(f"you are {rule.eligibility}, until {rule.remedy}", wait_ms or RETRY_MS_MAX)
        return self.leases.request(run, node, request, now_ms)

    def append_entry(
        self, payload: Payload, entry: Any, frame: bytes, *, address_group: str, now_ms: int
    ) -> EntryReply:
        """Append an entry that a node sent, and apply its consequences. A repeat gets the same reply again."""
        now_ms = self._log_time(now_ms)
        repeat = self.find_repeat(payload, entry)
        if repeat is not None:
            return repeat
        sender = payload.sender
        self.admission.check(sender, entry, address_group, now_ms)
        owned = entry.node if isinstance(entry, DelegationRevoked) else sender
        old_owner = self.state.owners.get(owned)
        lease = self._ending_lease(payload.run, entry)
        logged = self.entry_writer.append_received(payload, frame, now_ms)
        self.admission.logged(owned, old_owner, address_group, now_ms)
        if payload.run is not None:
            self._apply_consequences(payload.run, sender, entry, lease, now_ms)
        return logged

    def find_repeat(self, payload: Payload, entry: Any) -> EntryReply | None:
        """The position of this same entry if it is already logged; None if it is new. Call before checking a file."""
        return find_repeat(self.state, payload, entry)

    def append_operator_entry(self, entry: Any, run: RunId | None, now_ms: int) -> EntryReply:
        """Append an entry for the operator; RemoteError if a rule refuses it."""
        assert isinstance(entry, OPERATOR_ENTRIES), f"{type(entry).__name__} is not an operator entry"
        logged = self.entry_writer.append_requested(entry, run, self._log_time(now_ms))
        if isinstance(entry, NodeStatusSet) and entry.status is NodeStatus.BANNED:
            self.leases.mark_leases_suspect(entry.node)
        if run is not None:
            self.payouts.mark_dirty(run)
        return logged

    def append_chain_appeal(self, entry: Appealed, run: RunId, now_ms: int) -> None:
        """Append an appeal that was made on the chain; RemoteError if a rule refuses it."""
        self.entry_writer.append_requested(entry, run, self._log_time(now_ms))
        self.audits.mark_ready(run, entry.submission)

    def _ending_lease(self, run: RunId | None, entry: Any) -> LeaseState | None:
        """The lease that an entry ends, read before the ledger drops it."""
        if not isinstance(entry, LeaseEnded) or run is None or run not in self.state.runs:
            return None
        return self.state.runs[run].leases.get(entry.lease)

    def _apply_consequences(
        self, run: RunId, sender: NodeId, entry: Any, lease: LeaseState | None, now_ms: int
    ) -> None:
        match entry:
            case CheckpointPublished():
                self.leases.record_checkpoint(run, now_ms)
                self.payouts.mark_dirty(run)
            case Submitted(receipt=receipt):
                name = compute_receipt_id(receipt)
                self.leases.record_submission(run, self.state.runs[run].submissions[name])
                self.audits.mark_ready(run, name)
            case VerdictGiven(receipt=verdict):
                self.audits.record_verdict(sender, run, verdict.submission)
            case Inspected():
                self.inspections.record_inspection(sender, run, entry, now_ms)
            case Appealed(submission=name):
                self.audits.mark_ready(run, name)
            case LeaseEnded(lease=number):
                assert lease is not None
                self.leases.record_end(run, number, lease, now_ms)
                self.payouts.mark_dirty(run)

    # --- Files ------------------------------------------------------------------------------------------------------

    def get_expected_submission(self, sender: NodeId, run: RunId, entry: Submitted, now_ms: int) -> ExpectedSubmission:
        """What the file of a submission must satisfy; RemoteError if it need not be read at all."""
        expected = get_expected_submission(run, self._run(run), entry.receipt)
        late_ms = self._log_time(now_ms) - self.state.runs[run].leases[entry.receipt.lease].deadline_ms
        if late_ms > 0:
            raise RemoteError("receipt.lease", f"{entry.receipt.lease} ended {late_ms} ms ago")
        if sender != expected.header.node:
            raise RemoteError("receipt.node", f"is {sender}, the lease is {expected.header.node}'s")
        self.backoff.check_file(run, entry.receipt.lease)
        return expected

    def record_refused_file(self, sender: NodeId, run: RunId, lease: int, now_ms: int) -> None:
        """Intake refused the file of a lease. The node may send a better one, a limited number of times."""
        if not self.backoff.record_bad_file(sender, run, lease, self._log_time(now_ms)):
            self.leases.mark_leases_suspect(sender)

    # --- Time -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do everything that is due at this time."""
        now_ms = self._log_time(now_ms)
        size = self.state.size
        for node, phase in self.liveness.tick(now_ms):
            if phase is NodePhase.LOST:
                self.leases.mark_leases_suspect(node)
        self.leases.tick(now_ms)
        self.inspections.tick(now_ms)
        self.audits.tick(now_ms)
        if self._note_head(now_ms):
            self.audits.tick(now_ms)
        for run, submission in self.audits.just_settled:
            self.leases.record_settlement(run, submission, now_ms)
        for run, submission in self.audits.just_credited:
            self.leases.record_credit(run, submission)
        self.audits.just_settled.clear()
        self.audits.just_credited.clear()
        if self.state.size > size:
            # An outcome or an expired lease may have been the last thing that a step waited for.
            for name in self.state.runs:
                self.payouts.mark_dirty(name)
        self.payouts.tick(now_ms)

    def _note_head(self, now_ms: int) -> bool:
        """Note a head if a beacon or a draw waits for one, but not too often."""
        is_wanted = self.audits.waiting_for_head or any(run.awaiting_beacon for run in self.state.runs.values())
        if not is_wanted or now_ms - self._head_ms < self._intervals.head_ms:
            return False
        self._head_ms = now_ms
        self.entry_writer.append_own(HeadNoted(root=self.state.frontier.root()), None, now_ms)
        self.audits.head_noted()
        return True

    def _log_time(self, now_ms: int) -> int:
        """The time of the log, which never runs backwards; every decision uses it."""
        return max(now_ms, self.state.at_ms)

    # --- Reading ----------------------------------------------------------------------------------------------------

    def get_eligibility(self, node: NodeId, run: RunId, now_ms: int) -> EligibilityRule:
        """Whether a node gets work in a run, why, and what would change it."""
        state, presence = self.state, self.liveness.get(node)
        facts = NodeFacts(
            node=state.node(node),
            terms=self._run(run).terms,
            stake_nano=state.get_stake(node),
            is_delegated=state.is_delegated(node, now_ms),
            phase=presence.phase if presence else NodePhase.LOST,
            activity=presence.activity if presence else NodeActivity.IDLE,
            wait_ms=self.backoff.wait_ms(node, now_ms),
            is_measured=self.leases.throughput.is_measured(node),
            now_ms=now_ms,
        )
        return get_eligibility(facts)

    def get_step_facts(self, name: RunId, wanted: StepRequest) -> StepReply:
        """The terms, beacon and weights of a step."""
        run = self._run(name)
        own = run.checkpoints.get(wanted.step)
        if own is None:
            raise RemoteError("step", f"{wanted.step} has no checkpoint; the newest step is {run.latest}")
        step, found = wanted.step, own
        if wanted.root not in (None, own.root):
            known = reversed(run.checkpoints.items())
            step, found = next(((number, each) for number, each in known if each.root == wanted.root), (step, own))
            if found is own:
                raise RemoteError("root", f"{wanted.root} is not a checkpoint of {name}")
        work = run.steps.get(wanted.step)
        return StepReply(
            terms=work.terms if work else run.terms,
            beacon=own.beacon,
            weights=CheckpointRef(step=step, root=found.root, manifest=found.manifest, beacon=found.beacon),
        )

    def _run(self, name: RunId) -> RunState:
        if name not in self.state.runs:
            raise RemoteError("run", f"{name} was not created here")
        return self.state.runs[name]

    def _weights(self, name: RunId, run: RunState) -> CheckpointRef | None:
        """The weights of the newest checkpoint, cached because every heartbeat returns them."""
        step = Step(run.latest)
        checkpoint = run.checkpoints.get(step)
        if checkpoint is None:
            return None
        found = self._weights_cache.get(name)
        if found is None or found.step != step or found.beacon is not checkpoint.beacon:
            found = CheckpointRef(
                step=step, root=checkpoint.root, manifest=checkpoint.manifest, beacon=checkpoint.beacon
            )
            self._weights_cache[name] = found
        return found
