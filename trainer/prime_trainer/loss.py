"""The objective: a group-relative policy gradient, clipped on both sides, token by token. Pure functions of tensors.

T is the trained tokens of one pack, end to end; prompts are not among them, so nothing has to be masked. Everything is
a sum over tokens; whoever adds the packs up divides by the trained tokens of the whole step, on all ranks.
What is left out, and why: docs/learning.md.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from prime_trainer.config import LossConfig

Tensor = Any

LOG_RATIO_MAX = 20.0
"""Exponents are held within this: e^20 is finite in every format, and no honest ratio comes near it."""
KL_RATIO_MAX = 10.0
"""Above it a token's distance to the reference pulls no harder."""
TAIL_LOG_RATIO = math.log(2.0)
"""A token whose probability has moved by more than this factor since it was sampled counts as one of the tails."""


def bounded_exp(log_T: Tensor, *, high: float = LOG_RATIO_MAX) -> Tensor:
    """e^x with x held within bounds. Beyond a bound the gradient is the bound's, not 0: no token is lost for being far.

    The exponent is bounded before e is raised to it: infinity times a weight of 0 would be no number.
    """
    return (log_T - (log_T - log_T.clamp(-LOG_RATIO_MAX, high)).detach()).exp()


def compute_policy_loss(
    logp_T: Tensor, start_logp_T: Tensor, advantage_T: Tensor, weight_T: Tensor, rule: LossConfig
) -> Tensor:
    """The clipped surrogate of each token, to be made small. `start` is the policy before the step's first update."""
    ratio_T = bounded_exp(logp_T - start_logp_T, high=math.log(rule.delta))
    clipped_T = ratio_T.clamp(1 - rule.clip_low, 1 + rule.clip_high)
    return -weight_T * torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)


def compute_staleness_weight(start_logp_T: Tensor, sampled_logp_T: Tensor, rule: LossConfig) -> Tensor:
    """How much likelier each token is at the start of the step than for the worker that drew it. No gradient.

    The worker's log-probs were verified with its submission, so they can be divided by.
    """
    if not rule.correct:
        return torch.ones_like(sampled_logp_T)
    return bounded_exp((start_logp_T - sampled_logp_T).detach(), high=math.log(rule.ratio_max))


def compute_kl_to_reference(logp_T: Tensor, reference_logp_T: Tensor) -> Tensor:
    """Distance from the reference by the estimator r - 1 - log r, which is never negative. The gradient is logp's."""
    log_ratio_T = reference_logp_T - logp_T
    return bounded_exp(log_ratio_T, high=math.log(KL_RATIO_MAX)) - log_ratio_T - 1


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What the loss is made of, for the trained tokens of one pack."""

    logp_T: Tensor
    entropy_T: Tensor
    start_logp_T: Tensor
    """Of the policy before the step's first update. Where that is the present one: its values, without gradient."""
    sampled_logp_T: Tensor
    """Of the policy that the worker drew from, up to the run's lag older."""
    advantage_T: Tensor
    mask_T: Tensor
    """1, or 0 for what only fills a rank's turn."""
    reference_logp_T: Tensor | None = None


def compute_loss(tokens: LossInputs, rule: LossConfig) -> Tensor:
    """The sum over a pack's tokens."""
    weight_T = compute_staleness_weight(tokens.start_logp_T, tokens.sampled_logp_T, rule)
    loss_T = compute_policy_loss(tokens.logp_T, tokens.start_logp_T, tokens.advantage_T, weight_T, rule)
    loss_T = loss_T - rule.entropy_weight * tokens.entropy_T
    if tokens.reference_logp_T is not None:
        loss_T = loss_T + rule.kl_weight * compute_kl_to_reference(tokens.logp_T, tokens.reference_logp_T)
    return (loss_T * tokens.mask_T).sum()


LOSS_STATS = ("tokens", "loss", "entropy", "mismatch_kl", "tail", "clipped", "truncated", "kl")
"""What `observe` adds up; divided by `tokens` they are means and shares."""


def compute_loss_stats(tokens: LossInputs, loss: Tensor, rule: LossConfig) -> Tensor:
    """Sums over a pack, in the order of SUMS, for the monitors."""
    with torch.no_grad():
        return _compute_loss_stats(tokens, loss, rule)


def _compute_loss_stats(tokens: LossInputs, loss: Tensor, rule: LossConfig) -> Tensor:
    counts_T, advantage_T = tokens.mask_T, tokens.advantage_T
    moved_T = tokens.start_logp_T - tokens.sampled_logp_T
    ratio_T = bounded_exp(tokens.logp_T - tokens.start_logp_T)
    clipped_T = ((advantage_T > 0) & (ratio_T > 1 + rule.clip_high)) | (
        (advantage_T < 0) & ((ratio_T < 1 - rule.clip_low) | (ratio_T > rule.delta))
    )
    reference = tokens.reference_logp_T
    parts = [
        counts_T,
        tokens.entropy_T * counts_T,
        (bounded_exp(moved_T) - moved_T - 1) * counts_T,
        (moved_T.abs() > TAIL_LOG_RATIO) * counts_T,
        clipped_T * counts_T,
        (moved_T > math.log(rule.ratio_max)) * counts_T,
        torch.zeros_like(counts_T)
        if reference is None
        else compute_kl_to_reference(tokens.logp_T, reference) * counts_T,
    ]
    sums = [part.sum(dtype=torch.float64) for part in parts]
    return torch.stack([sums[0], loss.double(), *sums[1:]])
