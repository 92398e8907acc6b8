"""Claims about draws: how far counts are from what chance gives."""

from collections.abc import Sequence
from math import sqrt

SIGMAS_MAX = 4.5
"""Draws in tests come from fixed seeds, so a claim that holds once holds always."""


def chi_square_sigmas(counts: Sequence[float], expected: Sequence[float]) -> float:
    """The chi-square statistic, in standard deviations from its mean."""
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in zip(counts, expected, strict=True))
    freedom = len(counts) - 1
    return (statistic - freedom) / sqrt(2 * freedom)


def assert_even(counts: Sequence[float]) -> None:
    """All cells are equally likely."""
    sigmas = chi_square_sigmas(counts, [sum(counts) / len(counts)] * len(counts))
    assert abs(sigmas) < SIGMAS_MAX, f"{sigmas:.1f} sigma from even"
