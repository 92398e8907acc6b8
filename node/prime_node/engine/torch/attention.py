"""The KV cache and attention: decoding rows over their cache, and whole sequences over themselves.

Both use our C kernel on one CPU thread, else torch. The rows of a batch have no gaps and are nearly sorted by length,
longest first: with torch, rows of unequal length in one attention call all cost as much as the longest, so neighbours
of about the same length share a call (a stripe). A row's length is the number of its tokens in the cache.
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
"""A batch is cut into this many stripes. Each is at most one attention call, and closing a gap moves at most this many
rows."""

STRIPE_LENGTH_STEP = 32
"""Lengths are rounded up to a multiple of this, so that neighbours share a call and masks stay aligned on a GPU."""

ATTENTION_CALL_COST = {"cpu": 256, "cuda": 8192}
"""Cost of one more attention call, as the number of cached tokens that could be read instead: about 10 us. A GPU reads
some 4 KiB of keys and values of a token at 3 TB/s."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """Rows from `start` to before `stop`, and the lengths of the shortest and the longest of them."""

    start: int
    stop: int
    shortest: int
    longest: int

    @property
    def is_even(self) -> bool:
        return self.shortest == self.longest

    @property
    def length(self) -> int:
        """Tokens of each row that are read. Rows of equal length need no mask and no rounding."""
        return self.longest if self.is_even else -(-self.longest // STRIPE_LENGTH_STEP) * STRIPE_LENGTH_STEP

    @property
    def cost(self) -> int:
        """Of reading its rows, as a number of cached tokens."""
        return (self.stop - self.start) * self.length


def plan_stripes(lengths: Sequence[int], call_cost: int = ATTENTION_CALL_COST["cpu"]) -> list[Stripe]:
    """Which rows share an attention call, so that little padding is read. Stripes merge where that is cheaper."""
    size = -(-len(lengths) // STRIPES) or 1
    stripes: list[Stripe] = []
    for start in range(0, len(lengths), size):
        part = lengths[start : start + size]
        stripe = Stripe(start, start + len(part), min(part), max(part))
        while stripes:
            merged = merge_stripes(stripes[-1], stripe)
            if merged.cost > stripes[-1].cost + stripe.cost + call_cost:
                break
            stripes.pop()
            stripe = merged
        stripes.append(stripe)
    return stripes


def merge_stripes(one: Stripe, next_: Stripe) -> Stripe:
    return Stripe(one.start, next_.stop, min(one.shortest, next_.shortest), max(one.longest, next_.longest))


def plan_compaction(rows: int, gone: Collection[int], *, stripes: int = STRIPES) -> list[int]:
    """The old row of each new row after some rows are gone, in nearly the same order.

    A gap is filled from the next stripe, whose gap is filled from the stripe after it: few rows move, and none far.
    With one stripe, a single row moves, from the end.
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
"""The cache grows in steps of this many tokens."""
CACHE_GROWTH = 1.5
"""Size after growing over size before: few copies, little unused memory."""


