"""The result of a calibration: tables of the noise for people, and a [tolerance] section for a run's terms. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from prime_node.calibration.fit import CalibrationTarget, measure_spread
from prime_node.calibration.noise import FloatArray, PairNoise, collect_completion_noise
from prime_protocol.proofs.class_bounds import BOUNDED_NUMBERS, ClassBounds, format_class_bounds
from prime_protocol.proofs.tolerance import Tolerance
from prime_runtime.settings.flags import render_config

CALIBRATION_CHARS_MAX = 200
"""As a run's terms allow."""
COLUMNS = (
    "wrote → read",
    "chunks",
    "exponents max",
    "99.9 %",
    "mantissa mean max",
    "99.9 %",
    "median max",
    "margin max",
    "99.9 %",
    "log-prob error max",
    "99.9 %",
)


@dataclass(frozen=True, kw_only=True)
class CalibratedTerms:
    """The part of a run's terms that is calibrated."""

    calibration: str
    """On what the tolerance was measured."""
    calibrated_at_ms: int
    """When, in Unix milliseconds."""
    class_bounds: tuple[str, ...]
    """Bounds of each pair of engine classes, generating and judging, where they differ from the tolerance."""
    tolerance: Tolerance


def list_noise(noises: Sequence[PairNoise]) -> list[list[str]]:
    """A row per pair, under COLUMNS: the largest of each number, and its 99.9 % quantile."""
    return [
        [
            noise.pair,
            str(len(noise.exponents)),
            *format_max_and_tail(noise.exponents, "{:.0f}"),
            *format_max_and_tail(noise.mantissa_means, "{:.2f}"),
            f"{noise.mantissa_medians.max():.0f}",
            *format_max_and_tail(noise.margin_maxima, "{:.2g}"),
            *format_max_and_tail(noise.logprob_maxima, "{:.2g}"),
        ]
        for noise in noises
    ]


def format_max_and_tail(values: FloatArray, form: str) -> tuple[str, str]:
    return form.format(values.max()), form.format(np.quantile(values, 0.999))


def list_bounds(tolerance: Tolerance, noises: Sequence[PairNoise]) -> list[list[str]]:
    """Each limit, and the largest measured value of what it limits."""
    seen = {
        "exponent_mismatches_max": max(noise.exponents.max() for noise in noises),
        "sign_mismatches_max": max(noise.signs.max() for noise in noises),
        "mantissa_error_mean_max": max(noise.mantissa_means.max() for noise in noises),
        "mantissa_error_median_max": max(noise.mantissa_medians.max() for noise in noises),
        "margin_max": max(noise.margin_maxima.max() for noise in noises),
        "margin_mean_max": max(noise.margin_sums.sum() / noise.tokens.sum() for noise in noises),
        "logprob_error_max": max(noise.logprob_maxima.max() for noise in noises),
        "logprob_error_mean_max": max(noise.logprob_sums.sum() / noise.tokens.sum() for noise in noises),
        "exponent_mismatches_usual": max(noise.exponents.max() for noise in noises),
        "mantissa_error_mean_usual": max(noise.mantissa_means.max() for noise in noises),
        "margin_usual": max(noise.chunk_margins.max() for noise in noises),
        "margin_mean_usual": max(noise.chunk_margin_means.max() for noise in noises),
        "logprob_error_usual": max(noise.chunk_logprobs.max() for noise in noises),
        "logprob_error_mean_usual": max(noise.chunk_logprob_means.max() for noise in noises),
    }
    seen["margin_rate"] = max(noise.losers.sum() / noise.tokens.sum() for noise in noises)
    seen["margin_scale"] = max(noise.margin_sums.sum() / max(1.0, noise.losers.sum()) for noise in noises)
    seen |= list_completion_bounds(tolerance, noises)
    return [[name, f"{value:.3g}", f"{getattr(tolerance, name):g}"] for name, value in seen.items()]


def list_completion_bounds(tolerance: Tolerance, noises: Sequence[PairNoise]) -> dict[str, float]:
    """The measured noise of whole completions; empty where no reader measured in two precisions."""
    known = [each for each in (collect_completion_noise(noise, tolerance) for noise in noises) if len(each.noise)]
    if not known:
        return {}
    spread, spread_chunk = measure_spread(known)
    return {
        "noise_typical": max(float(each.noise.mean()) for each in known),
        "noise_spread": spread,
        "noise_spread_chunk": spread_chunk,
    }


def list_pair_bounds(default: Tolerance, table: ClassBounds) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: the default of each number, and what each pair has of it. Classes are numbered from 1."""
    pairs = [f"{pair.generating + 1} → {pair.judging + 1}" for pair in table.pairs]
    rows = [
        [name, f"{getattr(default, name):g}", *(f"{pair.numbers[place]:g}" for pair in table.pairs)]
        for place, name in enumerate(BOUNDED_NUMBERS)
    ]
    return ["bound", "default", *pairs], rows


def render_toml(
    default: Tolerance,
    table: ClassBounds,
    target: CalibrationTarget,
    pairs: Sequence[tuple[str, int]],
    *,
    model: str,
    at_ms: int,
) -> str:
    """For `prime-coordinator run create --terms`. `pairs` are names and numbers of chunks."""
    chunks = sum(count for _, count in pairs)
    listed = "".join(f"#   {name}: {count} chunks\n" for name, count in pairs)
    head = (
        f"# Measured by prime-node calibrate on {model}:\n{listed}"
        f"# Chance that one honest chunk, completion or file is above one bound: {target.false_rejects:g}, with a\n"
        f"# confidence of {target.confidence:g}. Means hold for files of {target.file_tokens} tokens or more.\n\n"
    )
    names = ["class_bounds", *(f"tolerance.{field.name}" for field in fields(Tolerance))]
    name = f"{model}, {default.precision}, {chunks} chunks, {len(pairs)} pairings"[:CALIBRATION_CHARS_MAX]
    terms = CalibratedTerms(
        calibration=name,
        calibrated_at_ms=at_ms,
        class_bounds=tuple(format_class_bounds(table, default)),
        tolerance=default,
    )
    return head + render_config(terms, always=names).lstrip("\n")
