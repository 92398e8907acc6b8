"""What validators answer for: suspensions, missed verdicts, overturned verdicts, and inspections of read proofs. Pure.

The ledger holds a suspended node's status and its reason. Durations, counts and open inspections are forgotten at a
restart; the faults in the ledger are not.
"""

from collections import Counter
from collections.abc import Iterable

from prime_coordinator.audits.cases import AuditCase, SubmissionKey
from prime_coordinator.constants import (
    BLAME_MAX,
    BLAME_PER_OVERTURNED,
    GRACE_MS,
    MISS_WAIT_MS,
    MISS_WAIT_MS_MAX,
    MISSES_MAX,
    OVERTURNED_WAIT_MS,
    OVERTURNED_WAIT_MS_MAX,
    UNREAD_WAIT_MS,
    UNREAD_WAIT_MS_MAX,
)
from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.scheduling.eligibility import Liveness, NodePhase
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.ledger.audits import may_rule
from prime_protocol.ledger.entries import Inspected, NodeStatus, NodeStatusSet, ValidatorScored
from prime_protocol.ledger.randomness import first_u64
from prime_protocol.ledger.slashes import compute_penalty_nano, is_penalty_due
from prime_protocol.ledger.state import LedgerState, SubmissionState
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.proofs.read_proofs import ReadCoverage
from prime_protocol.wire.ids import Digest, NodeId, RunId, digest_fields
from prime_protocol.wire.messages import AuditTask
from prime_protocol.wire.signing import WalletKey

REASON_SILENT = "was drawn and gave no verdict"
REASON_WRONG = "gave verdicts that were overturned"
REASON_UNREAD = "gave verdicts on files that it had not read"
"""Reasons of a drain that ends with a heartbeat once its time is over."""

REASON_RESUMED = "sent a heartbeat after its suspension"


def count_validator_owners(state: LedgerState, terms: RunTerms, run: RunId | None, now_ms: int) -> int:
    """Owners with a validator that may be drawn under these terms: one registered for `run`, or any where that is None.

    Owners, not nodes: the validators of one owner say the same, so they count once.
    """
    return len(
        {
            state.owners[node]
            for node, known in state.nodes.items()
            if (run is None or (run in known.runs and (run not in state.runs or node not in state.runs[run].suspended)))
            and state.can_validate(node, terms)
            and state.is_delegated(node, now_ms)
        }
    )


class Suspensions:
    """Validators left out of the draw for a while: until when, and for how long the next time.

    A suspension is for the run that gave cause, so that a run whose weights or files are missing takes no validators
    from another. Only a node that is gone leaves all runs.
    """

    def __init__(self, entry_writer: EntryWriter) -> None:
        self._entry_writer = entry_writer
        self._next_ms: dict[tuple[RunId, NodeId, str], int] = {}
        self._back_ms: dict[tuple[RunId, NodeId], int] = {}

    def suspend(self, run: RunId, node: NodeId, reason: str, now_ms: int, *, wait_ms: int, wait_ms_max: int) -> bool:
        """Take a node out of a run's draws, for twice as long each time; False if it is already out."""
        state = self._entry_writer.state
        if state.nodes[node].status is not NodeStatus.ACTIVE or node in state.runs[run].suspended:
            return False
        wait_ms = self._next_ms.get((run, node, reason), wait_ms)
        self._back_ms[(run, node)] = now_ms + wait_ms
        self._next_ms[(run, node, reason)] = min(2 * wait_ms, wait_ms_max)
        self._set_status(node, NodeStatus.DRAINED, reason, run, now_ms)
        return True

    def suspend_lost(self, node: NodeId, now_ms: int) -> bool:
        """Take a node that is gone out of all draws until it sends a heartbeat; False if it is already out."""
        if self._entry_writer.state.nodes[node].status is not NodeStatus.ACTIVE:
            return False
        self._set_status(node, NodeStatus.DRAINED, REASON_SILENT, None, now_ms)
        return True

    def reset_duration(self, run: RunId, node: NodeId, reason: str) -> None:
        """The next suspension for this reason is as short as the first."""
        self._next_ms.pop((run, node, reason), None)

    def resume_if_expired(self, run: RunId, node: NodeId, now_ms: int) -> None:
        """On a heartbeat in this run: put the node back into the draw if only an expired suspension kept it out."""
        state = self._entry_writer.state
        known = state.nodes[node]
        if known.status is NodeStatus.DRAINED and known.reason == REASON_SILENT:
            self._set_status(node, NodeStatus.ACTIVE, REASON_RESUMED, None, now_ms)
        is_out = state.runs[run].suspended.get(node) in (REASON_SILENT, REASON_UNREAD, REASON_WRONG)
        if is_out and now_ms >= self._back_ms.get((run, node), 0):
            self._back_ms.pop((run, node), None)
            self._set_status(node, NodeStatus.ACTIVE, REASON_RESUMED, run, now_ms)

    def _set_status(self, node: NodeId, status: NodeStatus, reason: str, run: RunId | None, now_ms: int) -> None:
        entry = NodeStatusSet(node=node, status=status, reason=reason, run=run)
        self._entry_writer.append_own(entry, None, now_ms)


