"""How many neighbours have each shard, and which of some shards are the rarest.

Bitmaps are whole numbers, bit i for shard i. Counts are kept in planes: plane k holds bit k of every shard's count,
so that adding a neighbour or finding the rarest is a handful of operations on whole bitmaps, however many shards.
"""

from random import Random


class Rarity:
    """Counts over bitmaps that come and go."""

    def __init__(self) -> None:
        self._planes: list[int] = []

    def add(self, bitmap: int) -> None:
        """One more neighbour has these."""
        carry = bitmap
        for index, plane in enumerate(self._planes):
            if not carry:
                return
            self._planes[index] = plane ^ carry
            carry &= plane
        if carry:
            self._planes.append(carry)

    def remove(self, bitmap: int) -> None:
        """One neighbour fewer has these; each was added before."""
        borrow = bitmap
        for index, plane in enumerate(self._planes):
            if not borrow:
                return
            self._planes[index] = plane ^ borrow
            borrow &= ~plane
        assert not borrow, "removed what was never added"

    def replace(self, old: int, new: int) -> None:
        self.remove(old & ~new)
        self.add(new & ~old)

    def find_rarest(self, candidates: int) -> int:
        """Those of the candidates that the fewest have."""
        for plane in reversed(self._planes):
            candidates = candidates & ~plane or candidates
        return candidates

    def count(self, shard: int) -> int:
        return sum((plane >> shard & 1) << index for index, plane in enumerate(self._planes))


def draw_bit(bitmap: int, dice: Random) -> int:
    """Index of one of the set bits, each as likely as the other."""
    assert bitmap
    rank = dice.randrange(bitmap.bit_count())
    index, width = 0, bitmap.bit_length()
    while width > 1:
        half = width >> 1
        low = bitmap & ((1 << half) - 1)
        below = low.bit_count()
        if rank < below:
            bitmap, width = low, half
        else:
            bitmap, width = bitmap >> half, width - half
            rank -= below
            index += half
    return index


def list_bits(bitmap: int) -> list[int]:
    """Indices of the set bits, lowest first."""
    found = []
    while bitmap:
        low = bitmap & -bitmap
        found.append(low.bit_length() - 1)
        bitmap ^= low
    return found
