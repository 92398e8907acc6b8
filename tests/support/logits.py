"""Rows of logits on which samplers are compared with the reference."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.torch.draws import Draws

VOCABULARY = 151_936
"""Of Qwen 2.5 and 3."""
Case = tuple[NDArray[np.float32], float]
"""Logits, and the temperature."""


def make_draws(rows: int, temperature: float) -> Draws:
    dice = np.random.default_rng(11)
    seeds = dice.integers(0, 2**64, rows, dtype=np.uint64)
    return Draws(temperature, seeds, dice.integers(0, 2**32, rows).astype(np.int64))


def make_normal(rows: int, vocabulary: int, scale: float, temperature: float = 1.0) -> Case:
    logits = np.random.default_rng(vocabulary).normal(size=(rows, vocabulary)) * scale
    return logits.astype(np.float32), temperature


def make_peaked() -> Case:
    logits, _ = make_normal(1, VOCABULARY, 2.5)
    logits[:, 12_345] = 17.0
    return logits, 1.0


def make_extreme() -> Case:
    """Scores up to 3.4e41, beside which the noise is nothing, and many of them equal."""
    logits = np.random.default_rng(3).normal(size=(2, 9999)) * 1e38
    return logits.clip(-3.4e38, 3.4e38).astype(np.float32), 0.001


def make_equal(value: float, temperature: float) -> Case:
    return np.full((2, 5003), value, np.float32), temperature


def make_rounded() -> Case:
    """As bfloat16 logits are: several have the largest value."""
    logits, _ = make_normal(2, 6000, 1.0)
    return np.round(logits), 0.0


CASES: dict[str, Callable[[], Case]] = {
    "flat": lambda: make_normal(1, VOCABULARY, 0.1),
    "peaked": make_peaked,
    "hot": lambda: make_normal(1, VOCABULARY, 3.0, 100.0),
    "cold": lambda: make_normal(1, 33_001, 3.0, 0.001),
    "greedy": lambda: make_normal(1, VOCABULARY, 3.0, 0.0),
    "one token": lambda: make_normal(2, 1, 1.0),
    "seven tokens": lambda: make_normal(4, 7, 3.0, 0.6),
    "one more than a tile": lambda: make_normal(2, 4097, 3.0, 0.6),
    "extreme": make_extreme,
    "equal": lambda: make_equal(0.0, 1.0),
    "equal and huge": lambda: make_equal(3e38, 1.0),
    "equal and greedy": lambda: make_equal(-5.0, 0.0),
    "rounded and greedy": make_rounded,
}