class MissedVerdicts:
    """Validators that were drawn and gave no verdict.

    A silent validator delays every submission it is drawn for by a round, so it leaves the draw until it sends a
    heartbeat again.
    """

    def __init__(self, suspensions: Suspensions, liveness: Liveness, now_ms: int) -> None:
        self._suspensions = suspensions
        self._liveness = liveness
        self._started_ms = now_ms
        self._misses: Counter[tuple[RunId, NodeId]] = Counter()

    def record_missed(self, run: RunId, validators: Iterable[NodeId], now_ms: int) -> None:
        """Count a missed verdict for each: the time of their round is over."""
        if now_ms < self._started_ms + GRACE_MS:
            return
        for node in validators:
            self._misses[(run, node)] += 1
            if self._liveness.phase(node) is NodePhase.LOST:
                is_out = self._suspensions.suspend_lost(node, now_ms)
            elif self._misses[(run, node)] >= MISSES_MAX:
                is_out = self._suspensions.suspend(
                    run, node, REASON_SILENT, now_ms, wait_ms=MISS_WAIT_MS, wait_ms_max=MISS_WAIT_MS_MAX
                )
            else:
                continue
            if is_out:
                del self._misses[(run, node)]

    def record_unwitnessed(self, validators: Iterable[NodeId], now_ms: int) -> None:
        """A head lacked their cosignatures. The ones that are gone leave the draw, so that the others are enough."""
        if now_ms >= self._started_ms + GRACE_MS:
            for node in validators:
                if self._liveness.phase(node) is NodePhase.LOST:
                    self._suspensions.suspend_lost(node, now_ms)

    def record_verdict(self, run: RunId, node: NodeId) -> None:
        self._misses.pop((run, node), None)
        self._suspensions.reset_duration(run, node, REASON_SILENT)


class ValidatorReputation:
    """Recent blame of each validator for overturned verdicts, in each run for itself.

    A wrong validator costs every submission it judges another round. An overturned verdict adds blame and a confirmed
    one removes some, so an honest validator that is outvoted once loses nothing. A plain majority, where no validator
    was left to ask, adds no blame: in a small network a few adversaries could drive out the others.
    """

    def __init__(self, suspensions: Suspensions, entry_writer: EntryWriter, now_ms: int) -> None:
        self._suspensions = suspensions
        self._entry_writer = entry_writer
        self._started_ms = now_ms
        self._blame: Counter[tuple[RunId, NodeId]] = Counter()

    def record_outcome(self, run: RunId, submission: SubmissionState, now_ms: int) -> None:
        """The outcome is final: confirm the verdicts that agree with it, blame the ones that do not."""
        verdicts = {node: found for each in submission.rounds for node, found in each.verdicts.items()}
        for node, outcome in sorted(verdicts.items()):
            if outcome is submission.judged:
                self._record_confirmed(run, node)
            else:
                self._record_overturned(run, node, BLAME_PER_OVERTURNED, now_ms)

    def record_withheld(self, run: RunId, nodes: Iterable[NodeId], now_ms: int) -> None:
        """They committed to verdicts, could read the others of their round, and did not give their own.

        Blamed like a verdict that did not stand, or a liar would speak only where it wins. A crash at the wrong moment
        looks the same, so it costs no stake, and one alone does not suspend.
        """
        if now_ms >= self._started_ms + GRACE_MS:
            for node in nodes:
                self._record_overturned(run, node, BLAME_PER_OVERTURNED, now_ms)

    def record_unread(self, run: RunId, node: NodeId, now_ms: int) -> None:
        """The node gave a verdict on a file that it had not read. Never reset: the next suspension is twice as long."""
        if self._can_spare(run, node):
            self._suspensions.suspend(
                run, node, REASON_UNREAD, now_ms, wait_ms=UNREAD_WAIT_MS, wait_ms_max=UNREAD_WAIT_MS_MAX
            )

    def _record_confirmed(self, run: RunId, node: NodeId) -> None:
        if self._blame[(run, node)] > 1:
            self._blame[(run, node)] -= 1
        else:
            del self._blame[(run, node)]
            self._suspensions.reset_duration(run, node, REASON_WRONG)

    def _record_overturned(self, run: RunId, node: NodeId, blame: int, now_ms: int) -> None:
        self._blame[(run, node)] = min(BLAME_MAX, self._blame[(run, node)] + blame)
        if self._blame[(run, node)] == BLAME_MAX and self._can_spare(run, node):
            self._suspensions.suspend(
                run, node, REASON_WRONG, now_ms, wait_ms=OVERTURNED_WAIT_MS, wait_ms_max=OVERTURNED_WAIT_MS_MAX
            )

    def _can_spare(self, name: RunId, node: NodeId) -> bool:
        """Whether the run has more than two quorums without it: that many may be asked before work is paid."""
        state = self._entry_writer.state
        run = state.runs[name]
        return len({state.owners[each] for each in run.validators if each != node}) > 2 * run.terms.quorum


