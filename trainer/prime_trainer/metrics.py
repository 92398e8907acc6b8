"""The metrics of each step: a line of JSON in steps.jsonl, gauges for Prometheus, scalars for TensorBoard."""

import json
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_runtime.metrics import Metrics

STEPS_NAME = "steps.jsonl"
EVENTS_NAME = "tensorboard"
HELD_OUT = "held_out"
GAUGES = {
    "step": "Newest checkpoint.",
    "loss": "Mean loss of a trained token.",
    "reward_mean": "Mean task reward of all rollouts of the step, including groups without a signal.",
    "groups": "Groups with a signal in the step.",
    "groups_dropped": "Groups in which all rewards were equal.",
    "samples": "Completions trained on.",
    "tokens": "Tokens trained on.",
    "length_mean": "Mean length of a completion, in tokens.",
    "length_max": "Longest completion, in tokens.",
    "lag_mean": "Mean age of the weights that generated the rollouts, in steps.",
    "lag_max": "Age of the oldest weights that generated rollouts, in steps.",
    "mismatch_kl": "KL divergence between the worker's policy and the policy at the start of the step.",
    "tail": "Share of tokens whose probability changed by more than a factor of 2 since they were sampled.",
    "truncated": "Share of tokens whose staleness correction was truncated.",
    "clipped": "Share of tokens that the ratio clip or its upper bound affected.",
    "entropy": "Mean entropy of the policy, in nats.",
    "kl": "KL divergence from the weights of step 0.",
    "gradient_norm": "Norm of the gradient before clipping.",
    "learning_rate": "Learning rate of the step.",
    "learnt_s": "Seconds of forward, backward and update.",
    "saved_s": "Seconds that training waited for memory and for copies to be saved.",
    HELD_OUT: "Mean reward on held-out problems.",
}
NUMBERS = sorted({*GAUGES, "waited_s"} - {"step", HELD_OUT})
CURVES = ("reward_mean", "entropy", "mismatch_kl", "lag_mean", "waited_s")
CURVE_STEPS = 60
COUNTERS = {
    "steps": "Steps made.",
    "steps_skipped": "Steps whose gradient was not applied.",
    "starved_s": "Seconds spent waiting for rollouts.",
    "trained_tokens": "Tokens trained on.",
}


class MetricsLog:
    """Writes the metrics of one trainer."""

    def __init__(self, folder: Path) -> None:
        # Imported here, so that commands which write no metrics start without it.
        from torch.utils.tensorboard import SummaryWriter

        self._path = folder / STEPS_NAME
        self._tensorboard: Any = SummaryWriter(folder / EVENTS_NAME)
        self.metrics = Metrics("trainer")
        self._gauges = {name: self.metrics.gauge(f"last_{name}", text) for name, text in GAUGES.items()}
        self._counters = {name: self.metrics.counter(name, text) for name, text in COUNTERS.items()}
        self.last: dict[str, Any] = {}
        self.curves: dict[str, deque[float]] = {name: deque(maxlen=CURVE_STEPS) for name in CURVES}
        """The values of the last steps, oldest first."""
        self.held_out: deque[tuple[int, float]] = deque(maxlen=CURVE_STEPS)
        """Steps that this process evaluated on held-out problems, and their mean rewards."""

    def close(self) -> None:
        self._tensorboard.close()

    def write_step(self, metrics: dict[str, Any]) -> None:
        """Called before the step is published."""
        with self._path.open("a") as file:
            file.write(json.dumps(metrics, allow_nan=False) + "\n")
        self.update_gauges(metrics)
        self._write_scalars(metrics["at_ms"], metrics["step"], select_numbers(metrics))
        self._counters["steps"].at().inc()
        self._counters["steps_skipped"].at().inc(0 if metrics["is_applied"] else 1)
        self._counters["starved_s"].at().inc(metrics["waited_s"])
        self._counters["trained_tokens"].at().inc(metrics["tokens"] if metrics["is_applied"] else 0)

    def write_held_out(self, step: int, reward: float, at_ms: int) -> None:
        self.held_out.append((step, reward))
        self._gauges[HELD_OUT].at().set(reward)
        self._write_scalars(at_ms, step, {HELD_OUT: reward})

    def _write_scalars(self, at_ms: int, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._tensorboard.add_scalar(name, value, step, walltime=at_ms / 1000)
        self._tensorboard.flush()

    def update_gauges(self, metrics: dict[str, Any]) -> None:
        self.last = metrics
        for name, curve in self.curves.items():
            curve.append(metrics[name] if metrics[name] is not None else next(reversed(curve), 0.0))
        for name, gauge in self._gauges.items():
            if isinstance(metrics.get(name), int | float):
                gauge.at().set(metrics[name])

    def repair(self, step: int, metrics: dict[str, Any]) -> None:
        """Make steps.jsonl agree with the checkpoint that training resumes from.

        A crash can leave half a line, lines of steps whose checkpoint was lost, or a checkpoint without its line.
        """
        lines = self._path.read_text().split("\n") if self._path.exists() else [""]
        valid = [line for line in lines[:-1] if line and json.loads(line)["step"] <= step]
        if valid != lines[:-1] or lines[-1]:
            self._path.write_text("".join(line + "\n" for line in valid))
        for line in valid[-CURVE_STEPS:]:
            self.update_gauges(json.loads(line))
        if metrics and metrics["step"] > self.last.get("step", 0):
            self.write_step({**metrics, "saved_s": None})


def select_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers and vary from step to step."""
    found = {name: metrics.get(name) for name in NUMBERS}
    return {
        name: float(value) for name, value in found.items() if isinstance(value, int | float) and math.isfinite(value)
    }
