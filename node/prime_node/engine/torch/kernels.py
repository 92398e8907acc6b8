"""The operations of a decoder between its matrix products: our C kernels on one CPU thread, else torch.

A kernel passes over the data once where torch needs several operations, each of which costs more to launch than a small
model needs to compute.
"""

import ctypes
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from prime_node.engine.native import library
from prime_node.engine.torch.dense_shape import DenseShape

LANES = 8
"""The kernels work on whole vectors of this many floats."""
SIZE, POINTER = ctypes.c_size_t, ctypes.c_void_p
IndexArray = NDArray[np.int64]


class FusedOps(Protocol):
    """Made once per forward pass, used by every layer."""

    def norm(self, states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """RMS norm: each row of (tokens, size) divided by its root mean square, times the weight."""
        ...

    def silu_and_multiply(self, both: Tensor) -> Tensor:
        """silu of each row's first half, times its second half."""
        ...

    def rotate(self, heads: Tensor) -> Tensor:
        """Rotary embedding of (tokens, heads, size). May change `heads`."""
        ...


def open_ops(shape: DenseShape, angles: Tensor, dtype: torch.dtype) -> FusedOps:
    """`angles` come from get_angles for the tokens of the pass."""
    kernels = get_kernels() if supports_native_ops(shape, angles.device, dtype) else None
    return TorchOps(angles, dtype) if kernels is None else NativeOps(kernels, angles)


def supports_native_ops(shape: DenseShape, device: torch.device, dtype: torch.dtype) -> bool:
    """The kernels support one thread, float32 and sizes that are whole vectors."""
    is_plain = dtype == torch.float32 and device.type == "cpu" and torch.get_num_threads() == 1
    return is_plain and not (shape.hidden % LANES or shape.intermediate % LANES or shape.head_dim % (2 * LANES))


class TorchOps:
    """torch's operations, on any device."""

    def __init__(self, angles: Tensor, dtype: torch.dtype) -> None:
        cosine, sine = angles.to(dtype)[:, None].chunk(2, dim=-1)
        self._cosine = torch.cat((cosine, cosine), dim=-1)
        # rotate_half negates the second half of each head. Negating the sine instead saves a pass over the data.
        self._sine = torch.cat((-sine, sine), dim=-1)

    def norm(self, states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return functional.rms_norm(states, weight.shape, weight, epsilon)

    def silu_and_multiply(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def rotate(self, heads: Tensor) -> Tensor:
        return torch.addcmul(heads * self._cosine, heads.roll(heads.shape[-1] // 2, -1), self._sine)


class NativeOps:
    """The kernels of native/steps.c."""

    def __init__(self, kernels: Any, angles: Tensor) -> None:
        self._kernels = kernels
        self._angles = angles.contiguous()

    def norm(self, states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        assert states.is_contiguous()
        rows, size = states.shape
        out = torch.empty_like(states)
        self._kernels.steps_norm(states.data_ptr(), weight.data_ptr(), rows, size, epsilon, out.data_ptr())
        return out

    def silu_and_multiply(self, both: Tensor) -> Tensor:
        assert both.is_contiguous()
        rows, size = both.shape[0], both.shape[1] // 2
        out = both.new_empty((rows, size))
        self._kernels.steps_gate(both.data_ptr(), rows, size, out.data_ptr())
        return out

    def rotate(self, heads: Tensor) -> Tensor:
        tokens, count, size = heads.shape
        assert heads.stride()[1:] == (size, 1)
        self._kernels.steps_turn(heads.data_ptr(), heads.stride(0), self._angles.data_ptr(), tokens, count, size)
        return heads


def store_bf16_rows(rows: Tensor, pages: IndexArray, written: IndexArray, kept: Tensor) -> IndexArray:
    """Append each row, as bfloat16, to its page of `kept` (pages, lines, size); returns the rows with a full page.

    `written` counts a sequence's rows over all of its pages, so the line is its remainder.
    """
    lines, size = kept.shape[1:]
    kernels = get_kernels() if rows.device.type == "cpu" and rows.dtype == torch.float32 else None
    if kernels is None or not rows.is_contiguous():
        line = written % lines
        kept.flatten(0, 1).index_copy_(0, torch.from_numpy(pages * lines + line).to(rows.device), rows.to(kept.dtype))
        return np.flatnonzero(line == lines - 1)
    assert kept.is_contiguous()
    full = np.empty(len(rows), np.int64)
    addresses = [get_array_address(numbers) for numbers in (pages, written)]
    count = kernels.steps_keep(
        rows.data_ptr(), *addresses, len(rows), size, lines, kept.data_ptr(), get_array_address(full)
    )
    return full[:count]


def get_array_address(numbers: IndexArray) -> int:
    start: int = numbers.__array_interface__["data"][0]
    return start


@cache
def get_kernels() -> Any:
    """native/steps.c; None if it was not compiled."""
    kernels = library("steps")
    if kernels is None:
        return None
    kernels.steps_norm.argtypes = [POINTER, POINTER, SIZE, SIZE, ctypes.c_float, POINTER]
    kernels.steps_gate.argtypes = [POINTER, SIZE, SIZE, POINTER]
    kernels.steps_turn.argtypes = [POINTER, SIZE, POINTER, SIZE, SIZE, SIZE]
    kernels.steps_keep.argtypes = [POINTER, POINTER, POINTER, SIZE, SIZE, SIZE, POINTER, POINTER]
    kernels.steps_keep.restype = SIZE
    for kernel in (kernels.steps_norm, kernels.steps_gate, kernels.steps_turn):
        kernel.restype = None
    return kernels
