"""Keys and values of the tokens that a batch has seen: one row per sequence, growing together.

Laid out by head and then token: a head's keys lie together for the attention that reads them again at every step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from prime_node.engine.dense_shape import DenseShape

LENGTH_STEP = 64
"""Room is made in steps of so many tokens."""
GROWTH = 1.5
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

    def make_room(self, length: int, length_max: int) -> None:
        """Room for `length` tokens in every row, and some more as long as that is below what they will ever need."""
        if length <= self.length:
            return
        wanted = max(length, min(int(self.length * GROWTH), length_max))
        wanted = -(-wanted // LENGTH_STEP) * LENGTH_STEP
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

    def get_places(self, rows: Tensor, positions: Tensor) -> Tensor:
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
