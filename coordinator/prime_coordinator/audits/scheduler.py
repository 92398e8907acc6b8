"""From submission to settled: draws, verdicts, credit, slashes and appeals, each step as soon as it is due. Pure.

The ledger decides what is allowed; this decides what comes next, from the ledger alone. After a restart every
submission continues where the log left it, even between an outcome and its consequences.
"""

import heapq
from collections.abc import Callable

from prime_coordinator.audits.cases import AuditCase, SubmissionKey, compute_slash_end, propose_slash
from prime_coordinator.audits.validators import InspectionScheduler, MissedVerdicts, ValidatorReputation
from prime_coordinator.constants import AUDIT_RETRY_MS, AUDIT_ROUNDS_MAX, GRACE_MS
from prime_coordinator.entry_writer import EntryWriter
from prime_protocol.constants import AUDITS_LISTED_MAX, ROUNDS_MAX
from prime_protocol.ledger.audits import (
    compute_draw,
    compute_settled_outcome,
    decide_outcome,
    needs_new_round,
)
from prime_protocol.ledger.entries import AuditDrawn, Credited, Outcome, Settled, ValidatorScored
from prime_protocol.ledger.rewards import compute_submission_units
from prime_protocol.ledger.state import SubmissionState
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.messages import AuditTask


class AuditScheduler:
    """Which submissions wait for verdicts, of whom, and when to check each again."""

    def __init__(
        self,
        entry_writer: EntryWriter,
        missed_verdicts: MissedVerdicts,
        reputation: ValidatorReputation,
        inspections: InspectionScheduler,
        now_ms: int,
    ) -> None:
        self._entry_writer = entry_writer
        self._missed_verdicts = missed_verdicts
        self._reputation = reputation
        self._inspections = inspections
        self._grace_until_ms = now_ms + GRACE_MS
        self._ready: dict[SubmissionKey, None] = {}
        self._timers: list[tuple[int, RunId, Digest]] = []
        self._assigned: dict[NodeId, dict[SubmissionKey, AuditTask]] = {}
        self.waiting_for_head: dict[SubmissionKey, None] = {}
        """Submissions that wait for the next noted head."""
        self.is_appealable: Callable[[Digest], bool] = lambda name: False
        """Whether an appeal against a slash may still come from the chain; the app sets it."""
        self.just_settled: list[tuple[RunId, SubmissionState]] = []
        self.just_credited: list[tuple[RunId, SubmissionState]] = []
        for name, run in entry_writer.state.runs.items():
            for submission in run.submissions:
                self._recover(AuditCase.of(entry_writer.state, name, submission))

    def _recover(self, case: AuditCase) -> None:
        """Continue a submission where the log left it."""
        if case.rounds and case.is_open:
            self._assign(case)
            self._set_timer(case, case.rounds[-1].drawn_at_ms + case.terms.verdict_ms)
        self.mark_ready(case.run_name, case.name)

    def mark_ready(self, run: RunId, name: Digest) -> None:
        """Check this submission at the next tick: something happened to it."""
        self._ready[(run, name)] = None

    def tasks(self, validator: NodeId, run: RunId | None = None) -> tuple[AuditTask, ...]:
        """The open audits of a validator, oldest first; of one run if it is named."""
        assigned = self._assigned.get(validator)
        if not assigned:
            return ()
        return tuple(task for (name, _), task in assigned.items() if run in (None, name))[:AUDITS_LISTED_MAX]

    def record_verdict(self, validator: NodeId, run: RunId, name: Digest) -> None:
        self._missed_verdicts.record_verdict(validator)
        self._unassign(validator, (run, name))
        self.mark_ready(run, name)

    def head_noted(self) -> None:
        """Continue the submissions that waited for a head."""
        self._ready |= self.waiting_for_head
        self.waiting_for_head = {}

    def tick(self, now_ms: int) -> None:
        """Do everything that is due."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, run, name = heapq.heappop(self._timers)
            self.mark_ready(run, name)
        ready, self._ready = self._ready, {}
        for run, name in ready:
            # The ledger drops a step that is over and paid, with its submissions.
            if name in self._entry_writer.state.runs[run].submissions:
                self._advance(AuditCase.of(self._entry_writer.state, run, name), now_ms)

    def _advance(self, case: AuditCase, now_ms: int) -> None:
        if case.submission.outcome is None:
            self._judge(case, now_ms)
        elif case.slash is not None:
            self._advance_slash(case, now_ms)
        else:
            self._conclude(case, now_ms)

    # --- Before the outcome -----------------------------------------------------------------------------------------

    def _judge(self, case: AuditCase, now_ms: int) -> None:
        outcome = compute_settled_outcome(self._entry_writer.state, case.run, case.name, now_ms)
        # Invalid only because the verdicts decide nothing yet: another round may still decide.
        is_undecided = outcome is Outcome.INVALID and decide_outcome(case.rounds, case.terms.quorum) is None
        if self._is_in_grace(case, now_ms):
            self._set_timer(case, self._grace_until_ms)
        elif outcome is not None and not is_undecided:
            self._settle(case, outcome, now_ms)
        elif (is_undecided or not case.rounds) and len(case.rounds) < AUDIT_ROUNDS_MAX:
            self._draw_or_wait(case, is_undecided, now_ms)
        elif is_undecided:
            self._settle(case, Outcome.INVALID, now_ms)

    def _is_in_grace(self, case: AuditCase, now_ms: int) -> bool:
        """A round expired while we were down or just after a start: its validators get some more time."""
        if now_ms >= self._grace_until_ms or not case.rounds:
            return False
        last = case.rounds[-1]
        return len(last.verdicts) < len(last.validators) and needs_new_round(case.rounds, case.terms, now_ms)

    def _draw_or_wait(self, case: AuditCase, is_undecided: bool, now_ms: int) -> None:
        if case.submission.head is None:
            self.waiting_for_head[(case.run_name, case.name)] = None
        elif self._draw(case, now_ms):
            self._judge(case, now_ms)
        elif is_undecided:
            self._settle(case, Outcome.INVALID, now_ms)
        else:
            self._set_timer(case, min(now_ms + AUDIT_RETRY_MS, case.submission.at_ms + case.terms.verdict_ms))

    def _draw(self, case: AuditCase, now_ms: int) -> bool:
        """The next round, if enough validators are left."""
        assert case.submission.head is not None
        number, head_size = len(case.submission.rounds), case.submission.head[0]
        if number >= ROUNDS_MAX:
            return False
        # Close the last round first: validators that missed it may leave the draw.
        self._close_round(case, now_ms)
        drawn = compute_draw(self._entry_writer.state, case.run, case.name, now_ms)
        if drawn is None:
            return False
        entry = AuditDrawn(submission=case.name, round=number, head_size=head_size, validators=drawn)
        self._entry_writer.append_own(entry, case.run_name, now_ms)
        self._assign(case)
        self._set_timer(case, now_ms + case.terms.verdict_ms)
        return True

    def _assign(self, case: AuditCase) -> None:
        """Assign the audit to the validators of the last round that gave no verdict yet."""
        last = case.submission.rounds[-1]
        task = case.make_task(last.drawn_at_ms + case.terms.verdict_ms)
        for validator in last.validators:
            if validator not in last.verdicts:
                self._assigned.setdefault(validator, {})[(case.run_name, case.name)] = task

    # --- The outcome and what follows from it -----------------------------------------------------------------------

    def _settle(self, case: AuditCase, outcome: Outcome, now_ms: int) -> None:
        self._close_round(case, now_ms)
        self._entry_writer.append_own(Settled(submission=case.name, outcome=outcome), case.run_name, now_ms)
        self.just_settled.append((case.run_name, case.submission))
        self._inspections.schedule(case, now_ms)
        is_clear = decide_outcome(case.rounds, case.terms.quorum) is not None
        if outcome is not Outcome.FRAUDULENT and is_clear:
            self._reputation.record_outcome(case.submission, now_ms)
        self._conclude(case, now_ms)

    def _conclude(self, case: AuditCase, now_ms: int) -> None:
        """Append the credit, the slash proposal and the scores that are still missing."""
        submission = case.submission
        if submission.outcome is Outcome.FRAUDULENT and not submission.slashed:
            propose_slash(self._entry_writer, case, now_ms)
            assert case.slash is not None
            self._set_timer(case, case.slash.appeal_until_ms)
            return
        # A duplicate of the lease may already be credited for the same slots.
        is_creditable = case.run.steps[submission.step].credited.isdisjoint(submission.slots)
        if submission.outcome is Outcome.ACCEPT and not submission.credited and is_creditable:
            units = compute_submission_units(case.terms, submission)
            self._entry_writer.append_own(Credited(submission=case.name, units=units), case.run_name, now_ms)
            self.just_credited.append((case.run_name, submission))
        verdicts = {node: found for each in submission.rounds for node, found in each.verdicts.items()}
        for validator, found in sorted(verdicts.items()):
            if submission.judged not in (None, found) and validator not in submission.scored:
                entry = ValidatorScored(validator=validator, submission=case.name)
                self._entry_writer.append_own(entry, case.run_name, now_ms)

    def _advance_slash(self, case: AuditCase, now_ms: int) -> None:
        slash = case.slash
        assert slash is not None
        end = compute_slash_end(self._entry_writer.state, case, now_ms, is_appealable=self.is_appealable(case.name))
        if end is not None:
            is_clear = slash.appealed_at_ms is None or decide_outcome(case.rounds, case.terms.quorum) is not None
            self._close_round(case, now_ms)
            self._entry_writer.append_own(end, case.run_name, now_ms)
            if is_clear:
                self._reputation.record_outcome(case.submission, now_ms)
            self._conclude(case, now_ms)
        elif slash.appealed_at_ms is None:
            is_early = now_ms < slash.appeal_until_ms
            self._set_timer(case, slash.appeal_until_ms if is_early else now_ms + AUDIT_RETRY_MS)
        else:
            self._set_timer(case, slash.appealed_at_ms + slash.judgement_ms)
            self._advance_appeal(case, now_ms)

    def _advance_appeal(self, case: AuditCase, now_ms: int) -> None:
        """Draw the rounds of an appeal: the first at once, another when one is stuck."""
        if case.rounds and not needs_new_round(case.rounds, case.terms, now_ms):
            return
        if self._is_in_grace(case, now_ms):
            self._set_timer(case, self._grace_until_ms)
        elif case.submission.head is None:
            self.waiting_for_head[(case.run_name, case.name)] = None
        elif not self._draw(case, now_ms):
            self._set_timer(case, now_ms + AUDIT_RETRY_MS)

    # --- Timers and assignments -------------------------------------------------------------------------------------

    def _set_timer(self, case: AuditCase, due_ms: int) -> None:
        heapq.heappush(self._timers, (due_ms, case.run_name, case.name))

    def _close_round(self, case: AuditCase, now_ms: int) -> None:
        """Unassign the validators of the last round. If its time is over, the silent ones missed it."""
        if not case.rounds:
            return
        last = case.rounds[-1]
        name = (case.run_name, case.name)
        silent = [node for node in last.validators if name in self._assigned.get(node, ())]
        if now_ms >= last.drawn_at_ms + case.terms.verdict_ms:
            self._missed_verdicts.record_missed(silent, now_ms)
        for node in silent:
            self._unassign(node, name)

    def _unassign(self, validator: NodeId, name: SubmissionKey) -> None:
        tasks = self._assigned.get(validator, {})
        tasks.pop(name, None)
        if not tasks:
            self._assigned.pop(validator, None)
