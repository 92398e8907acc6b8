"""The dense decoder family: one forward pass takes decoding rows and whole sequences together.

Projections are fused: queries, keys and values are one product, gate and up another. Tokens are concatenated without
padding; only attention knows which of them belong together. Dropout, other activations and sliding windows are left
out: dense_shape.py admits no model that has them.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from prime_node.engine.interface import Generation
from prime_node.engine.torch.attention import (
    STRIPES,
    DecodeAttention,
    KvCache,
    attend_prefill,
    has_native_decode,
    open_attention,
    plan_compaction,
)
from prime_node.engine.torch.dense_shape import DenseShape, RopeShape
from prime_node.engine.torch.kernels import FusedOps, open_ops
from prime_node.engine.torch.model import FolderTensors, choose_names


def get_frequencies(rope: RopeShape, head_dim: int) -> Tensor:
    """Rotary frequencies: radians per token of each pair of channels, in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "linear":
            return frequencies / rope.scaling["factor"]
        case "llama3":
            return scale_llama3(frequencies, rope.scaling)
        case kind:
            assert kind == "default"
            return frequencies


def scale_llama3(frequencies: Tensor, scaling: dict[str, float]) -> Tensor:
    """Llama 3.1's context extension: low frequencies are divided by the factor, high ones kept, others interpolated."""
    factor, context = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # Full rotations of a pair within the original context.
    turns = context * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * frequencies / factor + share * frequencies


def get_angles(frequencies: Tensor, positions: Tensor) -> Tensor:
    """(tokens, size) in float32: the cosines of all pairs of channels, then their sines."""
    angles = positions[:, None].float() * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


MLP_TOKENS = 512
"""Tokens that go through the MLP at once: its activations stay in a CPU's cache, and bounded on a GPU."""


