"""AdamW, its learning-rate schedule, and the guard against bad gradients."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch

from prime_trainer.config import MomentStorage, OptimizerConfig

Tensor = Any

NORMS_KEPT = 64
NORMS_MIN = 8
"""Gradients needed before one can be an outlier."""


FIRST_MOMENT = "exp_avg"
MOMENTS = (FIRST_MOMENT, "exp_avg_sq")


def make_optimizer(model: Any, config: OptimizerConfig) -> Any:
    """Weight decay applies to matrices, not to norms and biases."""
    parameters = list(model.parameters())
    groups = [
        {"params": [each for each in parameters if each.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {"lr": config.learning_rate, "betas": (config.beta1, config.beta2)}
    if config.moments is MomentStorage.FLOAT32:
        # One pass over each tensor, and no copies of them.
        return torch.optim.AdamW(groups, fused=True, **options)
    return StoredMomentsAdamW(groups, config.moments, **options)


class StoredMomentsAdamW(torch.optim.Optimizer):  # type: ignore[misc]
    """The same updates in float32, with the moments kept differently in between.

    In the memory of the host, or the first ones in bfloat16. The second ones are always in float32: an update changes
    them by 1 - beta2, which may be less than bfloat16 can tell apart.

    Only the moments of one tensor at a time are in float32 on the device.
    """

    def __init__(self, groups: Any, storage: MomentStorage, *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8})
        self._storage = storage

    def store(self, name: str, moment: Tensor) -> Tensor:
        """A moment as it is kept: `moment` itself is free afterwards."""
        if self._storage is MomentStorage.BFLOAT16:
            return moment.to(torch.bfloat16) if name == FIRST_MOMENT else moment
        if not hasattr(moment, "device_mesh"):
            return moment.to("cpu")
        # A tensor that is sharded over GPUs, with its part on the host, as torch's own staging of checkpoints makes it.
        moment._local_tensor = moment._local_tensor.to("cpu")
        return moment

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(make_moments(parameter, self, 0))
        weights, gradient = _get_part(parameter), _get_part(parameter.grad)
        kept = [_get_part(state[name]) for name in MOMENTS]
        # Copies even of float32 on this device, so that every kind of storage takes the same path.
        moments = [each.to(weights.device, torch.float32, copy=True) for each in kept]
        state["step"] += 1
        torch._fused_adamw_(
            [weights],
            [gradient],
            [moments[0]],
            [moments[1]],
            [],
            [state["step"]],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        for target, moment in zip(kept, moments, strict=True):
            target.copy_(moment)


def _get_part(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return tensor._local_tensor if hasattr(tensor, "device_mesh") else tensor


def make_moments(parameter: Any, optimizer: Any, updates: int) -> dict[str, Any]:
    """A parameter's state after `updates` updates, its moments to be loaded."""
    moments = {name: torch.zeros_like(parameter) for name in MOMENTS}
    if isinstance(optimizer, StoredMomentsAdamW):
        moments = {name: optimizer.store(name, each) for name, each in moments.items()}
    return {"step": torch.tensor(float(updates), device=_get_part(parameter).device), **moments}


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
