"""AdamW, its schedule, and the guard that keeps a bad gradient from the weights."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch

from prime_trainer.config import OptimizerConfig

NORMS_KEPT = 64
NORMS_MIN = 8
"""Gradients seen before one can stand out."""


def make_optimizer(model: Any, config: OptimizerConfig) -> Any:
    """Matrices decay, norms and biases do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [each for each in parameters if each.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2))


def compute_learning_rate(config: OptimizerConfig, step: int) -> float:
    """Of the step that makes checkpoint `step`: up in a line, and down in another if it is to fall at all."""
    rate = config.learning_rate
    if step < config.warmup_steps:
        return rate * step / config.warmup_steps
    if not config.decay_steps:
        return rate
    fallen = min(1.0, (step - config.warmup_steps) / config.decay_steps)
    return rate * (1 - fallen * (1 - config.decay_to))


class GradientGuard:
    """Compares each gradient's norm with those before it."""

    def __init__(self, outlier: float, norms: Iterable[float] = ()) -> None:
        self._outlier = outlier
        self._norms = deque(norms, NORMS_KEPT)

    @property
    def norms(self) -> tuple[float, ...]:
        """To begin with after a restart."""
        return tuple(self._norms)

    def find_problem(self, norm: float) -> str:
        """Why a gradient must not be applied; nothing where it may."""
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        if len(self._norms) < NORMS_MIN:
            self._norms.append(norm)
            return ""
        usual = median(self._norms)
        # What stands out counts as the longest that would not have: if gradients stay long, they are believed in time.
        self._norms.append(min(norm, self._outlier * usual))
        if norm > self._outlier * usual:
            return f"the gradient's norm is {norm:.3g}, {norm / max(usual, 1e-30):.0f} times the usual"
        return ""
