"""Log-probability and entropy of tokens, from hidden states or from logits, with hand-written gradients.

With a vocabulary of 150,000 the logits of a pack need more memory than everything else together. From hidden states
they are computed a few rows at a time, forward and backward, and never stored. Where a model does more to its logits
than the head's product, autograd stores them, but half as many copies as with log_softmax and gather.
"""

from collections.abc import Iterator
from typing import Any

import torch

Tensor = Any

LOGIT_CHUNK_BYTES = 16 * 2**20
"""Size of the logits that are computed together."""


def iterate_chunks(total: int, width: int) -> Iterator[slice]:
    step = max(1, LOGIT_CHUNK_BYTES // (4 * width))
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


class HeadScores(torch.autograd.Function):  # type: ignore[misc]
    """(hidden states, weights and bias of the head, targets, temperatures) to (log-probs of the targets, entropies)."""

    @staticmethod
    def forward(
        ctx: Any, hidden_TH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_T: Tensor, temperature_T: Tensor
    ) -> tuple[Tensor, Tensor]:
        logp_T, entropy_T = hidden_TH.new_empty(2, len(targets_T), dtype=_at_least_float32(hidden_TH))
        for rows in iterate_chunks(*_shape(hidden_TH, weight_VH)):
            logits_RV = _project(hidden_TH[rows], weight_VH, bias_V)
            logp_T[rows], entropy_T[rows] = score_rows(logits_RV, targets_T[rows], temperature_T[rows])
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, temperature_T, entropy_T)
        return logp_T, entropy_T

    @staticmethod
    def backward(ctx: Any, logp_grad_T: Tensor, entropy_grad_T: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight_VH, bias_V, targets_T, temperature_T, entropy_T = ctx.saved_tensors
        hidden_grad_TH, weight_grad_VH = torch.empty_like(hidden_TH), torch.zeros_like(weight_VH)
        bias_grad_V = None if bias_V is None else torch.zeros_like(bias_V)
        for rows in iterate_chunks(*_shape(hidden_TH, weight_VH)):
            grad_RV = compute_logit_gradients(
                _project(hidden_TH[rows], weight_VH, bias_V),
                targets_T[rows],
                temperature_T[rows],
                entropy_T[rows],
                logp_grad_T[rows],
                entropy_grad_T[rows],
            )
            narrow_RV = grad_RV.to(hidden_TH.dtype)
            hidden_grad_TH[rows] = narrow_RV @ weight_VH.to(hidden_TH.dtype)
            weight_grad_VH += (narrow_RV.T @ hidden_TH[rows]).to(weight_VH.dtype)
            if bias_grad_V is not None:
                bias_grad_V += grad_RV.sum(0).to(bias_grad_V.dtype)
        return hidden_grad_TH, weight_grad_VH, bias_grad_V, None, None


class TokenScores(torch.autograd.Function):  # type: ignore[misc]
    """(logits, targets, temperatures) to (log-probs of the targets, entropies)."""

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, targets_T: Tensor, temperature_T: Tensor) -> tuple[Tensor, Tensor]:
        dtype = _at_least_float32(logits_TV)
        logp_T, entropy_T = logits_TV.new_empty(2, len(targets_T), dtype=dtype)
        for rows in iterate_chunks(*logits_TV.shape):
            scored = score_rows(logits_TV[rows].to(dtype), targets_T[rows], temperature_T[rows])
            logp_T[rows], entropy_T[rows] = scored
        ctx.save_for_backward(logits_TV, targets_T, temperature_T, entropy_T)
        return logp_T, entropy_T

    @staticmethod
    def backward(ctx: Any, logp_grad_T: Tensor, entropy_grad_T: Tensor) -> tuple[Tensor | None, ...]:
        logits_TV, targets_T, temperature_T, entropy_T = ctx.saved_tensors
        grad_TV = torch.empty_like(logits_TV)
        for rows in iterate_chunks(*logits_TV.shape):
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


def _shape(hidden_TH: Tensor, weight_VH: Tensor) -> tuple[int, int]:
    return len(hidden_TH), len(weight_VH)


def _project(hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
    logits_RV = (hidden_RH @ weight_VH.to(hidden_RH.dtype).T).to(_at_least_float32(hidden_RH))
    return logits_RV if bias_V is None else logits_RV + bias_V.to(logits_RV.dtype)


def score_tokens(logits_TV: Tensor, targets_T: Tensor, temperature_T: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets, and entropies."""
    logp_T, entropy_T = TokenScores.apply(logits_TV, targets_T, temperature_T)
    return logp_T, entropy_T


def score_hidden(
    hidden_TH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_T: Tensor, temperature_T: Tensor
) -> tuple[Tensor, Tensor]:
    """The same from the inputs of the model's head."""
    logp_T, entropy_T = HeadScores.apply(hidden_TH, weight_VH, bias_V, targets_T, temperature_T)
    return logp_T, entropy_T
