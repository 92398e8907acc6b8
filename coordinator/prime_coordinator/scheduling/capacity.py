"""What the lease scheduler knows of capacity: free slots, overdue leases, throughput of nodes, duration of steps. Pure.

All of it only helps to decide quickly; the ledger refuses whatever it does not allow.
"""

import heapq
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from prime_coordinator.constants import (
    THROUGHPUT_CLAIMED_MAX,
    THROUGHPUT_HALF_LIFE_MS,
    THROUGHPUT_MIN,
    TOKENS_PER_SLOT_DECAY,
    TOKENS_PER_SLOT_FIRST,
)
from prime_protocol.ledger.state import RunState, SubmissionState
from prime_protocol.wire.ids import NodeId, RunId, Step


class FreeSlots:
    """The free slots of one step, as disjoint ranges in order.

    A slot is covered while a lease or an unsettled submission has it, duplicates included: a node that gets a free slot
    must not find it credited to another.
    """

    def __init__(self, total: int, covered: Iterable[range], gone: Iterable[int]) -> None:
        """`gone`: slots that are credited, or held by accepted work."""
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
        """Take up to `wanted` slots from the lowest free range; they are covered from now on."""
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
        """How many holders a slot has."""
        return self._covers[slot]

    def cover(self, slots: range) -> None:
        """Add a holder to slots that are already covered."""
        assert all(self._covers[slot] for slot in slots)
        self._covers.update(slots)

    def uncover(self, slots: range, is_gone: Callable[[int], bool]) -> None:
        """Remove a holder. Slots without a holder that are not gone become free."""
        self._covers.subtract(slots)
        for slot in slots:
            if not self._covers[slot]:
                del self._covers[slot]
        self.reopen(slots, is_gone)

    def reopen(self, slots: range, is_gone: Callable[[int], bool]) -> None:
        """Slots without a holder that are not gone become free: a holder left, or a credit was taken back."""
        freed = [slot for slot in slots if slot not in self._covers and not is_gone(slot)]
        cuts = [0, *(position + 1 for position, (a, b) in enumerate(pairwise(freed)) if b != a + 1), len(freed)]
        for start, stop in pairwise(cuts):
            if start < stop:
                insort(self._ranges, (freed[start], freed[stop - 1] + 1))
        self._merge()

    def close(self, slots: range) -> None:
        """Mark slots as gone, free or not: an appeal credited work whose slots had been freed."""
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
"""Unsuitable leases that one request looks at."""


class Stragglers:
    """Open leases of each step, in the order in which they become suspect.

    Closed leases are dropped when they come to the top, so a call is cheap however many leases are open.
    """

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
        """Take the first suspect lease that is open and suitable; it is no candidate afterwards."""
        heap = self._suspects.get((run, step), [])
        skipped: list[tuple[int, int]] = []
        found = None
        while found is None and heap and heap[0][0] <= now_ms and len(skipped) < SKIPPED_MAX:
            entry = heapq.heappop(heap)
            if not is_open(entry[1]):
                continue
            if suits(entry[1]):
                found = entry[1]
            else:
                skipped.append(entry)
        for entry in skipped:
            heapq.heappush(heap, entry)
        return found

    def next_ms(self, run: RunId, step: Step) -> int | None:
        """When the first candidate becomes suspect; None if there is none."""
        heap = self._suspects.get((run, step))
        return heap[0][0] if heap else None

    def keep(self, run: RunId, step: Step) -> None:
        """Drop the leases of the run's other steps."""
        for position in [position for position in self._suspects if position[0] == run and position[1] != step]:
            del self._suspects[position]


@dataclass(slots=True)
class DeliveredWork:
    """Tokens of one node and the time that they took. Newer work weighs more."""

    tokens: float = 0.0
    work_ms: float = 0.0
    answered_ms: int = 0
    """When it submitted last."""


class Throughput:
    """Measured output tokens per second of each node, of its whole engine.

    Leases that a node has at the same time share it: the time of a submission runs from the one before, or from the
    grant of the first open lease. A node's own claim counts only until its first submission: paying for speed invites
    lies.
    """

    def __init__(self) -> None:
        self._work: dict[NodeId, DeliveredWork] = {}

    def record(self, node: NodeId, *, tokens: int, leased_ms: int, now_ms: int, oldest_ms: int | None = None) -> None:
        """Record a submission. `oldest_ms`: when the oldest of the node's leases was granted, if it is another."""
        work = self._work.setdefault(node, DeliveredWork())
        took_ms = max(0, now_ms - max(leased_ms if oldest_ms is None else min(oldest_ms, leased_ms), work.answered_ms))
        # Many leases end together when an engine changes its weights: what they hold took as long as they were open.
        kept = 0.5 ** (took_ms / max(THROUGHPUT_HALF_LIFE_MS, 2 * (now_ms - leased_ms)))
        work.answered_ms = now_ms
        work.tokens = kept * work.tokens + tokens
        work.work_ms = kept * work.work_ms + took_ms

    def record_loss(self, node: NodeId) -> None:
        """Record an expired lease: the node is slower than estimated, by an unknown factor."""
        if node in self._work:
            self._work[node].tokens /= 2

    def get(self, node: NodeId, claimed: int) -> float:
        work = self._work.get(node)
        if work is None:
            return max(THROUGHPUT_MIN, min(claimed, THROUGHPUT_CLAIMED_MAX))
        return max(THROUGHPUT_MIN, 1000 * work.tokens / max(1.0, work.work_ms))

    def is_measured(self, node: NodeId) -> bool:
        return node in self._work


@dataclass(slots=True)
class StepEstimate:
    """Tokens per slot and milliseconds per step of one run, and until when a result is useful."""

    tokens_per_slot: float
    published_ms: int | None = None
    step_ms: float | None = None

    @classmethod
    def recover(cls, run: RunState) -> "StepEstimate":
        """Rebuilt from the log."""
        terms = run.terms
        estimate = cls(max(1.0, TOKENS_PER_SLOT_FIRST * terms.output_tokens_max * terms.samples_per_slot))
        for step in sorted(run.checkpoints):
            estimate.record_checkpoint(run.checkpoints[step].position.at_ms)
        for _, submission in run.list_recent():
            estimate.record_submission(submission)
        return estimate

    def record_checkpoint(self, now_ms: int) -> None:
        if self.published_ms is not None:
            took_ms = now_ms - self.published_ms
            self.step_ms = took_ms if self.step_ms is None else (self.step_ms + took_ms) / 2
        self.published_ms = now_ms

    def record_submission(self, submission: SubmissionState) -> None:
        seen = submission.output_tokens / len(submission.slots)
        self.tokens_per_slot = TOKENS_PER_SLOT_DECAY * self.tokens_per_slot + (1 - TOKENS_PER_SLOT_DECAY) * seen

    def time_left_ms(self, run: RunState, checkpoint_step: int, now_ms: int) -> float | None:
        """Time until the trainer accepts no more work of that checkpoint; None if unknown.

        A step that takes longer than the previous ones is waiting for work, so nothing is too late for it.
        """
        if self.step_ms is None or self.published_ms is None:
            return None
        age = max(0, run.latest - checkpoint_step)
        left_ms = self.published_ms + (run.terms.lag_max + 1 - age) * self.step_ms - now_ms
        step = run.steps.get(Step(run.latest))
        is_awaited = step is None or not step.pending
        return None if left_ms <= 0 or is_awaited else left_ms
