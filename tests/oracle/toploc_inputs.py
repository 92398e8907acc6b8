"""Activations for TOPLOC tests and vectors: bf16 patterns that are the same on every machine and numpy version.

Randomness is the raw stream of Philox with an explicit key, which numpy keeps stable; the rest is integer arithmetic
and correctly rounded float32 operations.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from prime_protocol.proofs import toploc_numpy as toploc_plain

Bits = NDArray[np.uint16]


def words(seed: int, count: int) -> Bits:
    """Uniform 16-bit numbers."""
    raw = np.random.Philox(key=seed).random_raw(-(-count // 4))
    return np.asarray(raw, dtype="<u8").view("<u2")[:count].astype(np.uint16)


def to_bf16(values: NDArray[np.float32]) -> Bits:
    """Round to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bell(seed: int, count: int) -> NDArray[np.float32]:
    """Near-Gaussian: the sum of four uniforms, exact in float32, spread 1.2."""
    total = words(seed, 4 * count).reshape(4, count).sum(axis=0, dtype=np.int32)
    return (total - 131_070).astype(np.float32) / np.float32(32_768)


def gaussian(seed: int, tokens: int, hidden: int) -> Bits:
    return to_bf16(bell(seed, tokens * hidden))


def heavy(seed: int, tokens: int, hidden: int) -> Bits:
    """Tails like those of a Student t: some values a thousand times the others."""
    divisor = (words(seed + 1, tokens * hidden).astype(np.float32) + np.float32(64)) / np.float32(65_536)
    return to_bf16(bell(seed, tokens * hidden) / divisor)


def massive(seed: int, tokens: int, hidden: int) -> Bits:
    """Near-Gaussian with a few channels fifty times as large, as in real final hidden states."""
    values = bell(seed, tokens * hidden).reshape(tokens, hidden)
    values[:, words(seed + 1, 6) % hidden] *= np.float32(50)
    return to_bf16(values.reshape(-1))


def tied(seed: int, tokens: int, hidden: int) -> Bits:
    """Nine magnitudes, either sign: nearly every choice is a tie."""
    noise = words(seed, tokens * hidden)
    return (0x3F80 + np.bitwise_count(noise & 0xFF).astype(np.uint16)) | noise & 0x8000


def level(seed: int, tokens: int, hidden: int) -> Bits:
    """One magnitude, either sign."""
    return 0x3F80 | words(seed, tokens * hidden) & 0x8000


def zeros(seed: int, tokens: int, hidden: int) -> Bits:
    """Zeros of either sign and fewer values than a proof covers."""
    noise = words(seed, tokens * hidden)
    return np.where(noise & 0x7F00, noise & 0x8000, noise).astype(np.uint16)


def extreme(seed: int, tokens: int, hidden: int) -> Bits:
    """The largest finite values, the smallest, and zeros."""
    edges = np.array([0x7F7F, 0xFF7F, 0x7F7E, 0x0001, 0x8001, 0x0000, 0x8000, 0x007F], dtype=np.uint16)
    return edges[words(seed, tokens * hidden) & 7]


def uniform(seed: int, tokens: int, hidden: int) -> Bits:
    """Every finite pattern alike."""
    noise = words(seed, tokens * hidden)
    return np.where((noise & 0x7F80) == 0x7F80, noise & 0x807F, noise).astype(np.uint16)


def rising(seed: int, tokens: int, hidden: int) -> Bits:
    """Sorted by magnitude: every value displaces one."""
    bits = uniform(seed, tokens, hidden)
    return bits[np.argsort(bits & 0x7FFF, kind="stable")]


def falling(seed: int, tokens: int, hidden: int) -> Bits:
    return rising(seed, tokens, hidden)[::-1]


def colliding(seed: int, tokens: int, hidden: int) -> Bits:
    """Near-Gaussian with pairs of large values that several moduli bring together."""
    bits = gaussian(seed, tokens, hidden)
    for start in range(0, bits.size, 32 * hidden):
        room = min(32 * hidden, bits.size - start)
        for step, modulus in enumerate(range(65_497, 65_497 - 12, -1)):
            if 17 * step + modulus < room:
                bits[start + 17 * step] = 0x4400 + step
                bits[start + 17 * step + modulus] = 0xC480 + step
    return bits


def stubborn(seed: int, tokens: int, hidden: int) -> Bits:
    """Values that make a selection by partition pick bad pivots until it gives up; signs are random.

    McIlroy's adversary: a value is decided only when a comparison asks for it, and then so that the pivot is extreme.
    """
    count = tokens * hidden
    state = {"solid": 0}

    class Item:
        def __init__(self) -> None:
            self.rank: int | None = None

        def __rshift__(self, _: int) -> "Item":
            return self

        def __gt__(self, other: "Item") -> bool:
            if self.rank is None and other.rank is None:
                self.freeze()
            return (self.rank if self.rank is not None else count) < (other.rank if other.rank is not None else count)

        def freeze(self) -> None:
            self.rank = state["solid"]
            state["solid"] += 1

    made = [Item() for _ in range(count)]
    items: list[Item] = list(made)
    first, last = 0, count
    while last - first > 3 and state["solid"] < 120:
        cut = toploc_plain.partition(items, first, last)  # type: ignore[arg-type]
        first, last = (cut, last) if cut < 128 else (first, cut)
    ranks = [item.rank if item.rank is not None else count for item in made]
    sizes = 0x4000 + count - np.array(ranks, dtype=np.int64)
    return (sizes | words(seed, count) & 0x8000).astype(np.uint16)


DISTRIBUTIONS: dict[str, Callable[[int, int, int], Bits]] = {
    make.__name__: make
    for make in (
        gaussian,
        heavy,
        massive,
        tied,
        level,
        zeros,
        extreme,
        uniform,
        rising,
        falling,
        colliding,
        stubborn,
    )
}


def make_bits(distribution: str, seed: int, tokens: int, hidden: int) -> Bits:
    """Patterns of shape (tokens, hidden)."""
    return np.ascontiguousarray(DISTRIBUTIONS[distribution](seed, tokens, hidden).reshape(tokens, hidden))


def disturb(bits: Bits, seed: int, reach: int) -> Bits:
    """Noise as between two machines: up to `reach` units in the last place, either way."""
    shift = words(seed, bits.size).reshape(bits.shape).astype(np.int32) % (2 * reach + 1) - reach
    sizes = np.clip((bits & 0x7FFF).astype(np.int32) + shift, 0, 0x7F7F)
    return (sizes | bits & 0x8000).astype(np.uint16)
