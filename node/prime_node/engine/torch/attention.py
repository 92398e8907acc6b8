"""How the rows of a batch are kept: without gaps, and nearly sorted by length, the longest first. Pure.

Rows of unequal length share one attention call, which costs as much for each as for the longest. Neighbours of about
the same length are therefore called together, apart from the others. Length is how many tokens a row has in the cache.

Keys and values of the tokens that a batch has seen: one row per sequence, growing together.

Laid out by head and then token: a head's keys lie together for the attention that reads them again at every step.

How rows that are decoding look at their cache: with our own kernel on one thread of a CPU, else with torch's.

Either is made once for a pass and used by all layers. Both first put the new token's key and value into the cache.

How whole sequences look at themselves: with our own kernel on one thread of a CPU, else with torch's.

Audits read this way, and prompts are read this way before they are answered. torch's way takes about twice as long on
short heads, which is two fifths of an audit of a small model.
"""

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache as remember
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from prime_node.engine.native import bind
from prime_node.engine.torch.dense_shape import DenseShape

STRIPES = 8
"""Into how many stripes a batch is cut: each a call at most, and a gap moves at most so many rows."""

STRIPE_LENGTH_STEP = 32
"""Lengths are rounded up to this, so that neighbours fall together and masks stay aligned for a GPU."""

