"""TOPLOC kernels in numpy: which values a proof covers, the polynomial through them, and its values elsewhere.

native/toploc_select.c and native/toploc_field.c hold the same computations, much faster; toploc_kernels.py chooses.
Wire format, limits and verdicts are in toploc.py and toploc_verify.py.

Selection. bf16 has 8 significant bits, so the k-th largest magnitude of a chunk is often shared by several values, and
only some of them are covered. Which ones decides the bytes of a proof. Proofs must equal those of the public package,
which calls torch.topk on the CPU (aten/src/ATen/native/TopKImpl.h): partial_sort if k * 64 <= n, else nth_element. The
C++ standard does not say which of several equal elements these keep, so the steps of libstdc++ are repeated here:
`__heap_select` with `__adjust_heap`, and `__introselect` with `__unguarded_partition_pivot`. Comparisons are by
magnitude alone; an index must never break a tie. tests/vectors/toploc.json holds proofs of the public package.

More than equal bytes depends on it. The verifier evaluates a proof at the indices that it selected itself. If it chose
other values of a tie than the prover, it would evaluate at points that the prover did not interpolate. The polynomial
is as good as random there, so each such value of honest work would count as an exponent mismatch.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import TOPLOC_K, TOPLOC_MODULUS_MIN, TOPLOC_PRIME

Bits = NDArray[np.uint16]
Points = NDArray[np.uint32]

PRIME = np.uint32(TOPLOC_PRIME)
INDEX_BITS = 32
SCAN_VALUES = 4096


def select(bits: Bits) -> tuple[Points, Bits]:
    """Indices and patterns of the largest magnitudes of each chunk (one per row), in no particular order."""
    indices = np.stack([select_row(row & 0x7FFF) for row in bits])
    return indices, np.take_along_axis(bits, indices.astype(np.intp), axis=1)


def select_from(bits: Bits, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Points, Bits]:
    """The same of some rows, and of so many values at the beginning of each: TOPLOC_K or more, else as many."""
    sizes = bits & np.uint16(0x7FFF)
    indices = np.stack([select_row(sizes[row, :count]) for row, count in zip(rows, counts, strict=True)])
    return indices, bits[rows[:, None], indices]


def select_row(sizes: Bits) -> Points:
    """Indices of the largest magnitudes. The slow repetition of torch.topk runs only if the k-th largest is a tie."""
    n, k = len(sizes), min(TOPLOC_K, len(sizes))
    smallest = np.partition(sizes, n - k)[n - k]
    chosen = np.flatnonzero(sizes >= smallest)
    if len(chosen) > k:
        chosen = np.array(select_by_heap(sizes, k) if k * 64 <= n else select_by_partition(sizes, k))
    return chosen.astype(np.uint32)


# An item is one integer: the magnitude in the upper bits, the index in the lower ones. Items are compared by magnitude
# alone, because torch compares values without their indices.


def is_before(a: int, b: int) -> bool:
    return a >> INDEX_BITS > b >> INDEX_BITS


def make_items(sizes: Bits) -> list[int]:
    return [size << INDEX_BITS | index for index, size in enumerate(sizes.tolist())]


def get_indices(items: list[int]) -> list[int]:
    return [item & (1 << INDEX_BITS) - 1 for item in items]


def sift(heap: list[int], node: int, n: int, moving: int) -> None:
    """Put `moving` at `node` of a heap with the smallest on top; of equal children the right one moves up.

    libstdc++ first moves the hole to the bottom and then pushes `moving` up from there (`__adjust_heap`). Stopping at
    the first child that is larger gives the same heap: an equal child moves up in both.
    """
    while (child := 2 * node + 1) < n:
        if child + 1 < n and not is_before(heap[child + 1], heap[child]):
            child += 1
        if is_before(heap[child], moving):
            break
        heap[node] = heap[child]
        node = child
    heap[node] = moving


def make_heap(heap: list[int], n: int) -> None:
    for top in reversed(range(n // 2)):
        sift(heap, top, n, heap[top])


def select_by_heap(sizes: Bits, k: int) -> list[int]:
    """`std::partial_sort` without the final sort: a heap of the first k items, and each later item that is larger.

    A value equal to the smallest of the heap is not taken. Comparing whole blocks with the top only skips values that
    cannot enter, because the top never gets smaller.
    """
    heap = make_items(sizes[:k])
    make_heap(heap, k)
    for start in range(k, len(sizes), SCAN_VALUES):
        block = sizes[start : start + SCAN_VALUES]
        for offset in np.flatnonzero(block > heap[0] >> INDEX_BITS).tolist():
            fresh = int(block[offset]) << INDEX_BITS | start + offset
            if is_before(fresh, heap[0]):
                sift(heap, 0, k, fresh)
    return get_indices(heap)


def select_by_partition(sizes: Bits, k: int) -> list[int]:
    """`std::nth_element` (`__introselect`): partition the part that holds position k until three items are left.

    After 2 * log2(n) rounds libstdc++ assumes bad pivots and selects by heap. That fallback decides bytes too.
    """
    items = make_items(sizes)
    first, last = 0, len(items)
    rounds = 2 * (last.bit_length() - 1)
    while last - first > 3 and rounds > 0:
        cut = partition(items, first, last)
        first, last = (cut, last) if cut < k else (first, cut)
        rounds -= 1
    if last - first > 3:
        items[first:last] = keep_by_heap(items[first:last], k - first)
    else:
        items[first:last] = sorted(items[first:last], key=lambda item: -(item >> INDEX_BITS))
    return get_indices(items[:k])


def partition(items: list[int], first: int, last: int) -> int:
    """Split items[first:last] around the median of three of them; where the second part begins.

    `__unguarded_partition_pivot`: the order of the comparisons decides which of equal items becomes the pivot, and
    equal items on both sides are swapped. Do not simplify.
    """
    a, b, c = first + 1, first + (last - first) // 2, last - 1
    if is_before(items[a], items[b]):
        median = b if is_before(items[b], items[c]) else c if is_before(items[a], items[c]) else a
    else:
        median = a if is_before(items[a], items[c]) else c if is_before(items[b], items[c]) else b
    items[first], items[median] = items[median], items[first]
    pivot, low, high = items[first], first + 1, last - 1
    while True:
        while is_before(items[low], pivot):
            low += 1
        while is_before(pivot, items[high]):
            high -= 1
        if low >= high:
            return low
        items[low], items[high] = items[high], items[low]
        low, high = low + 1, high - 1


def keep_by_heap(items: list[int], keep: int) -> list[int]:
    """The largest come to the front; what a partition selection with bad pivots falls back on."""
    make_heap(items, keep)
    for i in range(keep, len(items)):
        if is_before(items[i], items[0]):
            fresh, items[i] = items[i], items[0]
            sift(items, 0, keep, fresh)
    return items


@cache
def get_inverses() -> Bits:
    """1 / d modulo the prime at place d + prime, for d from -prime to prime. By Fermat: d to the power prime - 2."""
    base, power = np.arange(TOPLOC_PRIME, dtype=np.uint64), TOPLOC_PRIME - 2
    inverse = np.ones_like(base)
    while power:
        if power & 1:
            inverse = inverse * base % TOPLOC_PRIME
        base = base * base % TOPLOC_PRIME
        power >>= 1
    return np.concatenate([inverse, inverse]).astype(np.uint16)


def reduce_mod_prime(numbers: Points) -> Points:
    """Modulo the prime. numpy divides by a constant much faster than it takes a remainder."""
    return numbers - numbers // PRIME * PRIME


def find_modulus(row: Points) -> int:
    """The largest modulus under which the indices stay distinct, or 0.

    Indices of a chunk go up to tokens * hidden, far beyond the field, and interpolation needs distinct points.
    The prover states the modulus, so it has a least value: under a small one all indices fall on few points, and a
    forger has to match only these. The C++ code of the public package has no such bound.
    """
    for modulus in range(TOPLOC_PRIME, TOPLOC_MODULUS_MIN - 1, -1):
        if len(np.unique(row % np.uint32(modulus))) == len(row):
            return modulus
    return 0


def interpolate(indices: Points, values: Bits) -> tuple[Bits, Bits]:
    """Modulus and coefficients, lowest first, of each chunk's polynomial. A modulus of 0: there is none."""
    chunks, k = indices.shape
    moduli = np.array([find_modulus(row) for row in indices], dtype=np.uint16)
    x = (indices % np.maximum(moduli, 1)[:, None].astype(np.uint32)).T
    inverses = get_inverses()
    # Newton's divided differences, all chunks at once. Every product is below 2^32: both factors are below 2^16.
    a = values.T.astype(np.uint32)
    newton = [a[0].copy()]
    for j in range(1, k):
        n = k - j
        scale = inverses[x[j:] + PRIME - x[:n]].astype(np.uint32)
        a[:n] = reduce_mod_prime(reduce_mod_prime(a[1 : n + 1] + PRIME - a[:n]) * scale)
        newton.append(a[0].copy())
    # From Newton's form to coefficients by Horner: c = c * (X - x[i]) + newton[i]. Row 0 stays zero: it is what the
    # lowest coefficient receives from below.
    c = np.zeros((k + 1, chunks), dtype=np.uint32)
    c[1] = newton[-1]
    for i in reversed(range(k - 1)):
        used = k - i
        c[1 : used + 1] = reduce_mod_prime(np.vstack([c[1:used], c[:1]]) * (PRIME - x[i]) + c[:used])
        c[1] = reduce_mod_prime(c[1] + newton[i])
    return moduli, np.ascontiguousarray(c[1:].T.astype(np.uint16))


def evaluate(coefficients: Bits, points: Points) -> Bits:
    """Each chunk's polynomial at points of its own."""
    total = np.zeros(points.shape, dtype=np.uint32)
    for coefficient in coefficients.T[::-1]:
        total = reduce_mod_prime(total * points + coefficient[:, None].astype(np.uint32))
    return total.astype(np.uint16)


def pick_free(draws: Points, taken: Points, count: int) -> tuple[Points, NDArray[np.int64]]:
    """Per chunk the first draws that are new and not taken, then the smallest free points; and repeats in `taken`."""
    points = np.empty((len(draws), count), dtype=np.uint32)
    for row, (drawn, used) in enumerate(zip(draws.tolist(), taken.tolist(), strict=True)):
        fresh = dict.fromkeys(drawn + list(range(len(used) + count)))
        points[row] = [point for point in fresh if point not in set(used)][:count]
    repeats = [len(row) - len(set(row)) for row in taken.tolist()]
    return points, np.array(repeats, dtype=np.int64)
