"""How rows that are decoding look at their cache: with our own kernel on one thread of a CPU, else with torch's.

Either is made once for a pass and used by all layers. Both first put the new token's key and value into the cache.
"""

import ctypes
from collections.abc import Sequence
from functools import cache as remember
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from prime_node.engine.native import bind
from prime_node.engine.row_order import Stripe, plan_stripes
from prime_node.engine.torch_cache import KvCache

LANES = 8
"""The kernel works on whole vectors of so many floats."""
SIZE, POINTER = ctypes.c_size_t, ctypes.c_void_p
NEW = (POINTER, SIZE) * 3
"""Queries, keys and values: where they lie, and how far a token's are behind those of the one before."""


class Attention(Protocol):
    """Of one new token in each of the first rows of a cache."""

    rows: int

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """From (rows, heads, size) each to what was found, (rows, heads * size)."""
        ...


def is_native(kv: KvCache) -> bool:
    """Whether the kernel serves for this cache."""
    return is_plain(kv.dtype, kv.device, kv.head_dim) and get_kernel() is not None


def is_plain(dtype: torch.dtype, device: torch.device, size: int) -> bool:
    """Kernels of attention know one thread, one precision and no odd sizes of heads."""
    return dtype == torch.float32 and device.type == "cpu" and size % LANES == 0 and torch.get_num_threads() == 1


def open_attention(kv: KvCache, lengths: Sequence[int]) -> Attention:
    """`lengths` count the new token."""
    return NativeAttention(kv, lengths) if is_native(kv) else StripedAttention(kv, lengths)


class NativeAttention:
    """Each row to its own length."""

    def __init__(self, kv: KvCache, lengths: Sequence[int]) -> None:
        self.rows = len(lengths)
        self._kv = kv
        self._positions = torch.from_numpy(np.array(lengths, np.int64) - 1)
        self._scores = torch.empty(kv.length)
        kernel = get_kernel()
        assert kernel is not None, "asked for where it is missing"
        self._kernel = kernel

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        heads, size = keys.shape[1:]
        found = queries.new_empty((self.rows, queries.shape[1] * size))
        given = [part for new in (queries, keys, values) for part in (address(new), new.stride(0))]
        self._kernel(
            *given,
            self._kv.keys[layer].data_ptr(),
            self._kv.values[layer].data_ptr(),
            self._positions.data_ptr(),
            self.rows,
            heads,
            queries.shape[1] // heads,
            self._kv.length,
            size,
            size**-0.5,
            self._scores.data_ptr(),
            found.data_ptr(),
        )
        return found


class StripedAttention:
    """Rows of about the same length together, with a mask where they differ."""

    def __init__(self, kv: KvCache, lengths: Sequence[int]) -> None:
        self.rows = len(lengths)
        self._kv = kv
        self._lengths = torch.tensor(lengths, device=kv.device)
        self._places = kv.get_places(torch.arange(self.rows, device=kv.device), self._lengths - 1)
        self._stripes = [(stripe, self._mask(stripe)) for stripe in plan_stripes(lengths)]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._kv.write(layer, self._places, keys, values)
        # The queries that share a key head stand where a longer query would: its keys are read once for all.
        grouped = queries.unflatten(1, (keys.shape[1], -1))
        found = [
            functional.scaled_dot_product_attention(
                grouped[stripe.start : stripe.stop],
                self._kv.keys[layer][stripe.start : stripe.stop, :, : stripe.length],
                self._kv.values[layer][stripe.start : stripe.stop, :, : stripe.length],
                attn_mask=mask,
            )
            for stripe, mask in self._stripes
        ]
        return torch.cat(found).flatten(1)

    def _mask(self, stripe: Stripe) -> Tensor | None:
        """What to add to the scores: minus infinity behind each row's end; nothing where all end alike."""
        if stripe.is_even:
            return None
        ends = self._lengths[stripe.start : stripe.stop, None]
        behind = torch.arange(stripe.length, device=self._kv.device) >= ends
        mask = torch.zeros(behind.shape, dtype=self._kv.dtype, device=self._kv.device)
        return mask.masked_fill_(behind, float("-inf"))[:, None, None]


@remember
def get_kernel() -> Any:
    """attention_attend of native/attention.c; None where it was not compiled."""
    places = (POINTER, POINTER, POINTER, *[SIZE] * 5)
    return bind("attention", "attention_attend", *NEW, *places, ctypes.c_float, POINTER, POINTER)


def address(heads: Tensor) -> int:
    """Of (rows, heads, size), where each row lies together."""
    assert heads.stride()[1:] == (heads.shape[2], 1)
    start: int = heads.data_ptr()
    return start
