"""When a step is paid: as soon as it is over and owes nothing. Pure.

A run is looked at only after something happened in it, so a quiet network costs nothing.
"""

from prime_coordinator.scribe import Scribe
from prime_protocol.entries import PaidOut, RunStatus
from prime_protocol.ids import RunId


class PayDesk:
    """Runs in which a step may have become ready to be paid."""

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe
        self._stirred = set(scribe.state.runs)

    def stir(self, run: RunId) -> None:
        """Something ended, or a new step began."""
        self._stirred.add(run)

    def tick(self, now_ms: int) -> None:
        stirred, self._stirred = self._stirred, set()
        for name in sorted(stirred):
            self._pay(name, now_ms)

    def _pay(self, name: RunId, now_ms: int) -> None:
        run = self._scribe.state.runs[name]
        is_closed = run.status is RunStatus.CLOSED
        if is_closed and run.slashes:
            return  # what the slashes decide is paid last
        for number, step in sorted(run.steps.items()):
            is_over = number < run.latest or is_closed
            if is_over and not step.paid and not step.pending:
                self._scribe.write(PaidOut(step=number), name, now_ms)
