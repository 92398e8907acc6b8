"""Which slots of a step are free, as ranges. Pure.

Kept beside the ledger's own books only to find a free range quickly; the ledger refuses whatever would not be free.
"""

from bisect import insort


class FreeSlots:
    """The free slots of one step, as disjoint ranges in order."""

    def __init__(self, total: int, taken: set[int]) -> None:
        self._ranges: list[tuple[int, int]] = []
        start = 0
        for slot in [*sorted(taken), total]:
            if slot > start:
                self._ranges.append((start, slot))
            start = slot + 1

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self._ranges)

    def take(self, wanted: int) -> range | None:
        """Up to `wanted` slots from the lowest free range."""
        if not self._ranges:
            return None
        start, stop = self._ranges[0]
        end = min(stop, start + wanted)
        if end == stop:
            self._ranges.pop(0)
        else:
            self._ranges[0] = (end, stop)
        return range(start, end)

    def give_back(self, slots: range) -> None:
        """Slots of a lease that ended, or of a submission that was not accepted."""
        insort(self._ranges, (slots.start, slots.stop))
        merged: list[tuple[int, int]] = []
        for start, stop in self._ranges:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        self._ranges = merged
