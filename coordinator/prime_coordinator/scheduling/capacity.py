"""Which slots of a step are free, as ranges. Pure.

Kept beside the ledger's own books only to find a free range quickly; the ledger refuses whatever would not be free. A
slot counts as covered while a lease or an unsettled submission has it, second chances included: who is given a free
slot must not find it credited to somebody else.

Which open lease is overdue first: the candidates for a second chance by another node. Pure.

Leases that have closed since are dropped when they come to the top, so a call costs little however many are open.

How fast each node really is: output tokens per second, from the time between a lease and its submission. Pure.

A node's own figure counts only until the first lease is answered, and then no more: paying for speed invites lies.

How a run goes: tokens a slot takes, milliseconds a step takes, and until when a result is of use. Pure.
"""

import heapq
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from prime_coordinator.constants import (
    THROUGHPUT_CLAIMED_MAX,
    THROUGHPUT_DECAY,
    THROUGHPUT_MIN,
    TOKENS_PER_SLOT_DECAY,
    TOKENS_PER_SLOT_FIRST,
)
from prime_protocol.ledger.state import RunState, SubmissionState
from prime_protocol.wire.ids import NodeId, RunId, Step


class FreeSlots:
    """The free slots of one step, as disjoint ranges in order."""

    def __init__(self, total: int, covered: Iterable[range], gone: Iterable[int]) -> None:
        """`gone`: credited, or held by work that was accepted."""
        self._covers = Counter(slot for slots in covered for slot in slots)
        self._ranges: list[tuple[int, int]] = []
        start = 0
        for slot in [*sorted({*self._covers, *gone}), total]:
            if slot > start:
                self._ranges.append((start, slot))
            start = slot + 1

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self._ranges)

    def take(self, wanted: int) -> range | None:
        """Up to `wanted` slots from the lowest free range, covered from now on."""
        if not self._ranges:
            return None
        start, stop = self._ranges[0]
        end = min(stop, start + wanted)
        if end == stop:
            self._ranges.pop(0)
        else:
            self._ranges[0] = (end, stop)
        self._covers.update(range(start, end))
        return range(start, end)

    def count(self, slot: int) -> int:
        """How many have a slot."""
        return self._covers[slot]

    def cover(self, slots: range) -> None:
        """One more has these slots, which somebody has already."""
        assert all(self._covers[slot] for slot in slots)
        self._covers.update(slots)

    def uncover(self, slots: range, is_gone: Callable[[int], bool]) -> None:
        """One less has these slots. Those that nobody has and that are not gone are free again."""
        self._covers.subtract(slots)
        for slot in slots:
            if not self._covers[slot]:
                del self._covers[slot]
        loose = [slot for slot in slots if slot not in self._covers and not is_gone(slot)]
        cuts = [0, *(place + 1 for place, (a, b) in enumerate(pairwise(loose)) if b != a + 1), len(loose)]
        for start, stop in pairwise(cuts):
            if start < stop:
                insort(self._ranges, (loose[start], loose[stop - 1] + 1))
        self._merge()

    def close(self, slots: range) -> None:
        """Free or not, these are gone: an appeal has credited work whose slots had been given back."""
        ranges, self._ranges = self._ranges, []
        for start, stop in ranges:
            parts = ((start, min(stop, slots.start)), (max(start, slots.stop), stop))
            self._ranges += [part for part in parts if part[0] < part[1]]

    def _merge(self) -> None:
        merged: list[tuple[int, int]] = []
        for start, stop in self._ranges:
            if merged and start == merged[-1][1]:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        self._ranges = merged


SKIPPED_MAX = 16
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
        while found is None and heap and heap[0][0] <= now_ms and len(passed) < SKIPPED_MAX:
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


class Throughput:
    """Measured tokens per second of each node, newer leases weighing more."""

    def __init__(self) -> None:
        self._measured: dict[NodeId, float] = {}
        self._answered_ms: dict[NodeId, int] = {}

    def record(self, node: NodeId, *, tokens: int, leased_ms: int, now_ms: int) -> None:
        """A lease was answered. One that waited behind another is timed from when that other was answered."""
        began_ms = max(leased_ms, self._answered_ms.get(node, 0))
        self._answered_ms[node] = now_ms
        speed = 1000 * tokens / max(now_ms - began_ms, 1)
        known = self._measured.get(node)
        self._measured[node] = speed if known is None else THROUGHPUT_DECAY * known + (1 - THROUGHPUT_DECAY) * speed

    def record_loss(self, node: NodeId) -> None:
        """A lease ran out: the node was slower than was thought, by how much is not known."""
        if node in self._measured:
            self._measured[node] = max(THROUGHPUT_MIN, self._measured[node] / 2)

    def get(self, node: NodeId, claimed: int) -> float:
        return max(THROUGHPUT_MIN, self._measured.get(node, min(claimed, THROUGHPUT_CLAIMED_MAX)))

    def is_measured(self, node: NodeId) -> bool:
        return node in self._measured


@dataclass(slots=True)
class StepEstimate:
    """Of one run."""

    tokens_per_slot: float
    published_ms: int | None = None
    step_ms: float | None = None

    @classmethod
    def recover(cls, run: RunState) -> "StepEstimate":
        """As the log tells it."""
        terms = run.terms
        pace = cls(max(1.0, TOKENS_PER_SLOT_FIRST * terms.output_tokens_max * terms.samples_per_slot))
        for step in sorted(run.checkpoints):
            pace.published(run.checkpoints[step].position.at_ms)
        for submission in run.submissions.values():
            pace.submitted(submission)
        return pace

    def published(self, now_ms: int) -> None:
        if self.published_ms is not None:
            took_ms = now_ms - self.published_ms
            self.step_ms = took_ms if self.step_ms is None else (self.step_ms + took_ms) / 2
        self.published_ms = now_ms

    def submitted(self, submission: SubmissionState) -> None:
        seen = submission.output_tokens / len(submission.slots)
        self.tokens_per_slot = TOKENS_PER_SLOT_DECAY * self.tokens_per_slot + (1 - TOKENS_PER_SLOT_DECAY) * seen

    def time_left_ms(self, run: RunState, checkpoint_step: int, now_ms: int) -> float | None:
        """Until the trainer will be past the lag of what is generated with that checkpoint; None where nobody knows.

        A step that takes longer than those before it waits for work, so nothing is too late for it.
        """
        if self.step_ms is None or self.published_ms is None:
            return None
        age = max(0, run.latest - checkpoint_step)
        left_ms = self.published_ms + (run.terms.lag_max + 1 - age) * self.step_ms - now_ms
        step = run.steps.get(Step(run.latest))
        is_awaited = step is None or not step.pending
        return None if left_ms <= 0 or is_awaited else left_ms
