"""The numbers of each step, written down: a line of JSON for programs and people, gauges for Prometheus, events for
TensorBoard.
"""

import json
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_runtime.metrics import Metrics
from prime_trainer.event_file import EventFile

STEPS_NAME = "steps.jsonl"
EVENTS_NAME = "tensorboard"
HELD_OUT = "held_out"
GAUGES = {
    "step": "Checkpoint that was made last.",
    "loss": "Mean loss of a trained token.",
    "reward_mean": "Mean task reward of all rollouts of the step, those of groups without a signal included.",
    "groups": "Groups with a signal in the step.",
    "groups_dropped": "Groups in which all rewards were equal.",
    "samples": "Completions trained on.",
    "tokens": "Tokens trained on.",
    "length_mean": "Mean length of a completion, in tokens.",
    "length_max": "Longest completion, in tokens.",
    "lag_mean": "Mean age of the weights that drew the rollouts, in steps.",
    "lag_max": "Oldest of them.",
    "mismatch_kl": "Distance between the worker's policy and the one that the step started from.",
    "tail": "Share of tokens whose probability changed by more than a factor of 2 since they were drawn.",
    "truncated": "Share of tokens whose correction was cut off.",
    "clipped": "Share of tokens that the clip or its bound took hold of.",
    "entropy": "Mean entropy of the policy, in nats.",
    "kl": "Distance to the weights of step 0.",
    "gradient_norm": "Before it is scaled down.",
    "learning_rate": "Of the step.",
    "learnt_s": "Seconds of forward, backward and update.",
    "saved_s": "Seconds until the checkpoint was on disk.",
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


class Notes:
    """One trainer's."""

    def __init__(self, folder: Path, began_ms: int) -> None:
        self._path = folder / STEPS_NAME
        self._events = EventFile(folder / EVENTS_NAME, began_ms)
        self.metrics = Metrics("trainer")
        self._gauges = {name: self.metrics.gauge(f"last_{name}", text) for name, text in GAUGES.items()}
        self._counters = {name: self.metrics.counter(name, text) for name, text in COUNTERS.items()}
        self.last: dict[str, Any] = {}
        self.curves: dict[str, deque[float]] = {name: deque(maxlen=CURVE_STEPS) for name in CURVES}
        """The last steps' values, oldest first."""
        self.held_out: deque[tuple[int, float]] = deque(maxlen=CURVE_STEPS)
        """Steps that this process has tried on held-out problems, and their mean rewards."""

    def write(self, facts: dict[str, Any]) -> None:
        """After the step's checkpoint is on disk."""
        with self._path.open("a") as file:
            file.write(json.dumps(facts, allow_nan=False) + "\n")
        self.show(facts)
        self._events.write(facts["at_ms"], facts["step"], choose_numbers(facts))
        self._counters["steps"].at().inc()
        self._counters["steps_skipped"].at().inc(0 if facts["is_applied"] else 1)
        self._counters["starved_s"].at().inc(facts["waited_s"])
        self._counters["trained_tokens"].at().inc(facts["tokens"] if facts["is_applied"] else 0)

    def note_held_out(self, step: int, reward: float, at_ms: int) -> None:
        self.held_out.append((step, reward))
        self._gauges[HELD_OUT].at().set(reward)
        self._events.write(at_ms, step, {HELD_OUT: reward})

    def show(self, facts: dict[str, Any]) -> None:
        self.last = facts
        for name, curve in self.curves.items():
            curve.append(facts[name] if facts[name] is not None else next(reversed(curve), 0.0))
        for name, gauge in self._gauges.items():
            if isinstance(facts.get(name), int | float):
                gauge.at().set(facts[name])

    def mend(self, step: int, facts: dict[str, Any]) -> None:
        """At a start from a checkpoint: drop half a line and steps that are lost, write what was lost between a
        checkpoint and its line.
        """
        lines = self._path.read_text().split("\n") if self._path.exists() else [""]
        whole = [line for line in lines[:-1] if line and json.loads(line)["step"] <= step]
        if whole != lines[:-1] or lines[-1]:
            self._path.write_text("".join(line + "\n" for line in whole))
        for line in whole[-CURVE_STEPS:]:
            self.show(json.loads(line))
        if facts and facts["step"] > self.last.get("step", 0):
            self.write({**facts, "saved_s": None})


def choose_numbers(facts: Mapping[str, Any]) -> dict[str, float]:
    """Of the facts of a step, those that are numbers and change from step to step."""
    found = {name: facts.get(name) for name in NUMBERS}
    return {
        name: float(value) for name, value in found.items() if isinstance(value, int | float) and math.isfinite(value)
    }