def derive_secret(key: WalletKey, purpose: str) -> bytes:
    """An unpublished signature: only this key can derive it again, so it survives a restart without a file."""
    return bytes(key.sign(digest_fields(purpose)))


class InspectionScheduler:
    """Settled files that inspectors read again, to find validators that had not read them.

    A secret draws the sample after the outcome, so no validator knows while it judges. The ledger decides what a
    refuted read proof costs; here the validator is suspended. Inspectors also decide files that validators cannot.
    """

    def __init__(self, entry_writer: EntryWriter, reputation: ValidatorReputation, secret: bytes, share: int) -> None:
        self._entry_writer = entry_writer
        self._reputation = reputation
        self._secret = secret
        self._share = share
        self._open: dict[NodeId, dict[SubmissionKey, AuditTask]] = {}

    def request_ruling(self, case: AuditCase, deadline_ms: int) -> None:
        """Ask every inspector that may decide this submission; the first ruling counts."""
        key, task = (case.run_name, case.name), case.make_task(deadline_ms, is_ruling=True)
        for node in case.run.terms.inspectors:
            asked = self._open.get(node, {}).get(key)
            # A ruling replaces an inspection of the same file: only the ruling has parties that wait for it.
            if may_rule(self._entry_writer.state, case.run, case.name, node) and not (asked and asked.is_ruling):
                self._open.setdefault(node, {})[key] = task

    def withdraw(self, run: RunId, name: Digest) -> None:
        """The submission is decided: no ruling is needed any more."""
        for tasks in self._open.values():
            if (task := tasks.get((run, name))) is not None and task.is_ruling:
                del tasks[(run, name)]

    def finish(self, case: AuditCase, now_ms: int) -> None:
        """A submission has its final outcome: perhaps schedule an inspection by a node that did not judge it."""
        self.withdraw(case.run_name, case.name)
        readers = {node: blocks for each in case.submission.rounds for node, blocks in each.blocks_read.items()}
        known = readers.keys() | case.submission.rulings.keys()
        inspectors = [node for node in case.run.terms.inspectors if node not in known and self._is_active(node)]
        draw = self._draw(case.run_name, case.name)
        if readers and inspectors and draw % BASIS_POINTS < self._share:
            chosen = inspectors[draw // BASIS_POINTS % len(inspectors)]
            covered = tuple(ReadCoverage(node, readers[node]) for node in sorted(readers))
            task = case.make_task(now_ms + case.verdict_ms, covered)
            self._open.setdefault(chosen, {})[(case.run_name, case.name)] = task

    def tasks(self, inspector: NodeId, run: RunId) -> tuple[AuditTask, ...]:
        return tuple(task for (name, _), task in self._open.get(inspector, {}).items() if name == run)

    def list_rulings(self, inspector: NodeId) -> list[AuditTask]:
        """The submissions that an inspector is asked to decide."""
        return [task for task in self._open.get(inspector, {}).values() if task.is_ruling]

    def record_inspection(self, inspector: NodeId, run: RunId, entry: Inspected, now_ms: int) -> None:
        """The log has the result. An inspection that was not scheduled costs pay and stake by the ledger, but suspends
        no one."""
        self._append_penalties(run, entry, now_ms)
        if self._open.get(inspector, {}).pop((run, entry.submission), None) is None:
            return
        refuted = self._entry_writer.state.runs[run].submissions[entry.submission].refuted
        for seen in entry.seen:
            if seen.reader in refuted:
                self._reputation.record_unread(run, seen.reader, now_ms)

    def _append_penalties(self, run: RunId, entry: Inspected, now_ms: int) -> None:
        """On a chain the court takes the stake of those who are refuted, by an entry for each."""
        state = self._entry_writer.state
        submission = state.runs[run].submissions[entry.submission]
        for validator in (seen.reader for seen in entry.seen if is_penalty_due(state, submission, seen.reader)):
            penalty_nano = compute_penalty_nano(state, state.runs[run], submission, validator)
            if penalty_nano:
                score = ValidatorScored(validator=validator, submission=entry.submission, penalty_nano=penalty_nano)
                self._entry_writer.append_own(score, run, now_ms)

    def tick(self, now_ms: int) -> None:
        """Drop inspections that were not done in time."""
        for inspector, tasks in list(self._open.items()):
            self._open[inspector] = {name: task for name, task in tasks.items() if now_ms < task.deadline_ms}
            if not self._open[inspector]:
                del self._open[inspector]

    def _is_active(self, node: NodeId) -> bool:
        known = self._entry_writer.state.nodes.get(node)
        return known is not None and known.status is NodeStatus.ACTIVE

    def _draw(self, run: RunId, submission: Digest) -> int:
        return first_u64(digest_fields("inspection/1", self._secret, run.encode(), submission))
