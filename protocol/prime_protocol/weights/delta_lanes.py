"""Lanes that differ between two blocks of bytes, as gap codes and value planes; and how to put them back.

One training step changes few bf16 weights, most of them by one unit in the last place: bf16 keeps 8 significant bits,
and a smaller update rounds away. Public systems report 1 to 3 % changed bytes per step. So a sparse block stores the
distances between changed lanes and the steps (new - old) separately, each in a form that zstd compresses well:

- A gap code is the number of unchanged lanes before a changed one, in one byte.
- A step is an integer difference modulo 2^w, folded (zigzag) so that small steps of either sign are small numbers.
  Floats of one sign are ordered as their bit patterns are, so the next float is a step of 1 or -1, also across a power
  of two. An XOR would set many bits there: 0x3f7f and 0x3f80 differ in eight.
- Folded steps are split into byte planes. All planes but the lowest are then mostly zeros.

A lane is 1, 2 or 4 little-endian bytes and is never read as a float, so NaN payloads and the sign of zero survive.
Invariant: scatter(old, scan(old, new)) == new, bit by bit, and the C kernels (native/delta.c) and the numpy functions
give the same bytes. The bytes are specified in docs/protocol/weights.md. Input of a peer is checked in delta.py before
it comes here: gap codes that lead outside the block would write outside the target.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prime_protocol.native import library

Bytes: TypeAlias = NDArray[np.uint8]
Changes: TypeAlias = tuple[Bytes, Bytes]
"""Gap codes, and planes of shape (width, changed lanes): plane p holds byte p of every folded step."""

ESCAPE = 255
"""A gap code that means: 255 unchanged lanes, and the gap continues. Any other code ends its gap. So there is exactly
one list of codes for a list of lanes, and no code can go backwards."""

UNSIGNED: dict[int, Any] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


PIECE_BYTES = 2**20
"""A kernel works on this much before `see` gets it, so that hashing finds the bytes in the processor's cache. Hashing
in a second pass over the whole block would read it from memory again."""

OnPiece: TypeAlias = Callable[[Bytes], object]
"""Gets a block in one or more pieces, in order."""


def ignore_piece(piece: Bytes) -> None:
    """For callers that do not need the pieces."""


class DeltaScanState(ctypes.Structure):
    """Changes that are being written, as delta.c has it."""

    _fields_ = [
        ("gaps", ctypes.c_void_p),
        ("planes", ctypes.c_void_p),
        ("plane_stride", ctypes.c_size_t),
        ("next", ctypes.c_size_t),
    ]


class DeltaScatterState(ctypes.Structure):
    """Changes that are being applied, as delta.c has it."""

    _fields_ = [
        ("gaps", ctypes.c_void_p),
        ("planes", ctypes.c_void_p),
        ("plane_stride", ctypes.c_size_t),
        ("left", ctypes.c_size_t),
        ("next", ctypes.c_size_t),
    ]


def scan(old: Bytes, new: Bytes, width: int, see: OnPiece) -> Changes:
    """The lanes where `new` differs from `old`, by the fastest method of this machine. `see` gets `new`."""
    kernels = get_kernels()
    if kernels is not None:
        return scan_native(kernels, old, new, width, see)
    see(new)
    return scan_numpy(old, new, width)


def scatter(target: Bytes, gaps: Bytes, planes: Bytes, see: OnPiece) -> None:
    """Apply checked changes in place to the block they were scanned against. `see` gets the result.

    `gaps` must name as many lanes as the planes have columns, all inside the target: the C kernel does not check.
    """
    kernels = get_kernels()
    if kernels is not None:
        scatter_native(kernels, target, gaps, planes, see)
        return
    scatter_numpy(target, gaps, planes)
    see(target)


def get_kernels() -> ctypes.CDLL | None:
    """The compiled kernels. They read lanes in machine order, so only a little-endian machine may use them."""
    return library("delta") if sys.byteorder == "little" else None


def scan_native(
    kernels: ctypes.CDLL, old: Bytes, new: Bytes, width: int, see: OnPiece = ignore_piece, *, wide: bool = True
) -> Changes:
    """`wide=False` uses plain C, as on a processor without AVX2; tests compare both."""
    assert old.size == new.size
    lanes = old.size // width
    # Room for the worst case: every lane changed. Pages that are never written take no memory.
    gaps = np.empty(lanes + lanes // ESCAPE, np.uint8)
    planes = np.empty((width, lanes), np.uint8)
    out = DeltaScanState(gaps.ctypes.data, planes.ctypes.data, lanes, 0)
    kernels.delta_scan.restype = None
    for start in range(0, new.size, PIECE_BYTES):
        before, after = old[start : start + PIECE_BYTES], new[start : start + PIECE_BYTES]
        kernels.delta_scan(
            get_pointer(before),
            get_pointer(after),
            ctypes.c_size_t(after.size // width),
            ctypes.c_int(width),
            ctypes.c_int(wide),
            ctypes.byref(out),
        )
        see(after)
    return gaps[: out.gaps - gaps.ctypes.data], planes[:, : out.planes - planes.ctypes.data]


def scatter_native(
    kernels: ctypes.CDLL, target: Bytes, gaps: Bytes, planes: Bytes, see: OnPiece = ignore_piece
) -> None:
    assert target.flags.writeable
    assert planes.flags.c_contiguous
    width, count = planes.shape
    steps = DeltaScatterState(gaps.ctypes.data, planes.ctypes.data, count, count, 0)
    kernels.delta_scatter.restype = None
    for start in range(0, target.size, PIECE_BYTES):
        piece = target[start : start + PIECE_BYTES]
        kernels.delta_scatter(
            get_pointer(piece), ctypes.c_size_t(piece.size // width), ctypes.c_int(width), ctypes.byref(steps)
        )
        see(piece)


def get_pointer(array: Bytes) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def scan_numpy(old: Bytes, new: Bytes, width: int) -> Changes:
    before, after = old.view(UNSIGNED[width]), new.view(UNSIGNED[width])
    positions = np.flatnonzero(before != after)
    return encode_gaps(positions), split_planes(encode_zigzag(after[positions] - before[positions]))


def scatter_numpy(target: Bytes, gaps: Bytes, planes: Bytes) -> None:
    # Unsigned arithmetic wraps around, so adding the step modulo 2^w undoes the subtraction for every pair of lanes.
    lanes = target.view(UNSIGNED[planes.shape[0]])
    lanes[decode_gaps(gaps)] += decode_zigzag(join_planes(planes))


def encode_gaps(positions: NDArray[np.int64]) -> Bytes:
    """One code per position, after an ESCAPE for every 255 unchanged lanes before it."""
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(gaps // ESCAPE + 1)
    codes = np.full(ends[-1] if ends.size else 0, ESCAPE, np.uint8)
    codes[ends - 1] = gaps % ESCAPE
    return codes


def decode_gaps(codes: Bytes) -> NDArray[np.int64]:
    """Positions of the changed lanes: all unchanged lanes before each one, plus the changed lanes before it."""
    ends = np.flatnonzero(codes != ESCAPE)
    return np.cumsum(codes, dtype=np.int64)[ends] + np.arange(ends.size)


def encode_zigzag(steps: NDArray[Any]) -> NDArray[Any]:
    """Signed to unsigned: 0, -1, 1, -2 become 0, 1, 2, 3, so that a small step leaves the upper planes zero.

    `steps` are unsigned differences modulo 2^w; their highest bit is the sign.
    """
    sign = steps >> (8 * steps.itemsize - 1)
    return (steps << 1) ^ (0 - sign)


def decode_zigzag(folded: NDArray[Any]) -> NDArray[Any]:
    return (folded >> 1) ^ (0 - (folded & 1))


def split_planes(lanes: NDArray[Any]) -> Bytes:
    """Byte p of every lane, for each p."""
    little = lanes.astype(UNSIGNED[lanes.itemsize], copy=False)
    return np.ascontiguousarray(little.view(np.uint8).reshape(-1, lanes.itemsize).T)


def join_planes(planes: Bytes) -> NDArray[Any]:
    lanes: NDArray[Any] = planes.T.reshape(-1).view(UNSIGNED[planes.shape[0]])
    return lanes
