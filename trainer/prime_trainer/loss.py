"""The objective: a group-relative policy gradient, clipped on both sides, token by token. Pure functions of tensors.

T is the number of trained tokens of one pack, concatenated. Prompts are not among them, so nothing has to be masked.
Every result is a sum over tokens; the caller divides by the trained tokens of the whole step, on all ranks.
docs/learning.md has the formulas, and says what is left out and why.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from prime_trainer.config import LossConfig

Tensor = Any

LOG_RATIO_MAX = 20.0
"""Bound of every exponent: e^20 is finite in every format, and no honest ratio comes near it."""
KL_RATIO_MAX = 10.0
"""Above this ratio a token's pull towards the reference stops growing."""
TAIL_LOG_RATIO = math.log(2.0)
"""A token whose probability moved by more than this factor since it was sampled counts as a tail token."""
LOSS_STATS = ("tokens", "loss", "entropy", "mismatch_kl", "tail", "clipped", "truncated", "kl")
"""The sums that `compute_loss_stats` returns; divided by `tokens` they are means and shares."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The inputs of the loss for the trained tokens of one pack."""

    logp_T: Tensor
    entropy_T: Tensor
    start_logp_T: Tensor
    """From the policy before the first update of the step. If that is the current one: its values, detached."""
    sampled_logp_T: Tensor
    """From the policy that the worker sampled with, up to the run's maximum lag older."""
    advantage_T: Tensor
    mask_T: Tensor
    """1, or 0 in a filler pack that only keeps a rank busy."""
    reference_logp_T: Tensor | None = None


def bounded_exp(log_T: Tensor, *, high: float = LOG_RATIO_MAX) -> Tensor:
    """e^x with x clamped. Beyond a bound the gradient is the bound's, not 0, so a distant token still learns.

    x is clamped before the exponential, because infinity times a weight of 0 is NaN.
    """
    return (log_T - (log_T - log_T.clamp(-LOG_RATIO_MAX, high)).detach()).exp()


def compute_policy_loss(
    logp_T: Tensor, start_logp_T: Tensor, advantage_T: Tensor, weight_T: Tensor, config: LossConfig
) -> Tensor:
    """The clipped surrogate of each token, to be minimised. `start` is the policy before the step's first update."""
    ratio_T = bounded_exp(logp_T - start_logp_T, high=math.log(config.delta))
    clipped_T = ratio_T.clamp(1 - config.clip_low, 1 + config.clip_high)
    return -weight_T * torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)


def compute_staleness_weight(start_logp_T: Tensor, sampled_logp_T: Tensor, config: LossConfig) -> Tensor:
    """Truncated importance weight of each token: policy at the start of the step over the worker's. No gradient.

    The worker's log-probs were verified with its submission, so dividing by them is safe.
    """
    if not config.correct:
        return torch.ones_like(sampled_logp_T)
    return bounded_exp((start_logp_T - sampled_logp_T).detach(), high=math.log(config.ratio_max))


def compute_kl_to_reference(logp_T: Tensor, reference_logp_T: Tensor) -> Tensor:
    """The estimator r - 1 - log r (Schulman's k3), which is never negative. The gradient flows through logp."""
    log_ratio_T = reference_logp_T - logp_T
    return bounded_exp(log_ratio_T, high=math.log(KL_RATIO_MAX)) - log_ratio_T - 1


def compute_loss(inputs: LossInputs, config: LossConfig) -> Tensor:
    """The sum of the loss over the tokens of a pack."""
    weight_T = compute_staleness_weight(inputs.start_logp_T, inputs.sampled_logp_T, config)
    loss_T = compute_policy_loss(inputs.logp_T, inputs.start_logp_T, inputs.advantage_T, weight_T, config)
    loss_T = loss_T - config.entropy_weight * inputs.entropy_T
    if inputs.reference_logp_T is not None:
        loss_T = loss_T + config.kl_weight * compute_kl_to_reference(inputs.logp_T, inputs.reference_logp_T)
    return (loss_T * inputs.mask_T).sum()


@torch.no_grad()  # type: ignore[untyped-decorator]
def compute_loss_stats(inputs: LossInputs, loss: Tensor, config: LossConfig) -> Tensor:
    """Sums over a pack for the metrics, in the order of LOSS_STATS."""
    mask_T, advantage_T = inputs.mask_T, inputs.advantage_T
    moved_T = inputs.start_logp_T - inputs.sampled_logp_T
    ratio_T = bounded_exp(inputs.logp_T - inputs.start_logp_T)
    clipped_T = ((advantage_T > 0) & (ratio_T > 1 + config.clip_high)) | (
        (advantage_T < 0) & ((ratio_T < 1 - config.clip_low) | (ratio_T > config.delta))
    )
    reference = inputs.reference_logp_T
    parts = [
        mask_T,
        inputs.entropy_T * mask_T,
        (bounded_exp(moved_T) - moved_T - 1) * mask_T,
        (moved_T.abs() > TAIL_LOG_RATIO) * mask_T,
        clipped_T * mask_T,
        (moved_T > math.log(config.ratio_max)) * mask_T,
        torch.zeros_like(mask_T) if reference is None else compute_kl_to_reference(inputs.logp_T, reference) * mask_T,
    ]
    sums = [part.sum(dtype=torch.float64) for part in parts]
    return torch.stack([sums[0], loss.double(), *sums[1:]])
