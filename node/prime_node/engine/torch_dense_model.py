"""The fast way: a DenseDecoder with its weights by their public names, its batches, and its reading."""

from collections import deque
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_node.engine.dense_shape import DenseShape
from prime_node.engine.row_order import STRIPES, close_gaps
from prime_node.engine.torch_attention import is_native, open_attention
from prime_node.engine.torch_cache import KvCache
from prime_node.engine.torch_dense import DenseDecoder, Pass, Run
from prime_node.engine.torch_weights import FolderTensors, choose_names
from prime_node.engine.writing import Writing

JOINING_TOKENS = 2048
"""Most tokens that newcomers bring into one pass, so that those who are decoding do not wait long."""


class DenseModel:
    """Weights of the dense family on a device, of tensors that were checked: a hostile shape could ask for any size."""

    def __init__(self, shape: DenseShape, tensors: FolderTensors, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self.decoder = DenseDecoder(shape, device=device, dtype=dtype)
        self.places = get_places(self.decoder)
        self.is_whole = False
        self.swap(tensors, None)

    def swap(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        tensors.check(self.shape.get_tensors())
        names = choose_names(self.places, changed if self.is_whole else None)
        self.is_whole = False
        tensors.copy_into(self.places, names)
        self.is_whole = True

    def open_batch(self, *, rows: int, length_max: int, cache_bytes: int | None) -> "DenseBatch":
        decoder = self.decoder
        cache = KvCache(self.shape, rows=rows, device=decoder.device, dtype=decoder.dtype, bytes_max=cache_bytes)
        return DenseBatch(decoder, cache, length_max)

    def read(self, sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int]) -> Tensor:
        return self.decoder.forward(*self.plan_reading(sequences, firsts))

    def plan_reading(self, sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int]) -> tuple[Pass, Tensor]:
        """What goes through, and which of its tokens are wanted."""
        lengths = [len(sequence) for sequence in sequences]
        starts = np.cumsum([0, *lengths[:-1]])
        wanted = [
            np.arange(start + first, start + length)
            for start, first, length in zip(starts, firsts, lengths, strict=True)
        ]
        todo = Pass(
            tokens=self._send(np.concatenate(sequences)),
            positions=self._send(np.concatenate([np.arange(length) for length in lengths])),
            runs=plan_runs(lengths, 0),
        )
        return todo, self._send(np.concatenate(wanted))

    def get_logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.get_logits(hidden)

    def _send(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(self.decoder.device)


class DenseBatch:
    """Rows in a cache, without gaps: sequences join at the end and leave anywhere."""

    def __init__(self, decoder: DenseDecoder, cache: KvCache, length_max: int) -> None:
        self.decoder = decoder
        self.cache = cache
        self.length_max = length_max
        """Longest that any sequence can get."""
        self.lengths: list[int] = []
        """Tokens that each row has in the cache."""

    def pick(self, waiting: deque[Writing], room: int) -> list[Writing]:
        joining: list[Writing] = []
        tokens = 0
        while waiting and len(joining) < room and (not joining or tokens + waiting[0].length <= JOINING_TOKENS):
            joining.append(waiting.popleft())
            tokens += joining[-1].length
        # The longest first, as all rows are; equal ones stand together and are attended together.
        return sorted(joining, key=lambda writing: -writing.length)

    def advance(self, running: Sequence[Writing], joined: int) -> Tensor:
        decoding, joining = running[: len(running) - joined], running[len(running) - joined :]
        lengths = self.lengths = [writing.length for writing in running]
        self.cache.make_room(max(lengths), self.length_max)
        tokens = [writing.output[-1] for writing in decoding]
        positions = [length - 1 for length in lengths[: len(decoding)]]
        attention = open_attention(self.cache, lengths[: len(decoding)]) if decoding else None
        if not joining:
            return self.decoder.forward(Pass(self._send(tokens), self._send(positions), [], attention))
        rows: list[int] = []
        for row, writing in enumerate(joining, len(decoding)):
            tokens += writing.tokens
            positions += range(writing.length)
            rows += [row] * writing.length
        places = self.cache.get_places(self._send(rows), self._send(positions[len(decoding) :]))
        runs = plan_runs(lengths[len(decoding) :], len(decoding))
        todo = Pass(self._send(tokens), self._send(positions), runs, attention, self.cache, places)
        last = np.cumsum([1] * len(decoding) + lengths[len(decoding) :]) - 1
        return self.decoder.forward(todo, torch.from_numpy(last).to(self.decoder.device))

    def leave(self, gone: Sequence[int]) -> list[int]:
        # Only rows that attend together gain from lying by length.
        order = close_gaps(len(self.lengths), gone, stripes=1 if is_native(self.cache) else STRIPES)
        moves = [(place, row) for place, row in enumerate(order) if place != row]
        if moves:
            targets, sources = zip(*moves, strict=True)
            self.cache.move(targets, sources, max(self.lengths[row] for row in sources))
        return order

    def _send(self, numbers: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.array(numbers, np.int64)).to(self.decoder.device)


def plan_runs(lengths: Sequence[int], start: int) -> list[Run]:
    """Neighbours of equal length are one run."""
    runs = []
    for length, same in groupby(lengths):
        run = Run(start, len(list(same)), length)
        runs.append(run)
        start = run.stop
    return runs


def get_places(decoder: DenseDecoder) -> dict[str, Tensor]:
    """Where each tensor of a checkpoint goes: views into the joined weights."""
    shape = decoder.shape
    places = {"model.embed_tokens.weight": decoder.embedding, "model.norm.weight": decoder.norm}
    if not shape.is_tied:
        places["lm_head.weight"] = decoder.head
    sizes = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
    for number, layer in enumerate(decoder.layers):
        here = {
            "input_layernorm.weight": layer.input_norm,
            "post_attention_layernorm.weight": layer.mlp_norm,
            "self_attn.o_proj.weight": layer.out,
            "self_attn.o_proj.bias": layer.out_bias,
            "mlp.down_proj.weight": layer.down,
            "mlp.down_proj.bias": layer.down_bias,
        }
        for kind, joined in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            parts = [None] * 3 if joined is None else joined.split(sizes)
            here |= {f"self_attn.{name}_proj.{kind}": part for name, part in zip("qkv", parts, strict=True)}
        for kind, joined in (("weight", layer.gate_up), ("bias", layer.gate_up_bias)):
            parts = [None] * 2 if joined is None else joined.chunk(2)
            here |= {f"mlp.{name}_proj.{kind}": part for name, part in zip(("gate", "up"), parts, strict=True)}
        if layer.qk_norm is not None:
            here["self_attn.q_norm.weight"] = layer.qk_norm[: shape.heads]
            here["self_attn.k_norm.weight"] = layer.qk_norm[shape.heads :]
        places |= {f"model.layers.{number}.{name}": place for name, place in here.items() if place is not None}
    assert places.keys() == shape.get_tensors().keys()
    return places