class KvCache:
    """Keys and values of `rows` sequences. Beyond `bytes_max` it raises OutOfMemoryError, as if the device were full.

    Laid out by head and then token: a head's keys are contiguous for the attention that reads them at every step.
    """

    def __init__(
        self, shape: DenseShape, *, rows: int, device: torch.device, dtype: torch.dtype, bytes_max: int | None
    ) -> None:
        self.rows = rows
        self.device = device
        self.dtype = dtype
        self.head_dim = shape.head_dim
        self.length = 0
        """Allocated tokens of every row."""
        self.bytes_max = bytes_max
        self._heads = shape.kv_heads
        self._empty = torch.empty((rows, shape.kv_heads, 0, shape.head_dim), dtype=dtype, device=device)
        self.keys: list[Tensor] = [self._empty] * shape.layers
        self.values: list[Tensor] = [self._empty] * shape.layers

    def reserve(self, length: int, length_max: int) -> None:
        """Allocate `length` tokens in every row, and some more up to `length_max`, the most they will ever need."""
        if length <= self.length:
            return
        wanted = max(length, min(int(self.length * CACHE_GROWTH), length_max))
        wanted = -(-wanted // CACHE_LENGTH_STEP) * CACHE_LENGTH_STEP
        self._check(wanted)
        # One layer at a time, so that only one layer exists twice.
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                rows, heads, filled, size = old.shape
                # Zeros, because a masked token still takes part with weight 0, and 0 times a stray NaN is NaN.
                tensors[layer] = old.new_zeros((rows, heads, wanted, size))
                tensors[layer][:, :, :filled] = old
        self.length = wanted

    def add_rows(self, rows: int) -> None:
        """Make room for at least so many rows: sequences have joined that were not there when the batch began."""
        if rows <= self.rows:
            return
        self.rows = rows
        self._empty = self._empty.new_empty((rows, *self._empty.shape[1:]))
        self._check(self.length)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = old.new_zeros((rows, *old.shape[1:]))
                tensors[layer][: len(old)] = old

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
        """The indices for `write`: one per token and head, the same for every layer."""
        heads = torch.arange(self._heads, device=rows.device)
        return (rows[:, None] * self._heads + heads) * self.length + positions[:, None]

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values (tokens, heads, size) at the indices."""
        size = keys.shape[-1]
        self.keys[layer].view(-1, size).index_put_((places,), keys)
        self.values[layer].view(-1, size).index_put_((places,), values)

    def move(self, targets: Sequence[int], sources: Sequence[int], length: int) -> None:
        """Copy rows, `length` tokens of each. All are read before any is written."""
        device = self._empty.device
        to, by = torch.tensor(targets, device=device), torch.tensor(sources, device=device)
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                part = tensor[:, :, :length]
                part.index_copy_(0, to, part.index_select(0, by))


LANES = 8
"""The kernels work on whole vectors of this many floats."""
SIZE, POINTER = ctypes.c_size_t, ctypes.c_void_p
QKV_TYPES = (POINTER, SIZE) * 3
"""Queries, keys and values: address of each, and the stride from one token to the next."""


class DecodeAttention(Protocol):
    """Attention of one new token in each of the first rows of a cache. Made once per pass, used by all layers."""

    rows: int

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """From (rows, heads, size) each to the output, (rows, heads * size). Stores the new keys and values first."""
        ...


def has_native_decode(kv: KvCache) -> bool:
    """Whether the native kernel can be used for this cache."""
    return supports_native_kernels(kv.dtype, kv.device, kv.head_dim) and get_decode_kernel() is not None


def supports_native_kernels(dtype: torch.dtype, device: torch.device, size: int) -> bool:
    """The native attention kernels support one thread, float32 and head sizes that are whole vectors."""
    return dtype == torch.float32 and device.type == "cpu" and size % LANES == 0 and torch.get_num_threads() == 1


def open_attention(kv: KvCache, lengths: Sequence[int]) -> DecodeAttention:
    """`lengths` include the new token."""
    return NativeAttention(kv, lengths) if has_native_decode(kv) else StripedAttention(kv, lengths)


class NativeAttention:
    """Our kernel: each row is attended to its own length."""

    def __init__(self, kv: KvCache, lengths: Sequence[int]) -> None:
        self.rows = len(lengths)
        self._kv = kv
        self._positions = torch.from_numpy(np.array(lengths, np.int64) - 1)
        self._scores = torch.empty(kv.length)
        kernel = get_decode_kernel()
        assert kernel is not None, "the caller checks has_native_decode first"
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
    """torch's attention: rows of about the same length share a call, with a mask where lengths differ."""

    def __init__(self, kv: KvCache, lengths: Sequence[int]) -> None:
        self.rows = len(lengths)
        self._kv = kv
        self._lengths = torch.tensor(lengths, device=kv.device)
        self._places = kv.get_write_indices(torch.arange(self.rows, device=kv.device), self._lengths - 1)
        stripes = plan_stripes(lengths, ATTENTION_CALL_COST[kv.device.type])
        self._stripes = [(stripe, self._mask(stripe)) for stripe in stripes]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._kv.write(layer, self._places, keys, values)
        # The queries that share a key head are passed as one longer query, so that its keys are read once.
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
        """Added to the scores: minus infinity behind each row's end; None if all rows have one length."""
        if stripe.is_even:
            return None
        ends = self._lengths[stripe.start : stripe.stop, None]
        behind = torch.arange(stripe.length, device=self._kv.device) >= ends
        mask = torch.zeros(behind.shape, dtype=self._kv.dtype, device=self._kv.device)
        return mask.masked_fill_(behind, float("-inf"))[:, None, None]


@remember
def get_decode_kernel() -> Any:
    """attention_attend of native/attention.c; None if it was not compiled."""
    places = (POINTER, POINTER, POINTER, *[SIZE] * 5)
    return bind("attention", "attention_attend", *QKV_TYPES, *places, ctypes.c_float, POINTER, POINTER)


def get_address(heads: Tensor) -> int:
    """Address of (rows, heads, size), where each row is contiguous."""
    assert heads.stride()[1:] == (heads.shape[2], 1)
    start: int = heads.data_ptr()
    return start


PANEL, QUERIES = 16, 6
"""As in native/prefill.c: keys per panel, and queries processed side by side."""


def attend_prefill(queries: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
    """Causal attention over concatenated sequences of one length, from (tokens, heads, size) to (tokens, heads * size).

    Audits and prompts use it. Our kernel halves the time on small heads, which is two fifths of an audit of a small
    model.
    """
    if has_native_prefill(queries):
        return attend_prefill_native(queries, keys, values, length)
    query, key, value = (tensor.unflatten(0, (-1, length)).transpose(1, 2) for tensor in (queries, keys, values))
    found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return found.transpose(1, 2).flatten(2).flatten(0, 1)


def has_native_prefill(queries: Tensor) -> bool:
    """Whether the native kernel can be used for these tensors."""
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
    """prefill_attend of native/prefill.c; None if it was not compiled."""
    return bind("prefill", "prefill_attend", *QKV_TYPES, *[SIZE] * 5, ctypes.c_float, POINTER, POINTER)
