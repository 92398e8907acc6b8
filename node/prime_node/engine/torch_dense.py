"""The dense decoder family, computed here: one pass takes decoding rows and whole sequences together.

What transformers spreads over modules is joined: queries, keys and values are one product, gate and up another. Tokens
lie end to end without padding; only attention knows which of them belong together. Dropout, other activations and
sliding windows are left out: dense_shape.py lets no model in that has them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from prime_node.engine.dense_shape import DenseShape
from prime_node.engine.torch_attention import Attention
from prime_node.engine.torch_cache import KvCache
from prime_node.engine.torch_prefill import attend_run
from prime_node.engine.torch_rope import get_angles, get_frequencies
from prime_node.engine.torch_steps import Steps, open_steps

MLP_TOKENS = 512
"""Tokens that go through the wide part at once: its activations stay in the cache of a CPU, and bounded on a GPU."""


@dataclass(frozen=True, slots=True)
class Run:
    """Sequences of one length, end to end, that start from nothing."""

    start: int
    count: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What goes through the model at once: first a token for each decoding row, then runs of whole sequences."""

    tokens: Tensor
    positions: Tensor
    runs: list[Run]
    decoding: Attention | None = None
    cache: KvCache | None = None
    """Where the runs' keys and values are kept; None: nowhere, they are read once."""
    places: Tensor | None = None
    """Where in the cache, for each token of the runs."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer's weights. Biases and norms that a model does not have are None."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """(heads and key heads, size): each head's own copy, so that one product does for all."""
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class DenseDecoder:
    """The computation, over weights that somebody else puts into `embedding`, `layers`, `norm` and `head`."""

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

    def _make_layer(self) -> Layer:
        shape = self.shape
        qkv, queries = shape.qkv_heads * shape.head_dim, shape.heads * shape.head_dim
        return Layer(
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

    def forward(self, todo: Pass, wanted: Tensor | None = None) -> Tensor:
        """Final hidden states of the wanted tokens, of all where that is None: what the head takes."""
        states = functional.embedding(todo.tokens, self.embedding)
        steps = open_steps(self.shape, get_angles(self.frequencies, todo.positions), self.dtype)
        for number, layer in enumerate(self.layers):
            queries, keys, values = self._project(states, layer, steps)
            mixed = self._attend(todo, number, queries, keys, values)
            add_product(states, mixed, layer.out, layer.out_bias)
            for part in states.split(MLP_TOKENS):
                self._widen(part, layer, steps)
        if wanted is not None:
            states = states.index_select(0, wanted)
        return steps.norm(states, self.norm, self.shape.epsilon)

    def get_logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.head).float()

    def _project(self, states: Tensor, layer: Layer, steps: Steps) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        normed = steps.norm(states, layer.input_norm, shape.epsilon)
        heads = functional.linear(normed, layer.qkv, layer.qkv_bias).view(-1, shape.qkv_heads, shape.head_dim)
        turned, values = heads[:, : -shape.kv_heads], heads[:, -shape.kv_heads :]
        if layer.qk_norm is not None:
            turned = functional.rms_norm(turned, (shape.head_dim,), eps=shape.epsilon) * layer.qk_norm
        turned = steps.turn(turned)
        return turned[:, : shape.heads], turned[:, shape.heads :], values

    def _attend(self, todo: Pass, number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        start, parts = 0, []
        if todo.decoding is not None:
            start = todo.decoding.rows
            parts.append(todo.decoding.attend(number, queries[:start], keys[:start], values[:start]))
        if todo.cache is not None and todo.places is not None:
            todo.cache.write(number, todo.places, keys[start:], values[start:])
        for run in todo.runs:
            here = slice(run.start, run.stop)
            parts.append(attend_run(queries[here], keys[here], values[here], run.length))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _widen(self, states: Tensor, layer: Layer, steps: Steps) -> None:
        """The wide part, added to the states in place."""
        normed = steps.norm(states, layer.mlp_norm, self.shape.epsilon)
        both = functional.linear(normed, layer.gate_up, layer.gate_up_bias)
        add_product(states, steps.gate(both), layer.down, layer.down_bias)


def add_product(states: Tensor, factor: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """states += factor @ weight.T + bias, in place."""
    states.addmm_(factor, weight.t())
    if bias is not None:
        states.add_(bias)
