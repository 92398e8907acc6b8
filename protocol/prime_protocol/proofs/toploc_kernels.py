"""Which TOPLOC kernels to use: the compiled ones where they were built, else numpy. Both give the same values.

Only the choice and the calling convention are here; the computations are in toploc_numpy.py and native/toploc_*.c.
"""

import ctypes
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prime_protocol import native
from prime_protocol.constants import TOPLOC_K
from prime_protocol.proofs import toploc_numpy as toploc_plain
from prime_protocol.proofs.toploc_numpy import Bits, Points

Numbers = NDArray[np.int64]
SIZE, POINTER, FLAG = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int


class ToplocKernels(Protocol):
    """One row per chunk everywhere. Callers pass C-contiguous arrays whose ranges they have checked."""

    def select(self, bits: Bits) -> tuple[Points, Bits]:
        """Indices and patterns of the TOPLOC_K largest magnitudes, of all values if there are fewer; in any order."""
        ...

    def select_from(self, bits: Bits, rows: Numbers, counts: Numbers) -> tuple[Points, Bits]:
        """The same of some rows, and of so many values at the beginning of each: TOPLOC_K or more, else as many."""
        ...

    def interpolate(self, indices: Points, values: Bits) -> tuple[Bits, Bits]:
        """Moduli and coefficients. A modulus of 0: no modulus keeps the indices apart."""
        ...

    def evaluate(self, coefficients: Bits, points: Points) -> Bits:
        """The polynomials at the points."""
        ...

    def pick_free(self, draws: Points, taken: Points, count: int) -> tuple[Points, Numbers]:
        """`count` distinct points that are not taken, and how often `taken` repeats itself."""
        ...


class NativeToplocKernels:
    """The compiled kernels; `wide` allows the instructions that not every machine has."""

    def __init__(self, selection: ctypes.CDLL, field: ctypes.CDLL, *, wide: bool) -> None:
        self.selection = selection
        self.field = field
        self.wide = wide
        selection.toploc_select.argtypes = [POINTER, SIZE, POINTER, POINTER, SIZE, SIZE, POINTER, POINTER, FLAG]
        field.toploc_interpolate.argtypes = [POINTER, POINTER, SIZE, SIZE, POINTER, POINTER, POINTER, FLAG]
        field.toploc_evaluate.argtypes = [POINTER, SIZE, SIZE, POINTER, SIZE, POINTER, FLAG]
        field.toploc_pick_free.argtypes = [POINTER, SIZE, SIZE, POINTER, SIZE, POINTER, SIZE, POINTER]

    def select(self, bits: Bits) -> tuple[Points, Bits]:
        return self.select_from(bits, np.arange(len(bits)), np.full(len(bits), bits.shape[1]))

    def select_from(self, bits: Bits, rows: Numbers, counts: Numbers) -> tuple[Points, Bits]:
        chunks, k = len(rows), min(TOPLOC_K, int(counts[0]))
        indices, values = np.empty((chunks, k), dtype=np.uint32), np.empty((chunks, k), dtype=np.uint16)
        self.selection.toploc_select(
            address(bits),
            bits.shape[1],
            address(rows),
            address(counts),
            chunks,
            k,
            address(indices),
            address(values),
            self.wide,
        )
        return indices, values

    def interpolate(self, indices: Points, values: Bits) -> tuple[Bits, Bits]:
        chunks, k = indices.shape
        moduli, coefficients = np.empty(chunks, dtype=np.uint16), np.zeros((chunks, k), dtype=np.uint16)
        inverses = toploc_plain.get_inverses()
        self.field.toploc_interpolate(
            address(indices),
            address(values),
            chunks,
            k,
            address(inverses),
            address(moduli),
            address(coefficients),
            self.wide,
        )
        return moduli, coefficients

    def evaluate(self, coefficients: Bits, points: Points) -> Bits:
        chunks, k = coefficients.shape
        values = np.empty(points.shape, dtype=np.uint16)
        self.field.toploc_evaluate(
            address(coefficients), chunks, k, address(points), points.shape[1], address(values), self.wide
        )
        return values

    def pick_free(self, draws: Points, taken: Points, count: int) -> tuple[Points, Numbers]:
        chunks, drawn = draws.shape
        points, repeats = np.empty((chunks, count), dtype=np.uint32), np.empty(chunks, dtype=np.int64)
        self.field.toploc_pick_free(
            address(draws), chunks, drawn, address(taken), taken.shape[1], address(points), count, address(repeats)
        )
        return points, repeats


def address(array: Bits | Points | Numbers) -> int:
    assert array.flags.c_contiguous
    start: int = array.__array_interface__["data"][0]  # array.ctypes takes four times as long
    return start


def get_native_kernels() -> NativeToplocKernels | None:
    selection, field = native.library("toploc_select"), native.library("toploc_field")
    if selection is None or field is None:
        return None
    return NativeToplocKernels(selection, field, wide=bool(selection.toploc_wide()))


@cache
def get_kernels() -> ToplocKernels:
    """The fastest on this machine."""
    return get_native_kernels() or toploc_plain
