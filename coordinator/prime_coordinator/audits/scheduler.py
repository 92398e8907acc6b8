"""From submission to settled: draws, verdicts, credit, slashes and appeals, each step as soon as it is due. Pure.

The ledger decides what is allowed; this decides what comes next, from the ledger alone. After a restart every
submission continues where the log left it, even between an outcome and its consequences.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from prime_coordinator.audits.cases import (
    AuditCase,
    SubmissionKey,
    compute_finding_end,
    compute_slash_end,
    propose_slash,
)
from prime_coordinator.audits.validators import InspectionScheduler, MissedVerdicts, ValidatorReputation
from prime_coordinator.constants import AUDIT_RETRY_MS, GRACE_MS
from prime_coordinator.entry_writer import EntryWriter
from prime_protocol.constants import AUDITS_LISTED_MAX, REVEAL_MS, ROUNDS_MAX, SETTLED_MAX
from prime_protocol.ledger.audits import (
    awaits_ruling,
    compute_draw,
    compute_settled_outcome,
    is_clear,
    is_round_over,
    needs_new_round,
)
from prime_protocol.ledger.entries import (
    AcceptedUnaudited,
    AuditDrawn,
    Credited,
    Outcome,
    Settled,
    SubmissionOutcome,
    ValidatorScored,
)
from prime_protocol.ledger.rewards import compute_submission_units, find_uncredited, is_creditable
from prime_protocol.ledger.slashes import compute_penalty_nano
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
        """Audits without a commitment, or without a verdict where none is committed."""
        self._committed: dict[NodeId, dict[SubmissionKey, None]] = {}
        """Audits whose verdict is committed and not given."""
        self.waiting_for_head: dict[SubmissionKey, None] = {}
        """Submissions whose next draw waits for a head to be noted."""
        self._waiting_for_round: dict[SubmissionKey, None] = {}
        """Those that wait for the round which a noted head has fixed."""
        self._decided: list[AuditCase] = []
        """Whose outcome this tick has found and not yet written."""
        self.is_appealable: Callable[[Digest], bool] = lambda name: False
        """Whether an appeal against a slash may still come from the chain; the app sets it."""
        self.just_settled: list[tuple[RunId, SubmissionState]] = []
        self.just_credited: list[tuple[RunId, SubmissionState]] = []
        self.just_upheld: list[tuple[RunId, SubmissionState]] = []
        """Findings that were upheld: their slots are open again."""
        for name, run in entry_writer.state.runs.items():
            # Those that the snapshot packs are accepted and credited: only a finding or an appeal can touch them.
            open_ = [each for each, known in run.submissions.list_unpacked() if not known.is_closed]
            for submission in dict.fromkeys([*open_, *run.slashes, *run.findings]):
                self._recover(AuditCase.of(entry_writer.state, name, submission))

    def _recover(self, case: AuditCase) -> None:
        """Continue a submission where the log left it."""
        if case.rounds and case.is_open:
            self._assign(case)
        if case.is_open or not case.submission.credited:
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

    def list_reveals(self, validator: NodeId, run: RunId, now_ms: int) -> tuple[Digest, ...]:
        """Submissions whose committed verdict this validator may give now."""
        waiting = [name for key, name in self._committed.get(validator, ()) if key == run]
        return tuple(name for name in waiting if self.can_reveal(run, name, now_ms))[:AUDITS_LISTED_MAX]

    def can_reveal(self, run: RunId, name: Digest, now_ms: int) -> bool:
        """Whether the verdicts of the submission's last round may be given."""
        return now_ms >= self._entry_writer.state.runs[run].submissions[name].rounds[-1].reveal_ms

    def record_commitment(self, validator: NodeId, run: RunId, name: Digest) -> None:
        self._unassign(validator, (run, name))
        self._committed.setdefault(validator, {})[(run, name)] = None
        case = AuditCase.of(self._entry_writer.state, run, name)
        last = case.submission.rounds[-1]
        if last.complete_ms is not None:
            self._set_timer(case, last.complete_ms + REVEAL_MS)

    def record_verdict(self, validator: NodeId, run: RunId, name: Digest) -> None:
        self._missed_verdicts.record_verdict(run, validator)
        self._unassign(validator, (run, name))
        self.mark_ready(run, name)

    def head_noted(self) -> None:
        self._waiting_for_round |= self.waiting_for_head
        self.waiting_for_head = {}

    def round_recorded(self) -> None:
        """Continue the submissions that waited for a round."""
        self._ready |= self._waiting_for_round
        self._waiting_for_round = {}

    def tick(self, now_ms: int) -> None:
        """Do everything that is due."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, run, name = heapq.heappop(self._timers)
            self.mark_ready(run, name)
        ready, self._ready = self._ready, {}
        runs = self._entry_writer.state.runs
        # The ledger drops a step that is over and paid, with its submissions.
        known = [(run, name) for run, name in ready if name in runs[run].submissions]
        cases = [AuditCase.of(self._entry_writer.state, run, name) for run, name in known]
        first_draws = [case for case in cases if _is_first_draw(case)]
        others = [case for case in cases if not _is_first_draw(case)]
        # The streaks that these draws depend on change when outcomes are written, so the draws come first.
        self._make_first_draws(first_draws, now_ms)
        for case in others:
            self._advance(case, now_ms)
        self._settle_decided(now_ms)

    def _make_first_draws(self, cases: list[AuditCase], now_ms: int) -> None:
        """Draw the audits. All submissions that are spared share entries."""
        spared: dict[tuple[RunId, int], list[AuditCase]] = {}
        for case in cases:
            if compute_draw(self._entry_writer.state, case.run, case.name, now_ms) == ():
                assert case.submission.randomness is not None
                spared.setdefault((case.run_name, case.submission.randomness[0]), []).append(case)
            else:
                self._advance(case, now_ms)
        for (run, number), found in spared.items():
            for shared in _share(found):
                names = tuple(case.name for case in shared)
                uncredited = find_uncredited(shared[0].run, names)
                entry = AcceptedUnaudited(randomness_round=number, submissions=names, uncredited=uncredited)
                self._entry_writer.append_own(entry, run, now_ms)
                self._record_settled(shared)

    def _advance(self, case: AuditCase, now_ms: int) -> None:
        if case.submission.outcome is None:
            self._judge(case, now_ms)
        elif case.slash is not None:
            self._advance_slash(case, now_ms)
        elif case.finding is not None:
            self._advance_finding(case, now_ms)
        else:
            self._conclude(case, now_ms)

    # --- Before the outcome -----------------------------------------------------------------------------------------

    def _judge(self, case: AuditCase, now_ms: int) -> None:
        outcome = compute_settled_outcome(self._entry_writer.state, case.run, case.name, now_ms)
        if self._is_in_grace(case, now_ms):
            self._set_timer(case, self._grace_until_ms)
        elif outcome is not None:
            self._close_round(case, now_ms)
            self._decided.append(case)
        elif not case.rounds or needs_new_round(self._entry_writer.state, case.rounds, case.terms, now_ms):
            self._draw_or_wait(case, now_ms)

    def _is_in_grace(self, case: AuditCase, now_ms: int) -> bool:
        """A round expired while we were down or just after a start: its validators get some more time."""
        if now_ms >= self._grace_until_ms or not case.rounds:
            return False
        last, state = case.rounds[-1], self._entry_writer.state
        return len(last.verdicts) < len(last.validators) and needs_new_round(state, case.rounds, case.terms, now_ms)

    def _draw_or_wait(self, case: AuditCase, now_ms: int) -> None:
        """Draw the next round, or ask an inspector where too few validators are left."""
        if case.submission.randomness is None:
            self._wait_for_head(case)
        elif self._draw(case, now_ms):
            self._judge(case, now_ms)
        elif not case.rounds:
            self._set_timer(case, min(now_ms + AUDIT_RETRY_MS, case.submission.at_ms + case.terms.verdict_ms))
        else:
            # Closing the round may have taken validators out of the draw, and with them the last chance of a decision.
            ruling_until_ms = case.rounds[-1].deadline_ms + case.terms.judgement_ms
            if awaits_ruling(self._entry_writer.state, case.run, case.name, now_ms):
                self._inspections.request_ruling(case, ruling_until_ms)
            self._set_timer(case, min(now_ms + AUDIT_RETRY_MS, max(ruling_until_ms, now_ms + 1)))

    def _draw(self, case: AuditCase, now_ms: int) -> bool:
        """The next round, if enough validators are left."""
        assert case.submission.randomness is not None
        number, randomness_round = len(case.submission.rounds), case.submission.randomness[0]
        if number >= ROUNDS_MAX:
            return False
        # Close the last round first: validators that missed it may leave the draw.
        self._close_round(case, now_ms)
        drawn = compute_draw(self._entry_writer.state, case.run, case.name, now_ms)
        if drawn is None:
            return False
        assert drawn, f"no audit falls on {case.name}, so it is accepted without one"
        entry = AuditDrawn(submission=case.name, round=number, randomness_round=randomness_round, validators=drawn)
        self._entry_writer.append_own(entry, case.run_name, now_ms)
        self._assign(case)
        return True

    def _assign(self, case: AuditCase) -> None:
        """Assign the audit to the validators of the last round that gave no verdict yet, and wait for them."""
        last = case.submission.rounds[-1]
        task = case.make_task(last.deadline_ms)
        for validator in last.validators:
            if validator in last.commitments and validator not in last.verdicts:
                self._committed.setdefault(validator, {})[(case.run_name, case.name)] = None
            elif validator not in last.verdicts:
                self._assigned.setdefault(validator, {})[(case.run_name, case.name)] = task
        self._set_timer(case, last.deadline_ms)
        self._set_timer(case, last.reveal_ms + REVEAL_MS)

    # --- The outcome and what follows from it -----------------------------------------------------------------------

    def _settle_decided(self, now_ms: int) -> None:
        """Write the outcomes of this tick, several in one entry, and then what follows from each."""
        decided, self._decided = self._decided, []
        runs: dict[RunId, list[AuditCase]] = {}
        for case in decided:
            runs.setdefault(case.run_name, []).append(case)
        for run, found in runs.items():
            for shared in _share(found):
                settled = tuple(self._make_outcome(case, now_ms) for case in shared)
                accepted = [each.submission for each in settled if each.outcome is Outcome.ACCEPT]
                uncredited = find_uncredited(shared[0].run, accepted)
                self._entry_writer.append_own(Settled(settled=settled, uncredited=uncredited), run, now_ms)
                self._record_settled(shared)
        for case in decided:
            if case.submission.outcome is not Outcome.FRAUDULENT:
                self._finish(case, now_ms, is_decided=is_clear(self._entry_writer.state, case.run, case.name, now_ms))
            self._conclude(case, now_ms)

    def _make_outcome(self, case: AuditCase, now_ms: int) -> SubmissionOutcome:
        """Computed again: closing a round may have suspended a validator that another submission waited for."""
        outcome = compute_settled_outcome(self._entry_writer.state, case.run, case.name, now_ms)
        assert outcome is not None, "fewer validators leave less to wait for"
        return SubmissionOutcome(submission=case.name, outcome=outcome)

    def _record_settled(self, cases: Iterable[AuditCase]) -> None:
        for case in cases:
            self.just_settled.append((case.run_name, case.submission))
            if case.submission.credited:
                self.just_credited.append((case.run_name, case.submission))

    def _finish(self, case: AuditCase, now_ms: int, *, is_decided: bool) -> None:
        """The outcome is final. A fraudulent one is when its slash ends: an appeal may still need an inspector."""
        self._inspections.finish(case, now_ms)
        if is_decided:
            self._reputation.record_outcome(case.run_name, case.submission, now_ms)

    def _conclude(self, case: AuditCase, now_ms: int) -> None:
        """Append the slash proposal, a credit that was not possible before, and the scores that are still missing."""
        submission = case.submission
        if submission.outcome is Outcome.FRAUDULENT and not submission.slashed:
            propose_slash(self._entry_writer, case, now_ms)
            assert case.slash is not None
            self._set_timer(case, case.slash.appeal_until_ms)
            return
        # On appeal it was accepted, or the credit of another answer to its slots was taken back.
        if is_creditable(case.run, submission):
            units = compute_submission_units(case.terms, submission)
            self._entry_writer.append_own(Credited(submission=case.name, units=units), case.run_name, now_ms)
            self.just_credited.append((case.run_name, submission))
        verdicts = {node: found for each in submission.rounds for node, found in each.verdicts.items()}
        for validator, found in sorted(verdicts.items()):
            if submission.judged not in (None, found) and validator not in submission.scored:
                penalty_nano = compute_penalty_nano(self._entry_writer.state, case.run, submission, validator)
                entry = ValidatorScored(validator=validator, submission=case.name, penalty_nano=penalty_nano)
                self._entry_writer.append_own(entry, case.run_name, now_ms)

    def _advance_slash(self, case: AuditCase, now_ms: int) -> None:
        slash = case.slash
        assert slash is not None
        end = compute_slash_end(self._entry_writer.state, case, now_ms, is_appealable=self.is_appealable(case.name))
        if end is not None:
            is_decided = slash.appealed_at_ms is None or is_clear(self._entry_writer.state, case.run, case.name, now_ms)
            self._close_round(case, now_ms)
            self._entry_writer.append_own(end, case.run_name, now_ms)
            self._finish(case, now_ms, is_decided=is_decided)
            self._conclude(case, now_ms)
        elif slash.appealed_at_ms is None:
            is_early = now_ms < slash.appeal_until_ms
            self._set_timer(case, slash.appeal_until_ms if is_early else now_ms + AUDIT_RETRY_MS)
        else:
            overdue_ms, long_stop_ms = (
                slash.appealed_at_ms + slash.judgement_ms,
                slash.appealed_at_ms + slash.long_stop_ms,
            )
            self._set_timer(case, overdue_ms if now_ms < overdue_ms else long_stop_ms)
            if now_ms >= overdue_ms:
                self._inspections.request_ruling(case, long_stop_ms)
            self._advance_appeal(case, long_stop_ms, now_ms)

    def _advance_finding(self, case: AuditCase, now_ms: int) -> None:
        assert case.finding is not None
        end = compute_finding_end(self._entry_writer.state, case, now_ms)
        if end is None:
            self._set_timer(case, case.finding.judged_until_ms)
            self._advance_appeal(case, case.finding.judged_until_ms, now_ms)
            return
        self._close_round(case, now_ms)
        self._entry_writer.append_own(end, case.run_name, now_ms)
        self._inspections.withdraw(case.run_name, case.name)
        if case.submission.outcome is Outcome.FRAUDULENT:
            self.just_upheld.append((case.run_name, case.submission))
            # Its slots are open again: another accepted answer to them can be credited.
            answers = case.run.steps[case.submission.step].submissions
            case.run.submissions.unpack(answers)
            for name in answers:
                other = case.run.submissions[name]
                if other.outcome is Outcome.ACCEPT and not other.credited:
                    self.mark_ready(case.run_name, name)
        self._conclude(case, now_ms)

    def _advance_appeal(self, case: AuditCase, ruling_until_ms: int, now_ms: int) -> None:
        """Draw the rounds of an appeal or a finding: the first at once, another when one is stuck.

        Without judges an inspector is asked, which has time until `ruling_until_ms`.
        """
        if case.rounds and not needs_new_round(self._entry_writer.state, case.rounds, case.terms, now_ms):
            return
        if self._is_in_grace(case, now_ms):
            self._set_timer(case, self._grace_until_ms)
        elif case.submission.randomness is None:
            self._wait_for_head(case)
        elif not self._draw(case, now_ms):
            self._inspections.request_ruling(case, ruling_until_ms)
            self._set_timer(case, now_ms + AUDIT_RETRY_MS)

    def _wait_for_head(self, case: AuditCase) -> None:
        key = (case.run_name, case.name)
        if key not in self._waiting_for_round:
            self.waiting_for_head[key] = None

    # --- Timers and assignments -------------------------------------------------------------------------------------

    def _set_timer(self, case: AuditCase, due_ms: int) -> None:
        heapq.heappush(self._timers, (due_ms, case.run_name, case.name))

    def _close_round(self, case: AuditCase, now_ms: int) -> None:
        """Unassign the validators of the last round. If its time is over, the silent ones missed it."""
        if not case.rounds:
            return
        last = case.rounds[-1]
        name = (case.run_name, case.name)
        silent = [node for node in last.validators if self._is_awaited(node, name)]
        if is_round_over(case.rounds, now_ms):
            withheld = [node for node in silent if name in self._committed.get(node, ())]
            self._reputation.record_withheld(case.run_name, withheld, now_ms)
            self._missed_verdicts.record_missed(case.run_name, silent, now_ms)
        for node in silent:
            self._unassign(node, name)

    def _is_awaited(self, validator: NodeId, name: SubmissionKey) -> bool:
        return name in self._assigned.get(validator, ()) or name in self._committed.get(validator, ())

    def _unassign(self, validator: NodeId, name: SubmissionKey) -> None:
        _remove(self._assigned, validator, name)
        _remove(self._committed, validator, name)


def _is_first_draw(case: AuditCase) -> bool:
    """Whether it is to be decided now if a submission is audited at all."""
    is_open = case.submission.outcome is None and not case.submission.rounds
    return is_open and case.submission.randomness is not None


def _share(cases: list[AuditCase]) -> list[list[AuditCase]]:
    """As they share entries: in the order of the log, so many in one."""
    ordered = sorted(cases, key=lambda case: case.submission.position.index)
    return [ordered[start : start + SETTLED_MAX] for start in range(0, len(ordered), SETTLED_MAX)]


def _remove(table: dict[NodeId, dict[SubmissionKey, Any]], validator: NodeId, name: SubmissionKey) -> None:
    waiting = table.get(validator, {})
    waiting.pop(name, None)
    if not waiting:
        table.pop(validator, None)
