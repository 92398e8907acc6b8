"""Which open lease is overdue first: the candidates for a second chance by another node. Pure.

Leases that have closed since are dropped when they come to the top, so a call costs little however many are open.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable

from prime_protocol.ids import RunId, Step

PASSED_MAX = 16
"""Leases that do not suit the one who asks, looked at for one request."""


class Stragglers:
    """Open leases of each step in the order in which they become suspect."""

    def __init__(self) -> None:
        self._suspects: defaultdict[tuple[RunId, Step], list[tuple[int, int]]] = defaultdict(list)

    def add(self, run: RunId, step: Step, lease: int, suspect_ms: int) -> None:
        heapq.heappush(self._suspects[(run, step)], (suspect_ms, lease))

    def take(
        self,
        run: RunId,
        step: Step,
        now_ms: int,
        *,
        is_open: Callable[[int], bool],
        suits: Callable[[int], bool],
    ) -> int | None:
        """The first suspect lease that is open and suits the one who asks. It is a candidate no more."""
        heap = self._suspects.get((run, step), [])
        passed: list[tuple[int, int]] = []
        found = None
        while found is None and heap and heap[0][0] <= now_ms and len(passed) < PASSED_MAX:
            entry = heapq.heappop(heap)
            if not is_open(entry[1]):
                continue
            if suits(entry[1]):
                found = entry[1]
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def next_ms(self, run: RunId, step: Step) -> int | None:
        """When the first candidate becomes suspect, if there is one."""
        heap = self._suspects.get((run, step))
        return heap[0][0] if heap else None

    def keep(self, run: RunId, step: Step) -> None:
        """Leases of the run's other steps are not wanted any more."""
        for place in [place for place in self._suspects if place[0] == run and place[1] != step]:
            del self._suspects[place]
