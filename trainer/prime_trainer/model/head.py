"""The head of a model in one step: hidden states to log-probs and entropies of given tokens, and the gradients.

The logits of a pack would need more memory than everything else together: 16,384 tokens by 151,936 are 10 GB in
float32. They are computed in tiles of rows (tokens) by columns (vocabulary), forward and backward, and never kept.
Columns are the outer loop, so that the gradient of a weight is one product over all rows of a block and nothing is
added up in bfloat16: products of bfloat16 are accumulated in float32, between tiles too.

What happens to a tile between two matrix products is in a `TileKernels`: in torch here, in Triton in triton_head.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Tensor = Any

MIB = 2**20
TILE_SHAPES = {"cpu": (1024, MIB // 2), "cuda": (8192, 128 * MIB)}
"""Most rows of a tile, and its logits, by device. A CPU is fastest where a tile stays in its cache (2 MiB of float32).
A GPU needs large products; 512 MiB of float32 are 0.6 % of its 80 GB."""


@dataclass(frozen=True, slots=True)
class RowState:
    """What is known of each row after some of its logits, all divided by the temperature, in float32 or wider."""

    top_T: Tensor
    """The largest logit."""
    sum_T: Tensor
    """Of exp(logit - top)."""
    weighted_T: Tensor
    """Of exp(logit - top) * logit, for the entropy."""
    target_T: Tensor
    """The target's logit; 0 before its column."""

    @classmethod
    def start(cls, rows: int, like: Tensor, dtype: Any) -> "RowState":
        top_T = torch.full((rows,), -torch.inf, device=like.device, dtype=dtype)
        return cls(top_T, *torch.zeros((3, rows), device=like.device, dtype=dtype))

    def take(self, rows: slice) -> "RowState":
        """The same memory, of some rows."""
        return RowState(self.top_T[rows], self.sum_T[rows], self.weighted_T[rows], self.target_T[rows])

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs of the targets, entropies, and the logarithms of the sums."""
        log_sum_T = self.top_T + self.sum_T.log()
        return self.target_T - log_sum_T, log_sum_T - self.weighted_T / self.sum_T, log_sum_T


@dataclass(frozen=True, slots=True)
class RowGradients:
    """What the gradient of a row's logits is computed from."""

    log_sum_T: Tensor
    entropy_T: Tensor
    logp_grad_T: Tensor
    entropy_grad_T: Tensor | None
    """None where nothing depends on the entropies."""

    def take(self, rows: slice) -> "RowGradients":
        entropy_grad_T = None if self.entropy_grad_T is None else self.entropy_grad_T[rows]
        return RowGradients(self.log_sum_T[rows], self.entropy_T[rows], self.logp_grad_T[rows], entropy_grad_T)


class TileKernels(Protocol):
    """What is done to a tile of logits. `targets` count from the tile's first column and may lie outside of it."""

    def update(self, logits_RC: Tensor, targets_R: Tensor, temperature_R: Tensor, state: RowState) -> None:
        """Add the tile to the state of its rows. The tile may be overwritten."""
        ...

    def differentiate(
        self, logits_RC: Tensor, targets_R: Tensor, temperature_R: Tensor, known: RowGradients, dtype: Any
    ) -> Tensor:
        """The gradient with respect to the tile's logits, in `dtype`. The tile may be overwritten."""
        ...


class TorchTiles:
    """With torch's operations: on CPUs, and wherever Triton is not."""

    def update(self, logits_RC: Tensor, targets_R: Tensor, temperature_R: Tensor, state: RowState) -> None:
        logits_RC.div_(temperature_R[:, None])
        inside_R, column_R = find_targets(targets_R, logits_RC.shape[1])
        state.target_T.add_(logits_RC.gather(1, column_R[:, None])[:, 0].where(inside_R, 0))
        top_R = torch.maximum(state.top_T, logits_RC.amax(1))
        shrink_R = (state.top_T - top_R).exp_()
        shares_RC = (logits_RC - top_R[:, None]).exp_()
        state.sum_T.mul_(shrink_R).add_(shares_RC.sum(1))
        state.weighted_T.mul_(shrink_R).add_(torch.linalg.vecdot(shares_RC, logits_RC))
        state.top_T.copy_(top_R)

    def differentiate(
        self, logits_RC: Tensor, targets_R: Tensor, temperature_R: Tensor, known: RowGradients, dtype: Any
    ) -> Tensor:
        """d logp = onehot(target) - p, and d H = -p (log p + H)."""
        log_RC = logits_RC.div_(temperature_R[:, None]).sub_(known.log_sum_T[:, None])
        if known.entropy_grad_T is None:
            grad_RC = log_RC.exp_().mul_((-known.logp_grad_T / temperature_R)[:, None])
        else:
            share_RC = log_RC.exp()
            grad_RC = log_RC.add_(known.entropy_T[:, None]).mul_(known.entropy_grad_T[:, None])
            grad_RC = grad_RC.add_(known.logp_grad_T[:, None]).mul_(share_RC).div_(-temperature_R[:, None])
        inside_R, column_R = find_targets(targets_R, logits_RC.shape[1])
        grad_RC.scatter_add_(1, column_R[:, None], (known.logp_grad_T / temperature_R).where(inside_R, 0)[:, None])
        return grad_RC.to(dtype)


