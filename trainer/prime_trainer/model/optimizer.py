"""AdamW, its learning-rate schedule, and the guard against bad gradients."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch

from prime_trainer.config import OptimizerConfig

NORMS_KEPT = 64
NORMS_MIN = 8
"""Gradients needed before one can be an outlier."""


def make_optimizer(model: Any, config: OptimizerConfig) -> Any:
    """Weight decay applies to matrices, not to norms and biases."""
    parameters = list(model.parameters())
    groups = [
        {"params": [each for each in parameters if each.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
    ]
    # One pass over each tensor, and no copies of them.
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def compute_learning_rate(config: OptimizerConfig, step: int) -> float:
    """The rate of the step that makes checkpoint `step`: linear warm-up, then constant or linear decay."""
    rate = config.learning_rate
    if step < config.warmup_steps:
        return rate * step / config.warmup_steps
    if not config.decay_steps:
        return rate
    fallen = min(1.0, (step - config.warmup_steps) / config.decay_steps)
    return rate * (1 - fallen * (1 - config.decay_to))


class GradientGuard:
    """Compares the norm of each gradient with the norms before it."""

    def __init__(self, outlier: float, norms: Iterable[float] = ()) -> None:
        self._outlier = outlier
        self._norms = deque(norms, NORMS_KEPT)

    @property
    def norms(self) -> tuple[float, ...]:
        """The remembered norms, to restore after a restart."""
        return tuple(self._norms)

    def find_problem(self, norm: float) -> str:
        """Why a gradient must not be applied; empty where it may."""
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        if len(self._norms) < NORMS_MIN:
            self._norms.append(norm)
            return ""
        usual = median(self._norms)
        # An outlier is remembered as the largest accepted norm. If norms stay high, the median follows, and in time
        # the guard accepts them.
        self._norms.append(min(norm, self._outlier * usual))
        if norm > self._outlier * usual:
            return f"the gradient's norm is {norm:.3g}, {norm / max(usual, 1e-30):.0f} times the usual"
        return ""
