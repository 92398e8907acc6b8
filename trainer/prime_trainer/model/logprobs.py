"""Log-probability and entropy of tokens from logits, with hand-written gradients.

For models that do more to their logits than the head's product, so that head.py cannot compute them. Autograd stores
these logits, but half as many copies as with log_softmax and gather.
"""

from collections.abc import Iterator
from typing import Any

import torch

Tensor = Any

CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 512 * 2**20}
"""Size of the logits that are computed together, by device: what a CPU's cache holds, and enough to fill a GPU."""


def iterate_chunks(logits_TV: Tensor) -> Iterator[slice]:
    total, width = logits_TV.shape
    step = max(1, CHUNK_BYTES[logits_TV.device.type] // (4 * width))
    return (slice(start, start + step) for start in range(0, total, step))


def score_rows(logits_RV: Tensor, targets_R: Tensor, temperature_R: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of logits divided by the sampling temperature."""
    log_RV = (logits_RV / temperature_R[:, None]).log_softmax(-1)
    return log_RV.gather(-1, targets_R[:, None])[:, 0], -(log_RV.exp() * log_RV).sum(-1)


def compute_logit_gradients(
    logits_RV: Tensor,
    targets_R: Tensor,
    temperature_R: Tensor,
    entropy_R: Tensor,
    logp_grad_R: Tensor,
    entropy_grad_R: Tensor,
) -> Tensor:
    """The gradient with respect to the logits: d logp = onehot(target) - p, and d H = -p (log p + H)."""
    log_RV = (logits_RV / temperature_R[:, None]).log_softmax(-1)
    share_RV = log_RV.exp()
    grad_RV = log_RV.add_(entropy_R[:, None]).mul_(entropy_grad_R[:, None]).add_(logp_grad_R[:, None])
    grad_RV = grad_RV.mul_(share_RV).neg_()
    grad_RV.scatter_add_(-1, targets_R[:, None], logp_grad_R[:, None])
    return grad_RV.div_(temperature_R[:, None])


class TokenScores(torch.autograd.Function):  # type: ignore[misc]
    """(logits, targets, temperatures) to (log-probs of the targets, entropies)."""

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, targets_T: Tensor, temperature_T: Tensor) -> tuple[Tensor, Tensor]:
        dtype = _at_least_float32(logits_TV)
        logp_T, entropy_T = logits_TV.new_empty(2, len(targets_T), dtype=dtype)
        for rows in iterate_chunks(logits_TV):
            scored = score_rows(logits_TV[rows].to(dtype), targets_T[rows], temperature_T[rows])
            logp_T[rows], entropy_T[rows] = scored
        ctx.save_for_backward(logits_TV, targets_T, temperature_T, entropy_T)
        return logp_T, entropy_T

    @staticmethod
    def backward(ctx: Any, logp_grad_T: Tensor, entropy_grad_T: Tensor) -> tuple[Tensor | None, ...]:
        logits_TV, targets_T, temperature_T, entropy_T = ctx.saved_tensors
        grad_TV = torch.empty_like(logits_TV)
        for rows in iterate_chunks(logits_TV):
            grad_RV = compute_logit_gradients(
                logits_TV[rows].to(entropy_T.dtype),
                targets_T[rows],
                temperature_T[rows],
                entropy_T[rows],
                logp_grad_T[rows],
                entropy_grad_T[rows],
            )
            grad_TV[rows] = grad_RV.to(grad_TV.dtype)
        return grad_TV, None, None


def _at_least_float32(values: Tensor) -> Any:
    """The dtype of `values`, widened to float32 if it is narrower."""
    return torch.promote_types(values.dtype, torch.float32)


def score_tokens(logits_TV: Tensor, targets_T: Tensor, temperature_T: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets, and entropies."""
    logp_T, entropy_T = TokenScores.apply(logits_TV, targets_T, temperature_T)
    return logp_T, entropy_T
