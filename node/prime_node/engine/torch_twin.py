"""The same texts read in another arithmetic: as bfloat16 rounds where the model computes in float32, and without
rounding where it computes in bfloat16.

What lies between the two is the noise that bfloat16 gives these very tokens. It is what an honest worker's numbers may
be noisy by, so a validator of a run in bfloat16 knows it for each text, whatever the model. The weights are the model's
own: bfloat16 values, whatever type holds them. Products are summed in float32 and rounded once, as hardware does.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from prime_node.engine.torch_dense import MLP_TOKENS, DenseDecoder, Layer, Pass
from prime_node.engine.torch_dense_model import DenseModel
from prime_node.engine.torch_model import Model
from prime_node.engine.torch_rope import get_angles
from prime_node.engine.torch_steps import TorchSteps


class Twin:
    """A decoder's computation in the other arithmetic. Slower than the decoder: nothing is joined or done in place."""

    def __init__(self, model: DenseModel) -> None:
        self._model = model
        self._decoder: DenseDecoder = model.decoder
        self.is_rounded = model.decoder.dtype == torch.float32
        """Whether this one rounds; else the model does."""

    def read(self, sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int]) -> Tensor:
        """As Model.read, in float32 that holds what this arithmetic gives."""
        todo, wanted = self._model.plan_reading(sequences, firsts)
        return self._forward(todo, wanted)

    def get_logits(self, hidden: Tensor) -> Tensor:
        return self._multiply(hidden, self._decoder.head, None)

    def _forward(self, todo: Pass, wanted: Tensor) -> Tensor:
        decoder = self._decoder
        states = functional.embedding(todo.tokens, decoder.embedding).float()
        angles = get_angles(decoder.frequencies, todo.positions)
        steps = TorchSteps(self._round(angles), torch.float32)
        for layer in decoder.layers:
            mixed = self._attend(todo, *self._project(states, layer, steps))
            states = self._add(states, mixed, layer.out, layer.out_bias)
            parts = [self._widen(part, layer, steps) for part in states.split(MLP_TOKENS)]
            states = torch.cat(parts)
        return self._norm(states.index_select(0, wanted), decoder.norm)

    def _project(self, states: Tensor, layer: Layer, steps: TorchSteps) -> tuple[Tensor, Tensor, Tensor]:
        shape = self._decoder.shape
        joined = self._multiply(self._norm(states, layer.input_norm), layer.qkv, layer.qkv_bias)
        heads = joined.view(-1, shape.qkv_heads, shape.head_dim)
        turned, values = heads[:, : -shape.kv_heads], heads[:, -shape.kv_heads :]
        if layer.qk_norm is not None:
            turned = self._round(functional.rms_norm(turned, (shape.head_dim,), eps=shape.epsilon))
            turned = self._round(turned * layer.qk_norm.float())
        turned = self._round(steps.turn(turned))
        return turned[:, : shape.heads], turned[:, shape.heads :], values

    def _attend(self, todo: Pass, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        parts = []
        for run in todo.runs:
            query, key, value = (
                tensor[run.start : run.stop].unflatten(0, (run.count, run.length)).transpose(1, 2)
                for tensor in (queries, keys, values)
            )
            found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            parts.append(self._round(found.transpose(1, 2).flatten(2).flatten(0, 1)))
        return torch.cat(parts)

    def _widen(self, states: Tensor, layer: Layer, steps: TorchSteps) -> Tensor:
        both = self._multiply(self._norm(states, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
        gate, up = both.chunk(2, dim=-1)
        gated = self._round(self._round(functional.silu(gate)) * up)
        return self._add(states, gated, layer.down, layer.down_bias)

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        return self._round(functional.rms_norm(states, weight.shape, weight.float(), self._decoder.shape.epsilon))

    def _multiply(self, factor: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._round(functional.linear(factor, weight.float(), None if bias is None else bias.float()))

    def _add(self, states: Tensor, factor: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        added = self._round(torch.addmm(states, factor, weight.float().t()))
        return added if bias is None else self._round(added + bias.float())

    def _round(self, values: Tensor) -> Tensor:
        return values.to(torch.bfloat16).float() if self.is_rounded else values


def open_twin(model: Model) -> Twin | None:
    """None for models of other families: theirs is computed by transformers."""
    return Twin(model) if isinstance(model, DenseModel) else None
