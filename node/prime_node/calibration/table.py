"""One table of bounds from the pairs of engine classes that were measured, and a default that covers them all. Pure.

Each pair is fitted by itself (fit.py). Every number of the default is the largest of any pair, so no pair is wider than
it, as the terms of a run demand. Pairs are taken one at a time: their measurements need not fit the memory together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prime_node.calibration.fit import (
    WIDEN_FACTOR,
    CalibrationTarget,
    bound_evidence_factor,
    bound_margin_factor,
    fit_tolerance,
    round_up,
)
from prime_node.calibration.noise import CompletionNoise, PairNoise, collect_completion_noise
from prime_protocol.constants import MARGIN_RATE_MAX
from prime_protocol.proofs.class_bounds import BOUNDED_NUMBERS, ClassBounds, EngineClass, PairBounds
from prime_protocol.proofs.tolerance import Precision, Tolerance

NOISE_NUMBERS = ("noise_typical", "noise_spread", "noise_spread_chunk")
"""Known of pairs only whose reader measured in two precisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPair:
    """The bounds of one pair."""

    generating: EngineClass
    judging: EngineClass
    tolerance: Tolerance
    has_noise: bool
    """Whether the reader measured in two precisions; else NOISE_NUMBERS are not measured."""
    chunks: int


def fit_pair(
    generating: EngineClass,
    judging: EngineClass,
    noise: PairNoise,
    target: CalibrationTarget,
    *,
    precision: Precision,
    hidden: int,
) -> FittedPair:
    """LocalError: too little was measured."""
    tolerance = fit_tolerance([noise], target, precision=precision, hidden=hidden)
    return FittedPair(
        generating=generating,
        judging=judging,
        tolerance=tolerance,
        has_noise=noise.has_two_readings,
        chunks=len(noise.exponents),
    )


def combine_pairs(pairs: Sequence[FittedPair]) -> Tolerance:
    """The default: of every number the largest of any pair."""
    numbers: dict[str, Any] = {}
    for name in BOUNDED_NUMBERS:
        known = [pair for pair in pairs if pair.has_noise or name not in NOISE_NUMBERS]
        if known:
            numbers[name] = max(getattr(pair.tolerance, name) for pair in known)
    return Tolerance(precision=pairs[0].tolerance.precision, **numbers)


def widen_default(default: Tolerance, noises: Iterable[PairNoise], target: CalibrationTarget) -> Tolerance:
    """Wide enough that no bet on noise or margins gains on honest completions of any pair, each taken by itself.

    The largest numbers of several fits nearly always do; where not, those that are bets are widened in small steps.
    """
    for noise in noises:
        completions = collect_completion_noise(noise, default)
        while len(completions.noise) and is_gaining(completions, default, target):
            default = replace(
                default,
                noise_spread=round_up(default.noise_spread * WIDEN_FACTOR, digits=3),
                noise_spread_chunk=round_up(default.noise_spread_chunk * WIDEN_FACTOR, digits=3),
            )
        while bound_margin_factor(noise, default, target.z) > 1:
            rate = min(round_up(default.margin_rate * WIDEN_FACTOR, digits=3), MARGIN_RATE_MAX)
            default = replace(
                default, margin_rate=rate, margin_scale=round_up(default.margin_scale * WIDEN_FACTOR, digits=3)
            )
    return default


def is_gaining(completions: CompletionNoise, default: Tolerance, target: CalibrationTarget) -> bool:
    spreads = default.noise_spread, default.noise_spread_chunk
    return bound_evidence_factor(completions, default.noise_typical, *spreads, target.z) > 1


def build_table(default: Tolerance, pairs: Sequence[FittedPair]) -> ClassBounds:
    """A pair whose noise was not measured has the default's."""
    classes = tuple(sorted({name for pair in pairs for name in (pair.generating, pair.judging)}))
    unknown = {name: getattr(default, name) for name in NOISE_NUMBERS}
    rows = [
        PairBounds.of(
            classes.index(pair.generating),
            classes.index(pair.judging),
            pair.tolerance if pair.has_noise else replace(pair.tolerance, **unknown),
        )
        for pair in pairs
    ]
    table = ClassBounds(classes=classes, pairs=tuple(sorted(rows, key=lambda row: (row.generating, row.judging))))
    table.check(default)
    return table
