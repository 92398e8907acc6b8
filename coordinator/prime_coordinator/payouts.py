"""When each step is paid: once it is over, has no open work, and its pay has vested. Pure.

A timer waits for each unpaid step. Only steps whose time has come are checked, so steps that vest for a day cost
nothing meanwhile, however many they are.
"""

import heapq

from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.updates import SubmissionUpdates
from prime_protocol.ledger.entries import Entry, LeaseGranted, PaidOut, RunStatus
from prime_protocol.ledger.rewards import compute_vested_ms
from prime_protocol.ledger.state import RunState
from prime_protocol.wire.ids import RunId, Step


class PayoutScheduler:
    """Unpaid steps: those that vest, with a timer each, and those that are due and wait for something else."""

    def __init__(self, entry_writer: EntryWriter, updates: SubmissionUpdates) -> None:
        self._entry_writer = entry_writer
        self._updates = updates
        self._timers: list[tuple[int, RunId, Step]] = []
        self._known: set[tuple[RunId, Step]] = set()
        """Every step that has a timer or is due."""
        self._due: dict[RunId, set[Step]] = {}
        self._dirty = set(entry_writer.state.runs)
        for name, run in entry_writer.state.runs.items():
            for number, step in run.steps.items():
                if not step.paid:
                    self._add(name, number)

    def record(self, entry: Entry, run: RunId | None) -> None:
        """An entry of the coordinator's was logged. The first lease of a step makes the step."""
        if isinstance(entry, LeaseGranted) and run is not None and (run, entry.step) not in self._known:
            self._add(run, entry.step)

    def mark_dirty(self, run: RunId) -> None:
        """Check the due steps of this run at the next tick: something ended, or a new step began."""
        self._dirty.add(run)

    def tick(self, now_ms: int) -> None:
        while self._timers and self._timers[0][0] <= now_ms:
            _, name, number = heapq.heappop(self._timers)
            self._due.setdefault(name, set()).add(number)
            self._dirty.add(name)
        stirred, self._dirty = self._dirty, set()
        for name in sorted(stirred):
            self._pay_due(name, now_ms)

    def _add(self, name: RunId, number: Step) -> None:
        self._known.add((name, number))
        # Work that is settled later moves the time; then the timer is set again.
        due_ms = compute_vested_ms(self._entry_writer.state.runs[name].steps[number])
        heapq.heappush(self._timers, (due_ms, name, number))

    def _pay_due(self, name: RunId, now_ms: int) -> None:
        run = self._entry_writer.state.runs[name]
        for number in sorted(self._due.get(name, ())):
            step = run.steps.get(number)
            if step is None or step.paid:
                self._due[name].discard(number)
                self._known.discard((name, number))
            elif compute_vested_ms(step) > now_ms:
                self._due[name].discard(number)
                self._add(name, number)
            elif not step.pending and is_payable(run, number):
                self._pay(name, number, now_ms)

    def _pay(self, name: RunId, number: Step, now_ms: int) -> None:
        run = self._entry_writer.state.runs[name]
        # The ledger may drop the step's submissions with this entry.
        names = [each for each in run.steps[number].submissions if each not in run.findings]
        run.submissions.unpack(names)
        submissions = {each: run.submissions[each] for each in names}
        self._entry_writer.append_own(PaidOut(step=number), name, now_ms)
        self._updates.record_payout(name, submissions)


def is_payable(run: RunState, number: Step) -> bool:
    """Whether no further work comes. In a closed run what is still judged decides the last payments."""
    if run.status is RunStatus.CLOSED:
        return not run.slashes and not run.findings
    return number < run.latest
