"""The coordinator's decisions: requests and the time in, entries and replies out. Pure.

The app, the simulator and the tests drive this same object. It is built from a ledger, so a restart is: replay the log,
build a new one. A decision takes effect once the app has written `entry_writer.drain()` to disk.
"""

from dataclasses import replace
from typing import Any

from prime_coordinator.audits.scheduler import AuditScheduler
from prime_coordinator.audits.validators import (
    InspectionScheduler,
    MissedVerdicts,
    Suspensions,
    ValidatorReputation,
    derive_secret,
)
from prime_coordinator.audits.witnesses import WitnessCollector
from prime_coordinator.constants import RETRY_MS_MAX
from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.intake.checks import Admission, ExpectedSubmission, find_repeat, get_expected_submission
from prime_coordinator.intervals import IntervalsConfig
from prime_coordinator.operator_messages import OPERATOR_ENTRIES
from prime_coordinator.payouts import PayoutScheduler
from prime_coordinator.retention.schedule import RetentionSchedule
from prime_coordinator.scheduling.eligibility import (
    Backoff,
    EligibilityRule,
    Liveness,
    NodeFacts,
    NodePhase,
    get_eligibility,
)
from prime_coordinator.scheduling.leases import LeaseScheduler, refuse_lease
from prime_coordinator.updates import SubmissionUpdates
from prime_protocol.constants import AUDITS_LISTED_MAX, PROTOCOL_VERSION
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    Appealed,
    CheckpointPublished,
    DelegationRevoked,
    Entry,
    FindingFiled,
    Inspected,
    LeaseEnded,
    LogRestored,
    NodeStatus,
    NodeStatusSet,
    Outcome,
    RulesChanged,
    RulingGiven,
    Submitted,
    VerdictCommitted,
    VerdictGiven,
)
from prime_protocol.ledger.limits import is_free
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.state import LeaseState, LedgerState, NodeState, RunState
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import NodeId, RunId, Step
from prime_protocol.wire.messages import (
    AccountStatus,
    CheckpointRef,
    EntryReply,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeActivity,
    NodeCommand,
    RunReply,
    RunRequest,
    StepReply,
    StepRequest,
)
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import compute_receipt_id

COMMANDS = {
    NodeStatus.ACTIVE: NodeCommand.NONE,
    NodeStatus.DRAINED: NodeCommand.DRAIN,
    NodeStatus.BANNED: NodeCommand.STOP,
}


def _get_command(known: NodeState, suspended: str | None) -> NodeCommand:
    """What a node is told in one run, where `suspended` says why it is out, if it is."""
    is_suspended = suspended is not None and known.status is NodeStatus.ACTIVE
    return NodeCommand.DRAIN if is_suspended else COMMANDS[known.status]


def get_rules_change(state: LedgerState, now_ms: int) -> RulesChanged | None:
    """The change of the log's rules that is announced and not in force yet."""
    plan = state.rules
    if not plan.is_pending(now_ms):
        return None
    return RulesChanged(rules=plan.after, from_ms=plan.from_ms, release=plan.release)


