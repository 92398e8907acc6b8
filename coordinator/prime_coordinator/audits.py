"""From submission to settled: draws, verdicts, credit, slashes and appeals, each step as soon as it is due. Pure.

The ledger knows what is allowed; this knows what to do next. What it remembers follows from the ledger.
"""

import heapq
from collections import defaultdict

from prime_coordinator.constants import AUDIT_ROUNDS_MAX
from prime_coordinator.scribe import Scribe
from prime_protocol.constants import AUDITS_TOLD_MAX
from prime_protocol.entries import (
    AuditDrawn,
    Credited,
    Outcome,
    Settled,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
    ValidatorScored,
)
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.judgement import decide, expected_draw, is_stuck, settled_outcome
from prime_protocol.messages import AuditTask
from prime_protocol.rewards import submission_units
from prime_protocol.state import RunState, SlashState, SubmissionState

Name = tuple[RunId, Digest]
"""A submission of a run."""


class AuditDesk:
    """What is waiting to be judged, by whom, and when to look again."""

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe
        self._ready: dict[Name, None] = {}
        self._timers: list[tuple[int, RunId, Digest]] = []
        self._assigned: defaultdict[NodeId, dict[Digest, AuditTask]] = defaultdict(dict)
        self.just_settled: list[Name] = []
        for name, run in scribe.state.runs.items():
            for submission in run.submissions:
                self._recover(name, run, submission)

    def _recover(self, run_name: RunId, run: RunState, name: Digest) -> None:
        """Take up a submission where the log left it."""
        submission, slash = run.submissions[name], run.slashes.get(name)
        rounds = submission.rounds[slash.rounds_before if slash else 0 :]
        if rounds and (submission.outcome is None or slash):
            self._assign(run, name, submission)
            due_ms = rounds[-1].drawn_at_ms + run.terms_of(submission).verdict_ms
            heapq.heappush(self._timers, (due_ms, run_name, name))
        self.wake(run_name, name)

    def wake(self, run: RunId, name: Digest) -> None:
        """Something happened to this submission: look at it at the next tick."""
        self._ready[(run, name)] = None

    def tasks(self, validator: NodeId) -> tuple[AuditTask, ...]:
        """What a validator still has to judge, oldest first."""
        return tuple(self._assigned.get(validator, {}).values())[:AUDITS_TOLD_MAX]

    def judged(self, validator: NodeId, run: RunId, name: Digest) -> None:
        self._assigned[validator].pop(name, None)
        self.wake(run, name)

    def tick(self, now_ms: int) -> None:
        """Do everything that is due."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, run, name = heapq.heappop(self._timers)
            self.wake(run, name)
        ready, self._ready = self._ready, {}
        for run, name in ready:
            self._advance(run, name, now_ms)

    def _advance(self, run_name: RunId, name: Digest, now_ms: int) -> None:
        run = self._scribe.state.runs[run_name]
        submission, slash = run.submissions.get(name), run.slashes.get(name)
        if submission is None:
            return
        if submission.outcome is None:
            self._judge(run_name, run, name, submission, now_ms)
        elif slash is not None:
            self._punish(run_name, run, name, slash, now_ms)

    # --- Before the outcome -----------------------------------------------------------------------------------------

    def _judge(self, run_name: RunId, run: RunState, name: Digest, submission: SubmissionState, now_ms: int) -> None:
        terms = run.terms_of(submission)
        outcome = settled_outcome(self._scribe.state, run, name, now_ms)
        # Settled as soft for want of an answer: another round may still find one.
        is_open = outcome is Outcome.SOFT and decide(submission.rounds, terms.quorum) is None
        if outcome is not None and not (is_open and len(submission.rounds) < AUDIT_ROUNDS_MAX):
            self._settle(run_name, run, name, submission, outcome, now_ms)
        elif self._draw(run_name, run, name, submission, now_ms):
            if not submission.rounds[-1].validators:
                self._settle(run_name, run, name, submission, Outcome.ACCEPT, now_ms)
        elif is_open:
            self._settle(run_name, run, name, submission, Outcome.SOFT, now_ms)
        elif not submission.rounds:
            self._look_again(run_name, name, submission.at_ms + terms.verdict_ms, now_ms)

    def _draw(self, run_name: RunId, run: RunState, name: Digest, submission: SubmissionState, now_ms: int) -> bool:
        """The next round, if one is due and enough validators are left."""
        state, terms = self._scribe.state, run.terms_of(submission)
        slash = run.slashes.get(name)
        rounds = submission.rounds[slash.rounds_before if slash else 0 :]
        if submission.head is None or (rounds and not is_stuck(rounds, terms, now_ms)):
            return False
        drawn = expected_draw(state, run, name, now_ms)
        if drawn is None:
            return False
        number, head_size = len(submission.rounds), submission.head[0]
        entry = AuditDrawn(submission=name, round=number, head_size=head_size, validators=drawn)
        self._forget(name, submission)
        self._scribe.write(entry, run_name, now_ms)
        self._assign(run, name, submission)
        if drawn:
            self._look_again(run_name, name, now_ms + terms.verdict_ms, now_ms)
        return True

    def _assign(self, run: RunState, name: Digest, submission: SubmissionState) -> None:
        """Tell the validators of the last round, as far as they have not spoken."""
        last = submission.rounds[-1]
        task = AuditTask(
            submission=name,
            round=len(submission.rounds) - 1,
            seed=last.seed,
            file_digest=submission.file_digest,
            lease=submission.lease,
            node=submission.node,
            step=submission.step,
            checkpoint_root=run.checkpoints[submission.checkpoint_step].root,
            first_slot=submission.slots.start,
            slots=len(submission.slots),
            deadline_ms=last.drawn_at_ms + run.terms_of(submission).verdict_ms,
        )
        for validator in last.validators:
            if validator not in last.verdicts:
                self._assigned[validator][name] = task

    def _settle(
        self,
        run_name: RunId,
        run: RunState,
        name: Digest,
        submission: SubmissionState,
        outcome: Outcome,
        now_ms: int,
    ) -> None:
        self._scribe.write(Settled(submission=name, outcome=outcome), run_name, now_ms)
        self._forget(name, submission)
        self.just_settled.append((run_name, name))
        if outcome is Outcome.ACCEPT:
            self._credit(run_name, run, name, submission, now_ms)
        if outcome is Outcome.HARD:
            self._propose(run_name, run, name, submission, now_ms)
        else:
            self._score(run_name, name, submission, now_ms)

    def _credit(self, run_name: RunId, run: RunState, name: Digest, submission: SubmissionState, now_ms: int) -> None:
        """Unless a twin of the lease was credited for the same slots before."""
        if run.steps[submission.step].credited.isdisjoint(submission.slots):
            units = submission_units(run.terms_of(submission), submission)
            self._scribe.write(Credited(submission=name, units=units), run_name, now_ms)

    def _score(self, run_name: RunId, name: Digest, submission: SubmissionState, now_ms: int) -> None:
        """Note the validators whose verdict was not what was settled."""
        verdicts = {node: found for each in submission.rounds for node, found in each.verdicts.items()}
        for validator, found in sorted(verdicts.items()):
            if submission.judged not in (None, found) and validator not in submission.scored:
                self._scribe.write(ValidatorScored(validator=validator, submission=name), run_name, now_ms)

    # --- Punishment -------------------------------------------------------------------------------------------------

    def _propose(self, run_name: RunId, run: RunState, name: Digest, submission: SubmissionState, now_ms: int) -> None:
        position, terms = (submission.owner, submission.node), run.terms_of(submission)
        amount_nano = min(terms.slash_nano, self._scribe.state.books.slashable_nano(position))
        evidence = next(iter(submission.evidence))
        entry = SlashProposed(submission=name, amount_nano=amount_nano, evidence=evidence)
        self._scribe.write(entry, run_name, now_ms)
        self._look_again(run_name, name, run.slashes[name].appeal_until_ms, now_ms)

    def _punish(self, run_name: RunId, run: RunState, name: Digest, slash: SlashState, now_ms: int) -> None:
        submission = run.submissions[name]
        if slash.appealed_at_ms is None:
            if now_ms >= slash.appeal_until_ms:
                self._scribe.write(SlashExecuted(submission=name), run_name, now_ms)
                self._score(run_name, name, submission, now_ms)
            return
        found = decide(submission.rounds[slash.rounds_before :], run.terms_of(submission).quorum)
        if found is Outcome.HARD:
            self._scribe.write(SlashExecuted(submission=name), run_name, now_ms)
        elif found is not None or now_ms >= slash.appealed_at_ms + slash.judgement_ms:
            self._scribe.write(SlashOverturned(submission=name), run_name, now_ms)
            if submission.outcome is Outcome.ACCEPT:
                self._credit(run_name, run, name, submission, now_ms)
        else:
            self._draw(run_name, run, name, submission, now_ms)
            self._look_again(run_name, name, slash.appealed_at_ms + slash.judgement_ms, now_ms)
            return
        self._forget(name, submission)
        self._score(run_name, name, submission, now_ms)

    # --- Small parts ------------------------------------------------------------------------------------------------

    def _look_again(self, run: RunId, name: Digest, due_ms: int, now_ms: int) -> None:
        if due_ms > now_ms:
            heapq.heappush(self._timers, (due_ms, run, name))

    def _forget(self, name: Digest, submission: SubmissionState) -> None:
        """Nobody has to judge it any more."""
        for each in submission.rounds:
            for validator in each.validators:
                self._assigned[validator].pop(name, None)
