"""Log-probability and entropy of tokens from logits, with the gradient written out.

Autograd's way keeps four arrays of tokens times vocabulary alive at once; this one keeps two, and looks at a few rows
at a time. With a vocabulary of 150,000 those arrays are most of a step's memory.
"""

from typing import Any

import torch

Tensor = Any

ROWS_BYTES = 16 * 2**20
"""Of logits looked at together."""


class TokenScores(torch.autograd.Function):  # type: ignore[misc]
    """(logits, targets, temperature) to (log-probs of the targets, entropies)."""

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, targets_T: Tensor, temperature_T: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits_TV.dtype, torch.float32)
        logp_T, entropy_T = logits_TV.new_empty(2, len(targets_T), dtype=dtype)
        for rows in _rows(logits_TV):
            log_RV = _log_shares(logits_TV, temperature_T, rows, dtype)
            logp_T[rows] = log_RV.gather(-1, targets_T[rows, None])[:, 0]
            entropy_T[rows] = -(log_RV.exp() * log_RV).sum(-1)
        ctx.save_for_backward(logits_TV, targets_T, temperature_T, entropy_T)
        return logp_T, entropy_T

    @staticmethod
    def backward(ctx: Any, logp_grad_T: Tensor, entropy_grad_T: Tensor) -> tuple[Tensor, None, None]:
        logits_TV, targets_T, temperature_T, entropy_T = ctx.saved_tensors
        grad_TV = torch.empty_like(logits_TV)
        for rows in _rows(logits_TV):
            log_RV = _log_shares(logits_TV, temperature_T, rows, entropy_T.dtype)
            share_RV = log_RV.exp()
            # Of the entropy: -p (log p + H). Of the log-prob: 1 at the target, -p everywhere.
            pull_RV = (log_RV + entropy_T[rows, None]) * entropy_grad_T[rows, None] + logp_grad_T[rows, None]
            grad_RV = -share_RV * pull_RV
            grad_RV.scatter_add_(-1, targets_T[rows, None], logp_grad_T[rows, None])
            grad_TV[rows] = (grad_RV / temperature_T[rows, None]).to(grad_TV.dtype)
        return grad_TV, None, None


def _log_shares(logits_TV: Tensor, temperature_T: Tensor, rows: slice, dtype: Any) -> Tensor:
    return (logits_TV[rows].to(dtype) / temperature_T[rows, None].to(dtype)).log_softmax(-1)


def _rows(logits_TV: Tensor) -> list[slice]:
    total, width = logits_TV.shape
    step = max(1, ROWS_BYTES // (4 * width))
    return [slice(start, start + step) for start in range(0, total, step)]


def score_tokens(logits_TV: Tensor, targets_T: Tensor, temperature_T: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and entropies, of logits divided by the temperature that the tokens were drawn with."""
    logp_T, entropy_T = TokenScores.apply(logits_TV, targets_T, temperature_T)
    return logp_T, entropy_T