def get_version_demand(state: LedgerState, terms: RunTerms, version: int, now_ms: int) -> tuple[int, int]:
    """The lowest version that may work now, and when it rises above this one (0: that is not planned)."""
    lowest = state.get_version_min(terms, now_ms)
    planned = [(terms.version_next, terms.upgrade_by_ms), (state.rules.after, state.rules.from_ms)]
    dates = [from_ms for demanded, from_ms in planned if version < demanded and now_ms < from_ms]
    return lowest, min(dates, default=0)


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
        self.witnesses = WitnessCollector(self.entry_writer, self._intervals.head_ms)
        self._missed_verdicts = MissedVerdicts(self.suspensions, self.liveness, now_ms)
        reputation = ValidatorReputation(self.suspensions, self.entry_writer, now_ms)
        secret = derive_secret(key, "inspection secret/1")
        self.inspections = InspectionScheduler(self.entry_writer, reputation, secret, inspect_share)
        self.audits = AuditScheduler(self.entry_writer, self._missed_verdicts, reputation, self.inspections, now_ms)
        self.updates = SubmissionUpdates(ledger)
        self.retention = RetentionSchedule(ledger)
        self.payouts = PayoutScheduler(self.entry_writer, self.updates)
        self.entry_writer.on_own_entry = self._record_own
        self.head = b""
        """The newest signed head on disk, for replies."""
        self.head_size = 0
        self._weights_cache: dict[RunId, CheckpointRef] = {}

    @property
    def state(self) -> LedgerState:
        return self.entry_writer.state

    def _record_own(self, entry: Entry, run: RunId | None) -> None:
        self.updates.record(entry, run)
        self.retention.record(entry, run)
        self.payouts.record(entry, run)

    # --- Requests ---------------------------------------------------------------------------------------------------

    def handle_heartbeat(self, node: NodeId, run: RunId, heartbeat: Heartbeat, now_ms: int) -> HeartbeatReply:
        """Record a heartbeat; the reply has everything that the node needs."""
        state = self.state
        now_ms = max(now_ms, state.at_ms)
        known = state.node(node)
        run_state = self._run(run)
        terms = run_state.terms
        self.liveness.beat(node, heartbeat.activity, heartbeat.checkpoint_step, now_ms)
        self.suspensions.resume_if_expired(run, node, now_ms)
        if heartbeat.cosigned is not None:
            self.witnesses.record(node, heartbeat.cosigned)
        version_min, upgrade_by_ms = get_version_demand(state, terms, known.version, now_ms)
        return HeartbeatReply(
            now_ms=now_ms,
            next_heartbeat_ms=self._intervals.heartbeat_ms,
            # A node with a larger head has seen entries that a restore lost: it must see this one too.
            head=self.head if self.head_size != heartbeat.head_size else b"",
            restored_size=state.restored_size,
            witness=self.witnesses.get_note(node),
            weights=self._weights(run, run_state),
            lag_max=terms.lag_max,
            leases=self.leases.open_leases(run, node),
            audits=(*self.audits.tasks(node, run), *self.inspections.tasks(node, run))[:AUDITS_LISTED_MAX],
            reveals=self.audits.list_reveals(node, run, now_ms),
            run_status=run_state.status,
            command=_get_command(known, run_state.suspended.get(node)),
            version_min=version_min,
            upgrade_by_ms=upgrade_by_ms,
            rules_change=get_rules_change(state, now_ms),
            account=self._get_account(node, run, now_ms),
            updates=self.updates.take_updates(run, node, heartbeat.updates_seen),
        )

    def request_lease(self, node: NodeId, run: RunId, request: LeaseRequest, now_ms: int) -> LeaseReply:
        now_ms = self._log_time(now_ms)
        self.state.node(node)  # refuses an unknown one
        self._run(run)
        self.liveness.record_request(node, request.checkpoint_step, now_ms)
        self.suspensions.resume_if_expired(run, node, now_ms)
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
        whole_ms = max(now_ms, self.state.free_until_ms)
        logged = self.entry_writer.append_received(payload, frame, now_ms)
        self.admission.charge_free(address_group, self.state.free_until_ms - whole_ms, now_ms)
        self.updates.record(entry, payload.run)
        self.retention.record(entry, payload.run)
        self.admission.logged(owned, old_owner, address_group, now_ms)
        if payload.run is not None:
            self._apply_consequences(payload.run, sender, entry, lease, now_ms)
        return self._add_reveal(logged, payload, entry)

    def find_repeat(self, payload: Payload, entry: Any) -> EntryReply | None:
        """The position of this same entry if it is already logged; None if it is new. Call before checking a file."""
        repeat = find_repeat(self.state, payload, entry)
        return repeat and self._add_reveal(repeat, payload, entry)

    def _add_reveal(self, logged: EntryReply, payload: Payload, entry: Any) -> EntryReply:
        """After a commitment the reply says whether the verdict may follow at once."""
        if not isinstance(entry, VerdictCommitted) or payload.run is None:
            return logged
        return replace(logged, can_reveal=self.audits.can_reveal(payload.run, entry.submission, self.state.at_ms))

    def append_operator_entry(self, entry: Any, run: RunId | None, now_ms: int) -> EntryReply:
        """Append an entry for the operator; RemoteError if a rule refuses it."""
        assert isinstance(entry, OPERATOR_ENTRIES), f"{type(entry).__name__} is not an operator entry"
        if isinstance(entry, RulesChanged) and entry.rules > PROTOCOL_VERSION:
            raise RemoteError("rules", f"is {entry.rules}, this coordinator knows up to {PROTOCOL_VERSION}: upgrade it")
        logged = self.entry_writer.append_requested(entry, run, self._log_time(now_ms))
        if isinstance(entry, NodeStatusSet) and entry.status is NodeStatus.BANNED:
            self.leases.mark_leases_suspect(entry.node)
        if run is not None:
            self.payouts.mark_dirty(run)
        return logged

    def append_restored(self, now_ms: int) -> None:
        """Say that the log was rebuilt from a copy of all entries before this one."""
        state = self.state
        entry = LogRestored(size=state.size, root=state.frontier.root())
        self.entry_writer.append_own(entry, None, self._log_time(now_ms))

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
            case VerdictCommitted(submission=name):
                self.audits.record_commitment(sender, run, name)
            case VerdictGiven(receipt=verdict):
                self.audits.record_verdict(sender, run, verdict.submission)
            case Inspected():
                self.inspections.record_inspection(sender, run, entry, now_ms)
            case RulingGiven(submission=name):
                self.inspections.withdraw(run, name)
                self.audits.mark_ready(run, name)
            case Appealed(submission=name) | FindingFiled(submission=name):
                self.audits.mark_ready(run, name)
            case LeaseEnded(lease=number):
                assert lease is not None
                if is_free(self.state, lease.owner, sender):
                    # Otherwise a key without value could take and return leases without end, two entries each.
                    self.backoff.record_lost_lease(sender, now_ms)
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
        is_head_wanted = self.audits.waiting_for_head or any(run.awaiting_beacon for run in self.state.runs.values())
        if is_head_wanted and self.witnesses.note_head(now_ms):
            self.audits.head_noted()
        for run, submission in self.audits.just_settled:
            self.leases.record_settlement(run, submission, now_ms)
        for run, submission in self.audits.just_credited:
            self.leases.record_credit(run, submission)
        for run, submission in self.audits.just_upheld:
            self.leases.record_upheld_finding(run, submission)
        self.audits.just_settled.clear()
        self.audits.just_credited.clear()
        self.audits.just_upheld.clear()
        if self.state.size > size:
            # An outcome or an expired lease may have been the last thing that a step waited for.
            for name in self.state.runs:
                self.payouts.mark_dirty(name)
        self.payouts.tick(now_ms)

    def set_head(self, note: bytes, size: int) -> None:
        """The newest signed head is on disk and in the mirror."""
        self.head, self.head_size = note, size
        self.witnesses.set_signed_head(note, size)

    def record_round(self, number: int, signature: bytes, now_ms: int) -> None:
        """Append a round that is waited for, with its verified signature, and continue what waited for it."""
        now_ms = self._log_time(now_ms)
        silent = self.witnesses.record_round(number, signature, now_ms)
        self._missed_verdicts.record_unwitnessed(silent, now_ms)
        self.audits.round_recorded()

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
            version_min=state.get_version_min(self._run(run).terms, now_ms),
            record=self._run(run).get_record(node),
            is_suspended=node in self._run(run).suspended,
        )
        return get_eligibility(facts)

    def _get_account(self, node: NodeId, run: RunId, now_ms: int) -> AccountStatus:
        state, rule = self.state, self.get_eligibility(node, run, now_ms)
        known = state.nodes[node]
        return AccountStatus(
            eligibility=str(rule.eligibility),
            is_eligible=rule.is_eligible,
            remedy=rule.remedy,
            stake_nano=state.get_stake(node),
            stake_min_nano=state.runs[run].terms.stake_min_nano,
            balance_nano=state.funds.balances[state.owners[node]],
            earned_nano=known.earned_nano,
            fraudulent=known.settled[Outcome.FRAUDULENT],
        )

    def get_run_facts(self, name: RunId, wanted: RunRequest, now_ms: int) -> RunReply:
        """The terms and progress of a run, and what was accepted since the trainer last asked."""
        run = self._run(name)
        step = run.steps.get(Step(run.latest))
        return RunReply(
            status=run.status,
            terms=run.terms,
            rules=self.state.rules.get_version(self._log_time(now_ms)),
            latest_step=run.latest,
            is_exhausted=step is not None and len(step.credited) >= step.terms.slots_per_step,
            accepted=self.updates.list_accepted(name, wanted.after),
            restored_size=self.state.restored_size,
        )

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
