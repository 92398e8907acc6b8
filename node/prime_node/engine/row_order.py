"""How the rows of a batch are kept: without gaps, and nearly sorted by length, the longest first. Pure.

Rows of unequal length share one attention call, which costs as much for each as for the longest. Neighbours of about
the same length are therefore called together, apart from the others. Length is how many tokens a row has in the cache.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

STRIPES = 8
"""Into how many stripes a batch is cut: each a call at most, and a gap moves at most so many rows."""

LENGTH_STEP = 32
"""Lengths are rounded up to this, so that neighbours fall together and masks stay aligned for a GPU."""

CALL_COST = 256
"""What one more attention call costs, in cached tokens that could be read instead: about 10 us."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """Rows from `start` to before `stop`, and the tokens that the shortest and the longest of them have."""

    start: int
    stop: int
    shortest: int
    longest: int

    @property
    def is_even(self) -> bool:
        return self.shortest == self.longest

    @property
    def length(self) -> int:
        """How many tokens of each row are read. Rows of one length need no mask, and no rounding."""
        return self.longest if self.is_even else -(-self.longest // LENGTH_STEP) * LENGTH_STEP

    @property
    def cost(self) -> int:
        return (self.stop - self.start) * self.length + CALL_COST


def plan_stripes(lengths: Sequence[int]) -> list[Stripe]:
    """Which rows to attend together, so that little is read for nothing."""
    size = -(-len(lengths) // STRIPES) or 1
    stripes: list[Stripe] = []
    for start in range(0, len(lengths), size):
        part = lengths[start : start + size]
        stripe = Stripe(start, start + len(part), min(part), max(part))
        while stripes and (merged := merge(stripes[-1], stripe)).cost <= stripes[-1].cost + stripe.cost:
            stripes.pop()
            stripe = merged
        stripes.append(stripe)
    return stripes


def merge(one: Stripe, next_: Stripe) -> Stripe:
    return Stripe(one.start, next_.stop, min(one.shortest, next_.shortest), max(one.longest, next_.longest))


def close_gaps(rows: int, gone: Collection[int], *, stripes: int = STRIPES) -> list[int]:
    """Which row each place takes over once some are gone: shorter than before, and nearly in the same order.

    A gap is closed from a stripe further on, whose gap is closed from the next one: few rows move, and none far. With
    one stripe a single row moves, from the end.
    """
    order = list(range(rows))
    reach = -(-rows // stripes)
    for gap in sorted(gone, reverse=True):
        last = len(order) - 1
        while gap < last:
            source = min(gap + reach, last)
            order[gap] = order[source]
            gap = source
        order.pop()
    return order
