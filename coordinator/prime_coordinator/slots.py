"""Which slots of a step are free, as ranges. Pure.

Kept beside the ledger's own books only to find a free range quickly; the ledger refuses whatever would not be free. A
slot counts as covered while a lease or an unsettled submission has it, second chances included: who is given a free
slot must not find it credited to somebody else.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise


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
