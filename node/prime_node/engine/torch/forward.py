"""Forward passes over finished sequences, in the engine's precision and, for bfloat16 runs, in the other one too.

Several sequences share a pass; their logits are computed in bounded pieces. In a bfloat16 run, the same tokens are
computed once rounded to bfloat16 and once without rounding. The difference is the noise that bfloat16 causes for these
very tokens, and thus what an honest worker may deviate by, whatever the model. The weights are the model's own bfloat16
values, whatever type holds them. Products are summed in float32 and rounded once, as hardware does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from prime_node.engine.interface import ForwardResult, Sampling, TokenSequence
from prime_node.engine.torch.dense import (
    MLP_TOKENS,
    DenseDecoder,
    DenseModel,
    ForwardBatch,
    LayerWeights,
    get_angles,
    plan_forward,
)
from prime_node.engine.torch.draws import Draws
from prime_node.engine.torch.kernels import TorchOps
from prime_node.engine.torch.model import TorchModel
from prime_node.engine.torch.sampling import check_scores, compute_scores, get_token_logprobs
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.toploc import tensor_to_bits


class CrossPrecisionModel:
    """A decoder's forward pass in the other precision. Slower than the decoder: nothing is fused or done in place."""

    def __init__(self, decoder: DenseDecoder) -> None:
        self._decoder = decoder
        self.rounds_to_bf16 = decoder.dtype == torch.float32
        """Whether this model rounds; else the engine's model does."""

    def read(self, sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int]) -> Tensor:
        """As TorchModel.read, in float32 tensors that hold the values of this precision."""
        batch, wanted = plan_forward(sequences, firsts, self._decoder.device)
        return self._forward(batch, wanted)

    def embed(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self._decoder.embedding).float()

    def list_layers(self) -> Iterable[LayerWeights]:
        """In order. Each is used before the next one is taken."""
        return self._decoder.layers

    def get_logits(self, hidden: Tensor) -> Tensor:
        return self.multiply_head(hidden, self._decoder.head)

    def multiply_head(self, hidden: Tensor, head: Tensor) -> Tensor:
        logits = functional.linear(hidden, head.float())
        return logits if self._decoder.shape.has_float32_head else self._round(logits)

    def _forward(self, batch: ForwardBatch, wanted: Tensor) -> Tensor:
        decoder = self._decoder
        states = self.embed(batch.tokens)
        angles = get_angles(decoder.frequencies, batch.positions)
        ops = TorchOps(self._round(angles), torch.float32)
        for layer in self.list_layers():
            mixed = self._attend(batch, *self._project(states, layer, ops))
            states = self._add(states, mixed, layer.out, layer.out_bias)
            parts = [self._feed_forward(part, layer, ops) for part in states.split(MLP_TOKENS)]
            states = torch.cat(parts)
        return self._norm(states.index_select(0, wanted), decoder.norm)

    def _project(self, states: Tensor, layer: LayerWeights, ops: TorchOps) -> tuple[Tensor, Tensor, Tensor]:
        shape = self._decoder.shape
        joined = self._multiply(self._norm(states, layer.input_norm), layer.qkv, layer.qkv_bias)
        heads = joined.view(-1, shape.qkv_heads, shape.head_dim)
        turned, values = heads[:, : -shape.kv_heads], heads[:, -shape.kv_heads :]
        if layer.qk_norm is not None:
            turned = self._round(functional.rms_norm(turned, (shape.head_dim,), eps=shape.epsilon))
            turned = self._round(turned * layer.qk_norm.float())
        turned = self._round(ops.rotate(turned))
        return turned[:, : shape.heads], turned[:, shape.heads :], values

    def _attend(self, batch: ForwardBatch, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        parts = []
        for run in batch.runs:
            query, key, value = (
                tensor[run.start : run.stop].unflatten(0, (run.count, run.length)).transpose(1, 2)
                for tensor in (queries, keys, values)
            )
            found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            parts.append(self._round(found.transpose(1, 2).flatten(2).flatten(0, 1)))
        return torch.cat(parts)

    def _feed_forward(self, states: Tensor, layer: LayerWeights, ops: TorchOps) -> Tensor:
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
        return values.to(torch.bfloat16).float() if self.rounds_to_bf16 else values


def open_cross_precision(model: TorchModel) -> CrossPrecisionModel | None:
    """None for models outside the dense family, which transformers computes."""
    return CrossPrecisionModel(model.decoder) if isinstance(model, DenseModel) else None


LOGITS_MAX = {"cpu": 2**22, "cuda": 2**27}
"""Logits at once, whatever the vocabulary size: 16 MiB in float32; on a GPU, which needs many rows at once, 512 MiB."""

ComputeLogits = Callable[[Tensor], Tensor]


def verify_sequences(sequences: Sequence[TokenSequence], *, vocabulary: int, context_max: int) -> None:
    """The tokens are the worker's: RemoteError for tokens that no model could have generated."""
    for sequence in sequences:
        field = f"rows[{sequence.number}]"
        if not len(sequence.prompt) or not len(sequence.output):
            raise RemoteError(field, "has no prompt or no output")
        if len(sequence.prompt) + len(sequence.output) > context_max:
            raise RemoteError(field, f"is longer than the model's context of {context_max} tokens")
        for tokens in (sequence.prompt, sequence.output):
            if tokens.min() < 0 or tokens.max() >= vocabulary:
                raise RemoteError(field, f"has tokens outside of the {vocabulary} there are")


def plan_groups(sequences: Sequence[TokenSequence], tokens_max: int) -> list[list[TokenSequence]]:
    """Group sequences of about the same length, at most `tokens_max` tokens and at least one sequence each."""
    groups: list[list[TokenSequence]] = []
    tokens = 0
    for sequence in sorted(sequences, key=get_length):
        if not groups or tokens + get_length(sequence) > tokens_max:
            groups.append([])
            tokens = 0
        groups[-1].append(sequence)
        tokens += get_length(sequence)
    return groups


def get_length(sequence: TokenSequence) -> int:
    return len(sequence.prompt) + len(sequence.output)


def forward_group(
    model: TorchModel | CrossPrecisionModel,
    sequences: Sequence[TokenSequence],
    sampling: Sampling,
    *,
    vocabulary: int,
    cross: CrossPrecisionModel | None = None,
) -> Iterator[ForwardResult]:
    """With a `cross` model the results come from the pass without rounding, and `bf16_...` from the rounded one."""
    # The hidden state of the last token is not needed.
    fed = [np.concatenate((sequence.prompt, sequence.output[:-1])).astype(np.int64) for sequence in sequences]
    firsts = [len(sequence.prompt) - 1 for sequence in sequences]
    exact = model if cross is None or cross.rounds_to_bf16 else cross
    hidden = exact.read(fed, firsts)
    rows_max = max(1, LOGITS_MAX[hidden.device.type] // vocabulary)
    pieces = score_rows(exact.get_logits, hidden, sequences, sampling, rows_max)
    columns = check_scores(torch.cat(list(pieces), dim=1))
    bits = tensor_to_bits(hidden.to(torch.bfloat16))
    own_bits = own_logprobs = None
    if cross is not None:
        rounded = cross if cross.rounds_to_bf16 else model
        own_hidden = rounded.read(fed, firsts)
        own_bits = tensor_to_bits(own_hidden.to(torch.bfloat16))
        own_logprobs = compute_logprobs(rounded.get_logits, own_hidden, sequences, sampling, rows_max).cpu().numpy()
    start = 0
    for sequence in sequences:
        rows = slice(start, start := start + len(sequence.output))
        margins, logprobs, eos_logprobs = (column[rows] for column in columns)
        yield ForwardResult(
            number=sequence.number,
            hidden_bits=bits[rows],
            margins=margins,
            logprobs=logprobs,
            eos_logprobs=eos_logprobs,
            bf16_hidden_bits=None if own_bits is None else own_bits[rows],
            bf16_logprobs=None if own_logprobs is None else own_logprobs[rows],
        )


def compute_logprobs(
    get_logits: ComputeLogits, hidden: Tensor, sequences: Sequence[TokenSequence], sampling: Sampling, rows_max: int
) -> Tensor:
    """Log-prob of each output token, `rows_max` rows at a time."""
    tokens = torch.from_numpy(np.concatenate([sequence.output for sequence in sequences]).astype(np.int64)).to(
        hidden.device
    )
    pieces = zip(hidden.split(rows_max), tokens.split(rows_max), strict=True)
    return torch.cat([get_token_logprobs(get_logits(some), own, sampling.temperature) for some, own in pieces])


def score_rows(
    get_logits: ComputeLogits, hidden: Tensor, sequences: Sequence[TokenSequence], sampling: Sampling, rows_max: int
) -> Iterator[Tensor]:
    """compute_scores of the rows of all sequences, `rows_max` rows at a time."""
    tokens = torch.from_numpy(np.concatenate([sequence.output for sequence in sequences]).astype(np.int64)).to(
        hidden.device
    )
    seeds = np.repeat(
        np.array([sequence.seed for sequence in sequences], np.uint64), [len(sequence.output) for sequence in sequences]
    )
    positions: NDArray[np.int64] = np.concatenate([np.arange(len(sequence.output)) for sequence in sequences])
    for start in range(0, len(hidden), rows_max):
        rows = slice(start, start + rows_max)
        draws = Draws(sampling.temperature, seeds[rows], positions[rows])
        yield compute_scores(get_logits(hidden[rows]), tokens[rows], draws, sampling.eos)