@dataclass(frozen=True, slots=True)
class EqualLengthRun:
    """Concatenated sequences of one length that start at position 0."""

    start: int
    count: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """The tokens of one forward pass: first one token for each decoding row, then runs of whole sequences."""

    tokens: Tensor
    positions: Tensor
    runs: list[EqualLengthRun]
    decoding: DecodeAttention | None = None
    cache: KvCache | None = None
    """Where the runs' keys and values are stored; None: they are not needed later."""
    places: Tensor | None = None
    """Cache indices of the runs' tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One layer's weights. Biases and norms that the model lacks are None."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """(heads and key heads, size): one copy per head, so that one product serves all heads."""
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class DenseDecoder:
    """The forward pass. DenseModel copies the weights into `embedding`, `layers`, `norm` and `head`."""

    def __init__(self, shape: DenseShape, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self.device = device
        self.dtype = dtype
        self.frequencies = get_frequencies(shape.rope, shape.head_dim).to(device)
        self.embedding = self._empty(shape.vocabulary, shape.hidden)
        self.norm = self._empty(shape.hidden)
        self.head = self.embedding if shape.is_tied else self._empty(shape.vocabulary, shape.hidden)
        self.layers = [self._make_layer() for _ in range(shape.layers)]

    def _empty(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)

    def _make_layer(self) -> LayerWeights:
        shape = self.shape
        qkv, queries = shape.qkv_heads * shape.head_dim, shape.heads * shape.head_dim
        return LayerWeights(
            input_norm=self._empty(shape.hidden),
            qkv=self._empty(qkv, shape.hidden),
            qkv_bias=self._empty(qkv) if shape.has_qkv_bias else None,
            qk_norm=self._empty(shape.heads + shape.kv_heads, shape.head_dim) if shape.has_qk_norm else None,
            out=self._empty(shape.hidden, queries),
            out_bias=self._empty(shape.hidden) if shape.has_out_bias else None,
            mlp_norm=self._empty(shape.hidden),
            gate_up=self._empty(2 * shape.intermediate, shape.hidden),
            gate_up_bias=self._empty(2 * shape.intermediate) if shape.has_mlp_bias else None,
            down=self._empty(shape.hidden, shape.intermediate),
            down_bias=self._empty(shape.hidden) if shape.has_mlp_bias else None,
        )

    def forward(self, batch: ForwardBatch, wanted: Tensor | None = None) -> Tensor:
        """Final hidden states of the wanted tokens (of all, if None), as the head takes them."""
        states = functional.embedding(batch.tokens, self.embedding)
        ops = open_ops(self.shape, get_angles(self.frequencies, batch.positions), self.dtype)
        for number, layer in enumerate(self.layers):
            queries, keys, values = self._project(states, layer, ops)
            mixed = self._attend(batch, number, queries, keys, values)
            add_product(states, mixed, layer.out, layer.out_bias)
            for part in states.split(MLP_TOKENS):
                self._feed_forward(part, layer, ops)
        if wanted is not None:
            states = states.index_select(0, wanted)
        return ops.norm(states, self.norm, self.shape.epsilon)

    def get_logits(self, hidden: Tensor) -> Tensor:
        if self.shape.has_float32_head:
            return multiply_in_float32(hidden, self.head)
        return functional.linear(hidden, self.head).float()

    def _project(self, states: Tensor, layer: LayerWeights, ops: FusedOps) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        normed = ops.norm(states, layer.input_norm, shape.epsilon)
        heads = functional.linear(normed, layer.qkv, layer.qkv_bias).view(-1, shape.qkv_heads, shape.head_dim)
        turned, values = heads[:, : -shape.kv_heads], heads[:, -shape.kv_heads :]
        if layer.qk_norm is not None:
            turned = functional.rms_norm(turned, (shape.head_dim,), eps=shape.epsilon) * layer.qk_norm
        turned = ops.rotate(turned)
        return turned[:, : shape.heads], turned[:, shape.heads :], values

    def _attend(self, batch: ForwardBatch, number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        start, parts = 0, []
        if batch.decoding is not None:
            start = batch.decoding.rows
            parts.append(batch.decoding.attend(number, queries[:start], keys[:start], values[:start]))
        if batch.cache is not None and batch.places is not None:
            batch.cache.write(number, batch.places, keys[start:], values[start:])
        for run in batch.runs:
            here = slice(run.start, run.stop)
            parts.append(attend_prefill(queries[here], keys[here], values[here], run.length))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _feed_forward(self, states: Tensor, layer: LayerWeights, ops: FusedOps) -> None:
        """The MLP, added to the states in place."""
        normed = ops.norm(states, layer.mlp_norm, self.shape.epsilon)
        both = functional.linear(normed, layer.gate_up, layer.gate_up_bias)
        add_product(states, ops.silu_and_multiply(both), layer.down, layer.down_bias)


def multiply_in_float32(hidden: Tensor, head: Tensor) -> Tensor:
    """hidden @ head.T without rounding the products to the type of the factors."""
    if hidden.is_cuda and hidden.dtype == head.dtype == torch.bfloat16:
        # As vLLM does: no copy of the head in float32.
        return torch.mm(hidden, head.t(), out_dtype=torch.float32)
    return functional.linear(hidden.float(), head.float())


def add_product(states: Tensor, factor: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """states += factor @ weight.T + bias, in place."""
    states.addmm_(factor, weight.t())
    if bias is not None:
        states.add_(bias)


JOINING_TOKENS = 2048
"""Maximum prompt tokens that join one pass, so that decoding rows do not wait long."""


class DenseModel:
    """Weights of the dense family on a device. Shapes are checked against the tensors first: a hostile config.json
    could request any amount of memory."""

    def __init__(self, shape: DenseShape, tensors: FolderTensors, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self.decoder = DenseDecoder(shape, device=device, dtype=dtype)
        self.tensor_targets = map_tensors(self.decoder)
        self.is_whole = False
        self.swap_weights(tensors, None)

    def swap_weights(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        tensors.check(self.shape.get_tensors())
        names = choose_names(self.tensor_targets, changed if self.is_whole else None)
        self.is_whole = False
        tensors.copy_into(self.tensor_targets, names)
        self.is_whole = True

    def open_batch(self, *, rows: int, length_max: int, cache_bytes: int | None) -> "DenseBatch":
        decoder = self.decoder
        cache = KvCache(self.shape, rows=rows, device=decoder.device, dtype=decoder.dtype, bytes_max=cache_bytes)
        return DenseBatch(decoder, cache, length_max)

    @property
    def kv_token_bytes(self) -> int:
        shape = self.shape
        item_bytes: int = self.decoder.dtype.itemsize
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * item_bytes

    def read(self, sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int]) -> Tensor:
        return self.decoder.forward(*plan_forward(sequences, firsts, self.decoder.device))

    def get_logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.get_logits(hidden)


def plan_forward(
    sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int], device: torch.device
) -> tuple[ForwardBatch, Tensor]:
    """The batch of whole sequences, and the indices of the tokens whose states are wanted."""
    lengths = [len(sequence) for sequence in sequences]
    starts = np.cumsum([0, *lengths[:-1]])
    wanted = [
        np.arange(start + first, start + length) for start, first, length in zip(starts, firsts, lengths, strict=True)
    ]
    batch = ForwardBatch(
        tokens=torch.from_numpy(np.concatenate(sequences)).to(device),
        positions=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device),
        runs=plan_runs(lengths, 0),
    )
    return batch, torch.from_numpy(np.concatenate(wanted)).to(device)


class DenseBatch:
    """Rows in a cache, without gaps: sequences join at the end and leave anywhere (continuous batching)."""

    def __init__(self, decoder: DenseDecoder, cache: KvCache, length_max: int) -> None:
        self.decoder = decoder
        self.cache = cache
        self.length_max = length_max
        """Maximum length of any sequence."""
        self.lengths: list[int] = []
        """Cached tokens of each row."""
        self._sources: list[int] = []
        """The rows that have the prompts of the sequences which join next: as many of those, from the first on."""

    def resize(self, rows: int, length_max: int) -> None:
        self.length_max = max(self.length_max, length_max)
        self.cache.add_rows(rows)

    def admit(self, waiting: deque[Generation], slots: int, running: Sequence[Generation]) -> list[Generation]:
        """A prompt is computed once: the samples of a slot copy its keys and values from a row that has them.

        Of several new ones with the same prompt, the first joins now, and the others copy from it at the next step.
        """
        rows = {generation.prompt_key: row for row, generation in enumerate(running)} if waiting and slots else {}
        copying, joining, later = list[Generation](), dict[bytes, Generation](), list[Generation]()
        tokens = 0
        while waiting and len(copying) + len(joining) + len(later) < slots:
            first = waiting[0]
            # One that has output left a batch when memory ran out: its whole text is computed again.
            key = first.prompt_key if not first.output else b"%d" % first.request.number
            if key in rows:
                copying.append(waiting.popleft())
            elif key in joining:
                later.append(waiting.popleft())
            elif joining and tokens + first.length > JOINING_TOKENS:
                break
            else:
                joining[key] = waiting.popleft()
                tokens += first.length
        waiting.extendleft(reversed(later))
        self._sources = [rows[generation.prompt_key] for generation in copying]
        # Longest first, as all rows are; equal ones are neighbours and share an attention call.
        return [*copying, *sorted(joining.values(), key=lambda generation: -generation.length)]

    def advance(self, running: Sequence[Generation], joined: int) -> Tensor:
        # Rows with a copied prompt decode its last token, as others do their newest one.
        first = len(running) - joined + len(self._sources)
        decoding, joining = running[:first], running[first:]
        lengths = self.lengths = [generation.length for generation in running]
        self.cache.reserve(max(lengths), self.length_max)
        self._copy_prompts(first - len(self._sources), lengths)
        tokens = [(generation.output or generation.prompt)[-1] for generation in decoding]
        positions = [length - 1 for length in lengths[: len(decoding)]]
        attention = open_attention(self.cache, lengths[: len(decoding)]) if decoding else None
        if not joining:
            return self.decoder.forward(ForwardBatch(self._send(tokens), self._send(positions), [], attention))
        rows: list[int] = []
        for row, generation in enumerate(joining, len(decoding)):
            tokens += generation.tokens
            positions += range(generation.length)
            rows += [row] * generation.length
        places = self.cache.get_write_indices(self._send(rows), self._send(positions[len(decoding) :]))
        runs = plan_runs(lengths[len(decoding) :], len(decoding))
        batch = ForwardBatch(self._send(tokens), self._send(positions), runs, attention, self.cache, places)
        last = np.cumsum([1] * len(decoding) + lengths[len(decoding) :]) - 1
        return self.decoder.forward(batch, torch.from_numpy(last).to(self.decoder.device))

    def _copy_prompts(self, first: int, lengths: Sequence[int]) -> None:
        """Into the rows from `first` on, all but each prompt's last token."""
        targets = range(first, first + len(self._sources))
        copied = max((lengths[row] - 1 for row in targets), default=0)
        if copied:
            self.cache.move(targets, self._sources, copied)
        self._sources = []

    def remove_rows(self, gone: Sequence[int]) -> list[int]:
        # Only rows that share attention calls gain from being sorted by length.
        order = plan_compaction(len(self.lengths), gone, stripes=1 if has_native_decode(self.cache) else STRIPES)
        moves = [(place, row) for place, row in enumerate(order) if place != row]
        if moves:
            targets, sources = zip(*moves, strict=True)
            self.cache.move(targets, sources, max(self.lengths[row] for row in sources))
        return order

    def _send(self, numbers: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.array(numbers, np.int64)).to(self.decoder.device)


def plan_runs(lengths: Sequence[int], start: int) -> list[EqualLengthRun]:
    """Adjacent sequences of equal length form one run."""
    runs = []
    for length, same in groupby(lengths):
        run = EqualLengthRun(start, len(list(same)), length)
        runs.append(run)
        start = run.stop
    return runs


def map_tensors(decoder: DenseDecoder) -> dict[str, Tensor]:
    """The target of each tensor of a checkpoint: views into the fused weights."""
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