ATTENTION_CALL_COST = 256
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
        return self.longest if self.is_even else -(-self.longest // STRIPE_LENGTH_STEP) * STRIPE_LENGTH_STEP

    @property
    def cost(self) -> int:
        return (self.stop - self.start) * self.length + ATTENTION_CALL_COST


def plan_stripes(lengths: Sequence[int]) -> list[Stripe]:
    """Which rows to attend together, so that little is read for nothing."""
    size = -(-len(lengths) // STRIPES) or 1
    stripes: list[Stripe] = []
    for start in range(0, len(lengths), size):
        part = lengths[start : start + size]
        stripe = Stripe(start, start + len(part), min(part), max(part))
        while stripes and (merged := merge_stripes(stripes[-1], stripe)).cost <= stripes[-1].cost + stripe.cost:
            stripes.pop()
            stripe = merged
        stripes.append(stripe)
    return stripes


def merge_stripes(one: Stripe, next_: Stripe) -> Stripe:
    return Stripe(one.start, next_.stop, min(one.shortest, next_.shortest), max(one.longest, next_.longest))


def plan_compaction(rows: int, gone: Collection[int], *, stripes: int = STRIPES) -> list[int]:
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


CACHE_LENGTH_STEP = 64
"""Room is made in steps of so many tokens."""
CACHE_GROWTH = 1.5
"""Room after growing, over room before: few copies, little of it empty."""


class KvCache:
    """Room for `rows` sequences. `bytes_max` bounds it; past that it is out of memory, as if the device were full."""

    def __init__(
        self, shape: DenseShape, *, rows: int, device: torch.device, dtype: torch.dtype, bytes_max: int | None
    ) -> None:
        self.rows = rows
        self.device = device
        self.dtype = dtype
        self.head_dim = shape.head_dim
        self.length = 0
        """Tokens there is room for in every row."""
        self.bytes_max = bytes_max
        self._heads = shape.kv_heads
        self._empty = torch.empty((rows, shape.kv_heads, 0, shape.head_dim), dtype=dtype, device=device)
        self.keys: list[Tensor] = [self._empty] * shape.layers
        self.values: list[Tensor] = [self._empty] * shape.layers

    def reserve(self, length: int, length_max: int) -> None:
        """Room for `length` tokens in every row, and some more as long as that is below what they will ever need."""
        if length <= self.length:
            return
        wanted = max(length, min(int(self.length * CACHE_GROWTH), length_max))
        wanted = -(-wanted // CACHE_LENGTH_STEP) * CACHE_LENGTH_STEP
        self._check(wanted)
        # One layer at a time: only one is there twice.
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                rows, heads, filled, size = old.shape
                # Zeros, because a masked token still takes part with weight 0, and 0 times a stray NaN is one.
                tensors[layer] = old.new_zeros((rows, heads, wanted, size))
                tensors[layer][:, :, :filled] = old
        self.length = wanted

    def get_bytes(self, length: int) -> int:
        rows, heads, _, size = self._empty.shape
        item_bytes: int = self._empty.element_size()
        return 2 * len(self.keys) * int(rows * heads * size) * length * item_bytes

    def _check(self, length: int) -> None:
        if self.bytes_max is not None and self.get_bytes(length) > self.bytes_max:
            raise torch.OutOfMemoryError(
                f"a cache of {self.rows} rows of {length} tokens takes {self.get_bytes(length) // 2**20} MiB, "
                f"allowed are {self.bytes_max // 2**20} MiB"
            )

    def get_write_indices(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Where tokens go in `write`: one number per token and head, the same for every layer."""
        heads = torch.arange(self._heads, device=rows.device)
        return (rows[:, None] * self._heads + heads) * self.length + positions[:, None]

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keys and values (tokens, heads, size) into their places."""
        size = keys.shape[-1]
        self.keys[layer].view(-1, size).index_put_((places,), keys)
        self.values[layer].view(-1, size).index_put_((places,), values)

    def move(self, targets: Sequence[int], sources: Sequence[int], length: int) -> None:
        """Rows to other places, with `length` tokens of each. All are read before any is written."""
        device = self._empty.device
        to, by = torch.tensor(targets, device=device), torch.tensor(sources, device=device)
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                part = tensor[:, :, :length]
                part.index_copy_(0, to, part.index_select(0, by))


LANES = 8
"""The kernel works on whole vectors of so many floats."""
SIZE, POINTER = ctypes.c_size_t, ctypes.c_void_p
QKV_TYPES = (POINTER, SIZE) * 3
"""Queries, keys and values: where they lie, and how far a token's are behind those of the one before."""


class DecodeAttention(Protocol):
    """Of one new token in each of the first rows of a cache."""

    rows: int

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """From (rows, heads, size) each to what was found, (rows, heads * size)."""
        ...


def has_native_decode(kv: KvCache) -> bool:
    """Whether the kernel serves for this cache."""
    return supports_native_kernels(kv.dtype, kv.device, kv.head_dim) and get_decode_kernel() is not None


def supports_native_kernels(dtype: torch.dtype, device: torch.device, size: int) -> bool:
    """Kernels of attention know one thread, one precision and no odd sizes of heads."""
    return dtype == torch.float32 and device.type == "cpu" and size % LANES == 0 and torch.get_num_threads() == 1


def open_attention(kv: KvCache, lengths: Sequence[int]) -> DecodeAttention:
    """`lengths` count the new token."""
    return NativeAttention(kv, lengths) if has_native_decode(kv) else StripedAttention(kv, lengths)


class NativeAttention:
    """Each row to its own length."""

    def __init__(self, kv: KvCache, lengths: Sequence[int]) -> None:
        self.rows = len(lengths)
        self._kv = kv
        self._positions = torch.from_numpy(np.array(lengths, np.int64) - 1)
        self._scores = torch.empty(kv.length)
        kernel = get_decode_kernel()
        assert kernel is not None, "asked for where it is missing"
        self._kernel = kernel

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        heads, size = keys.shape[1:]
        found = queries.new_empty((self.rows, queries.shape[1] * size))
        given = [part for new in (queries, keys, values) for part in (get_address(new), new.stride(0))]
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
        self._places = kv.get_write_indices(torch.arange(self.rows, device=kv.device), self._lengths - 1)
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
def get_decode_kernel() -> Any:
    """attention_attend of native/attention.c; None where it was not compiled."""
    places = (POINTER, POINTER, POINTER, *[SIZE] * 5)
    return bind("attention", "attention_attend", *QKV_TYPES, *places, ctypes.c_float, POINTER, POINTER)


def get_address(heads: Tensor) -> int:
    """Of (rows, heads, size), where each row lies together."""
    assert heads.stride()[1:] == (heads.shape[2], 1)
    start: int = heads.data_ptr()
    return start


PANEL, QUERIES = 16, 6
"""As in native/prefill.c: keys that lie together, and queries that are taken side by side."""


def attend_prefill(queries: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
    """Sequences of one length end to end, from (tokens, heads, size) each to what was found, (tokens, heads * size)."""
    if has_native_prefill(queries):
        return attend_prefill_native(queries, keys, values, length)
    query, key, value = (tensor.unflatten(0, (-1, length)).transpose(1, 2) for tensor in (queries, keys, values))
    found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return found.transpose(1, 2).flatten(2).flatten(0, 1)


def has_native_prefill(queries: Tensor) -> bool:
    """Whether the kernel serves here."""
    return supports_native_kernels(queries.dtype, queries.device, queries.shape[2]) and get_prefill_kernel() is not None


def attend_prefill_native(queries: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
    (tokens, query_heads, size), heads = queries.shape, keys.shape[1]
    padded = -(-length // PANEL) * PANEL
    workspace = queries.new_empty(padded * (2 * size + QUERIES))
    found = queries.new_empty((tokens, query_heads * size))
    get_prefill_kernel()(
        *(part for new in (queries, keys, values) for part in (get_address(new), new.stride(0))),
        tokens // length,
        length,
        heads,
        query_heads // heads,
        size,
        size**-0.5,
        workspace.data_ptr(),
        found.data_ptr(),
    )
    return found


@remember
def get_prefill_kernel() -> Any:
    """prefill_attend of native/prefill.c; None where it was not compiled."""
    return bind("prefill", "prefill_attend", *QKV_TYPES, *[SIZE] * 5, ctypes.c_float, POINTER, POINTER)