def find_targets(targets_R: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Which rows have their target in the tile, and a valid column for every row."""
    return (targets_R >= 0) & (targets_R < columns), targets_R.clamp(0, columns - 1)


def choose_kernels(device: Any) -> TileKernels:
    """Triton comes with torch's builds for GPUs."""
    if device.type != "cuda":
        return TorchTiles()
    from prime_trainer.model.triton_head import TritonTiles

    return TritonTiles()


def choose_tile(device: Any, rows: int) -> tuple[int, int]:
    """Rows and columns of a tile."""
    rows_max, logits_max = TILE_SHAPES[device.type]
    height = max(1, min(rows, rows_max))
    return height, max(1, logits_max // height)


def iterate_slices(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(total, start + size)) for start in range(0, total, size))


def multiply(left: Tensor, right: Tensor, accumulate: Any) -> Tensor:
    """A matrix product in `accumulate`, which is also the type of its sums."""
    if left.dtype == accumulate:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=accumulate)
    # Products of bfloat16 are exact in float32, so this is what a GPU's tensor cores compute.
    return left.to(accumulate) @ right.to(accumulate)


class HeadScores(torch.autograd.Function):  # type: ignore[misc]
    """(hidden states, weights and bias of the head, targets, temperatures, type of the products' factors) to (log-probs
    of the targets, entropies)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        temperature_T: Tensor,
        dtype: Any,
        has_entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(dtype, torch.float32)
        temperature_T = temperature_T.to(wide)
        given_TH = hidden_TH.to(dtype)
        state = RowState.start(len(targets_T), hidden_TH, wide)
        kernels = choose_kernels(hidden_TH.device)
        height, width = choose_tile(hidden_TH.device, len(targets_T))
        for columns in iterate_slices(len(weight_VH), width):
            block_CH = weight_VH[columns].to(dtype)
            for rows in iterate_slices(len(targets_T), height):
                logits_RC = project(given_TH[rows], block_CH, bias_V, columns, wide)
                kernels.update(logits_RC, targets_T[rows] - columns.start, temperature_T[rows], state.take(rows))
        logp_T, entropy_T, log_sum_T = state.finish()
        ctx.save_for_backward(given_TH, weight_VH, bias_V, targets_T, temperature_T, entropy_T, log_sum_T)
        ctx.hidden_dtype = hidden_TH.dtype
        ctx.has_entropy_gradient = has_entropy_gradient
        if not has_entropy_gradient:
            ctx.mark_non_differentiable(entropy_T)
        return logp_T, entropy_T

    @staticmethod
    def backward(ctx: Any, logp_grad_T: Tensor, entropy_grad_T: Tensor) -> tuple[Tensor | None, ...]:
        given_TH, weight_VH, bias_V, targets_T, temperature_T, entropy_T, log_sum_T = ctx.saved_tensors
        wide, dtype = entropy_T.dtype, given_TH.dtype
        known = RowGradients(log_sum_T, entropy_T, logp_grad_T, entropy_grad_T if ctx.has_entropy_gradient else None)
        hidden_grad_TH = torch.zeros(given_TH.shape, device=given_TH.device, dtype=wide)
        weight_grad_VH = torch.empty_like(weight_VH) if ctx.needs_input_grad[1] else None
        bias_grad_V = None if bias_V is None else torch.empty_like(bias_V)
        kernels = choose_kernels(given_TH.device)
        height, width = choose_tile(given_TH.device, len(targets_T))
        for columns in iterate_slices(len(weight_VH), width):
            block_CH = weight_VH[columns].to(dtype)
            block_grad_CH, block_grad_C = None, 0
            for rows in iterate_slices(len(targets_T), height):
                logits_RC = project(given_TH[rows], block_CH, bias_V, columns, wide)
                grad_RC = kernels.differentiate(
                    logits_RC, targets_T[rows] - columns.start, temperature_T[rows], known.take(rows), dtype
                )
                hidden_grad_TH[rows] += multiply(grad_RC, block_CH, wide)
                if weight_grad_VH is not None:
                    product_CH = multiply(grad_RC.T, given_TH[rows], wide)
                    block_grad_CH = product_CH if block_grad_CH is None else block_grad_CH.add_(product_CH)
                if bias_grad_V is not None:
                    block_grad_C = block_grad_C + grad_RC.sum(0, dtype=wide)
            if weight_grad_VH is not None:
                weight_grad_VH[columns] = 0 if block_grad_CH is None else block_grad_CH
            if bias_grad_V is not None:
                bias_grad_V[columns] = block_grad_C
        return hidden_grad_TH.to(ctx.hidden_dtype), weight_grad_VH, bias_grad_V, None, None, None, None


def project(given_RH: Tensor, block_CH: Tensor, bias_V: Tensor | None, columns: slice, wide: Any) -> Tensor:
    logits_RC = multiply(given_RH, block_CH.T, wide)
    return logits_RC if bias_V is None else logits_RC.add_(bias_V[columns].to(wide))


def score_hidden(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    temperature_T: Tensor,
    dtype: Any = None,
    *,
    has_entropy_gradient: bool = True,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets, and entropies, from the inputs of the head.

    `dtype` is that of the factors of its products, forward and backward alike, whatever autocast says; the default is
    that of the hidden states. Without a gradient of the entropies the backward pass reads a tile half as often.
    """
    inputs = (hidden_TH, weight_VH, bias_V, targets_T, temperature_T)
    with torch.autocast(hidden_TH.device.type, enabled=False):
        logp_T, entropy_T = HeadScores.apply(*inputs, dtype or hidden_TH.dtype, has_entropy_gradient)
    return logp_T, entropy_T
