"""How sure a counted share is, and what it says of more than one try. Pure."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

Points = Sequence[tuple[float, float]]
STEPS = 60
"""Halvings of an interval: far below what a float can tell."""


def log_binomial(n: int, k: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return 0.0 if k == n * chance else -math.inf
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choose + k * math.log(chance) + (n - k) * math.log1p(-chance)


def at_least(n: int, k: int, chance: float) -> float:
    """Chance of k or more of n."""
    return math.fsum(math.exp(log_binomial(n, number, chance)) for number in range(k, n + 1))


def confidence_interval(n: int, k: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's, which is never too narrow."""
    if n == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else bisect(lambda chance: at_least(n, k, chance) < tail)
    high = 1.0 if k == n else bisect(lambda chance: at_least(n, k + 1, chance) < 1 - tail)
    return low, high


def bisect(is_below: Callable[[float], bool]) -> float:
    """Where a condition that holds near 0 ceases to hold."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


def roc(honest: Sequence[float], dishonest: Sequence[float]) -> list[tuple[float, float]]:
    """False and true alarms at every threshold, from none to all."""
    high, low = sorted(honest, reverse=True), sorted(dishonest, reverse=True)
    points, wrong, right = [(0.0, 0.0)], 0, 0
    for threshold in sorted({*honest, *dishonest}, reverse=True):
        while wrong < len(high) and high[wrong] >= threshold:
            wrong += 1
        while right < len(low) and low[right] >= threshold:
            right += 1
        points.append((wrong / len(high), right / len(low)))
    return points


def area(points: Points) -> float:
    """Under the curve: 1 tells all apart, 0.5 nothing."""
    return sum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in pairwise(points))
