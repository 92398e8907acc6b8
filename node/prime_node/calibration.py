"""From the noise of honest machines to the bounds of an audit, for a stated chance of refusing an honest node. Pure.

A number is never bounded by the largest one seen: with a million honest chunks to come, a larger one will. What is seen
is fitted, and the fit is followed out to that chance:

- Counts (exponents, signs, the sum of mantissa errors) are sums of rare events whose rate differs from chunk to chunk:
  a negative binomial distribution.
- The largest margin and log-prob error of a chunk are extremes: a generalised Pareto tail over the largest tenth, never
  lighter than an exponential one. Chunks of one completion go together, so it is as sure as its completions are many.
  Where they are few the default is the limit.
- Means over a file follow Bernstein's inequality, from their variance between completions.
- What is usual in a chunk needs no fit: it is what all but one honest chunk in 300 are below.
- How noisy a completion is as a whole, and how far honest ones spread there, is in calibration_noise.py.

Each estimate is taken at its upper confidence limit, and the worst pairing of machines decides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_node.calibration_noise import fit_noise, gather
from prime_node.engine.measuring import RowNumbers
from prime_protocol.constants import FAR_FACTOR, LOGPROB_ERROR_MAX, MARGIN_MAX, TOLERANCE_NUMBER_MAX, TOPLOC_K
from prime_protocol.errors import LocalError
from prime_protocol.tolerance import Precision, Tolerance
from prime_protocol.toploc_verify import MANTISSA_ERROR_NONE

Numbers = NDArray[np.float64]

CHUNKS_MIN = 1_000
ROWS_MIN = 100
"""Fewer say nothing about rare events."""
TAIL_SHARE = 10
TAIL_MIN, TAIL_MAX = 10, 1_000
"""A tail is fitted to the largest tenth of the chunks, and to so many of them at least and at most."""
SHAPE_MAX = 0.25
"""Heaviest tail that is believed. Rounding errors have far lighter ones; a heavier fit is a broken machine."""
RESAMPLES = 200
ERROR_FLOOR = 1e-4
"""Least bound of an error of log-probs: a hundred times what float32 can tell apart near 10."""
MANTISSA_FLOOR = 0.05
"""Least bound of what is a usual mantissa error: six units in 128 values."""
USUAL_ONE_IN = 300
"""Honest chunks of which one may be unusual in one number. There are six numbers, and 2 % in all are allowed for."""
CHANCE_MATCH = MANTISSA_ERROR_NONE - 1
"""A value of another index may have the right exponent by chance, and then any mantissa."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the bounds are to keep."""

    false_rejects: float = 1e-9
    """Chance that one number of one honest chunk, completion or file is above its bound."""
    confidence: float = 0.95
    """That the chance is no larger."""
    file_tokens: int = 512
    """Fewest output tokens of a file. The fewer, the further a mean strays."""

    def __post_init__(self) -> None:
        if not 1e-12 <= self.false_rejects <= 1e-2:
            raise LocalError(f"false_rejects is {self.false_rejects}, allowed is 1e-12 to 0.01")
        if not 0.5 <= self.confidence < 1:
            raise LocalError(f"confidence is {self.confidence}, allowed is 0.5 to below 1")
        if self.file_tokens < 1:
            raise LocalError(f"file_tokens is {self.file_tokens}, it must be at least 1")

    @property
    def z(self) -> float:
        """Standard deviations up to the confidence limit."""
        return NormalDist().inv_cdf(self.confidence)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """What one pairing of machines gave: one wrote completions, the other read them."""

    pairing: str
    exponents: Numbers
    signs: Numbers
    mantissa_sums: Numbers
    mantissa_means: Numbers
    mantissa_medians: Numbers
    chunk_margins: Numbers
    chunk_margin_means: Numbers
    chunk_logprobs: Numbers
    chunk_logprob_means: Numbers
    is_whole: NDArray[np.bool_]
    owners: NDArray[np.int64]
    """Which completion it belongs to. One for each chunk, so far."""
    tokens: Numbers
    margin_maxima: Numbers
    margin_sums: Numbers
    logprob_maxima: Numbers
    logprob_sums: Numbers
    rows: tuple[RowNumbers, ...]
    """One for each completion."""


def collect(pairing: str, rows: Sequence[RowNumbers]) -> Noise:
    """LocalError where a row's proofs cannot even be read: that is not noise."""
    for row in rows:
        if row.proof_problem:
            raise LocalError(f"{pairing}: an honest row has proofs that cannot be read: {row.proof_problem}")
    chunks = [chunk for row in rows for chunk in row.chunks]
    spans = [span for row in rows for span in row.spans]
    return Noise(
        pairing=pairing,
        exponents=np.array([chunk.exponent_mismatches for chunk in chunks], float),
        signs=np.array([chunk.sign_mismatches for chunk in chunks], float),
        mantissa_sums=np.array([chunk.mantissa_error_sum for chunk in chunks], float),
        mantissa_means=np.array([chunk.mantissa_error_mean for chunk in chunks], float),
        mantissa_medians=np.array([chunk.mantissa_error_median for chunk in chunks], float),
        chunk_margins=np.array([span.margin_max for span in spans], float),
        chunk_margin_means=np.array([span.margin_sum / span.tokens for span in spans], float),
        chunk_logprobs=np.array([span.logprob_error_max for span in spans], float),
        chunk_logprob_means=np.array([span.logprob_error_sum / span.tokens for span in spans], float),
        is_whole=np.array([span.is_whole for span in spans], bool),
        owners=np.repeat(np.arange(len(rows)), [len(row.spans) for row in rows]),
        tokens=np.array([row.tokens for row in rows], float),
        margin_maxima=np.array([row.margin_max for row in rows], float),
        margin_sums=np.array([row.margin_sum for row in rows], float),
        logprob_maxima=np.array([row.logprob_error_max for row in rows], float),
        logprob_sums=np.array([row.logprob_error_sum for row in rows], float),
        rows=tuple(rows),
    )


def fit_tolerance(noises: Sequence[Noise], target: Target, *, precision: Precision, hidden: int) -> Tolerance:
    """Bounds that every pairing keeps."""
    for noise in noises:
        if len(noise.exponents) < CHUNKS_MIN or len(noise.tokens) < ROWS_MIN:
            raise LocalError(
                f"{noise.pairing} has {len(noise.exponents)} chunks in {len(noise.tokens)} completions; a fit needs "
                f"{CHUNKS_MIN} in {ROWS_MIN}: ask for more or longer completions"
            )
    # A chunk at the end of a completion may have fewer values, and is allowed in proportion.
    scale = TOPLOC_K / min(TOPLOC_K, hidden)
    mantissa_sum = max(bound_count(noise.mantissa_sums, target) for noise in noises) + CHANCE_MATCH
    mantissa_mean = min(mantissa_sum * scale / TOPLOC_K, float(CHANCE_MATCH))
    logprob = max(ERROR_FLOOR, *(bound_extreme(noise.chunk_logprobs, noise.owners, target) for noise in noises))
    logprob = hold_in(logprob, max(noise.chunk_logprobs.max() for noise in noises), known=LOGPROB_ERROR_MAX)
    # A token only loses if the errors of its own and the winner's log-prob add up to the gap between them.
    margin = max(2 * logprob, *(bound_extreme(noise.chunk_margins, noise.owners, target) for noise in noises))
    margin = hold_in(margin, max(noise.chunk_margins.max() for noise in noises), known=MARGIN_MAX)
    usual = fit_usual(noises, target)
    return Tolerance(
        precision=precision,
        exponent_mismatches_max=scale_count(max(bound_count(noise.exponents, target) for noise in noises), scale),
        sign_mismatches_max=scale_count(max(bound_count(noise.signs, target) for noise in noises), scale),
        mantissa_error_mean_max=round_up(mantissa_mean),
        # At least half of the errors are as large as the median, so it is at most twice their mean.
        mantissa_error_median_max=min(math.floor(2 * mantissa_mean), CHANCE_MATCH),
        margin_max=round_up(margin),
        margin_mean_max=round_up(max(bound_mean(noise.tokens, noise.margin_sums, margin, target) for noise in noises)),
        logprob_error_max=round_up(logprob),
        logprob_error_mean_max=round_up(
            max(bound_mean(noise.tokens, noise.logprob_sums, logprob, target) for noise in noises)
        ),
        **usual,
        **fit_noise([gather(noise.rows, Tolerance(**usual)) for noise in noises], z=target.z),
    )


def fit_usual(noises: Sequence[Noise], target: Target) -> dict[str, Any]:
    """What all but a few honest chunks are below, in every pairing. Short chunks stray, so whole ones are looked at."""

    def find(name: str, floor: float) -> float:
        return max(floor, *(bound_usual(getattr(noise, name)[noise.is_whole], target) for noise in noises))

    return {
        "exponent_mismatches_usual": min(math.ceil(find("exponents", 0)), TOPLOC_K - 1),
        "mantissa_error_mean_usual": round_up(find("mantissa_means", MANTISSA_FLOOR)),
        "margin_usual": round_up(find("chunk_margins", ERROR_FLOOR)),
        "margin_mean_usual": round_up(find("chunk_margin_means", ERROR_FLOOR / 10)),
        "logprob_error_usual": round_up(find("chunk_logprobs", ERROR_FLOOR)),
        "logprob_error_mean_usual": round_up(find("chunk_logprob_means", ERROR_FLOOR / 10)),
    }


def scale_count(count: int, scale: float) -> int:
    return min(math.ceil(count * scale), TOPLOC_K - 1)


def round_up(value: float) -> float:
    """To two digits, as more say nothing."""
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{min(math.ceil(value / unit - 1e-9) * unit, TOLERANCE_NUMBER_MAX):.3g}")


# --- Counts ---------------------------------------------------------------------------------------------------------


def bound_count(counts: Numbers, target: Target) -> int:
    """The count that a chunk exceeds with the chance that is wanted."""
    n, total = len(counts), float(counts.sum())
    dispersion = max(1.0, float(counts.var()) / max(counts.mean(), 1 / n)) * (1 + target.z * math.sqrt(2 / n))
    # One more than was seen, so that nothing seen does not stand for nothing possible.
    mean = (total + 1 + target.z * math.sqrt((total + 1) * dispersion)) / n
    return exceed_count(mean, mean * dispersion, target.false_rejects)


def exceed_count(mean: float, variance: float, chance: float) -> int:
    """Smallest count with at most that chance of a larger one: negative binomial, Poisson where nothing varies."""
    top = math.ceil(mean + 200 * math.sqrt(variance) + 200)
    counts = np.arange(top + 1, dtype=float)
    factorials = np.cumsum(np.log(np.maximum(counts, 1)))
    if variance > mean * (1 + 1e-9):
        size = mean * mean / (variance - mean)
        rises = np.concatenate([[0.0], np.cumsum(np.log(size + counts[:-1]))])
        logs = rises - factorials + size * math.log(size / (size + mean)) + counts * math.log(mean / (size + mean))
    else:
        logs = counts * math.log(mean) - mean - factorials
    # Beyond `top` is nothing that counts. Summed from the small end, so that nothing is lost.
    above = np.cumsum(np.exp(logs)[::-1])[::-1]
    return int(np.argmax(np.append(above[1:], 0.0) <= chance))


# --- What is usual --------------------------------------------------------------------------------------------------


def bound_usual(values: Numbers, target: Target) -> float:
    """The value that at most one chunk in USUAL_ONE_IN exceeds, at its upper confidence limit.

    How many of n chunks are above the value that one in USUAL_ONE_IN exceeds is binomial, so the order statistic is
    taken that lies above it for sure enough; where there are too few chunks, the largest one.
    """
    if not len(values):
        return 0.0
    n, chance = len(values), 1 / USUAL_ONE_IN
    above = math.floor(n * chance - target.z * math.sqrt(n * chance * (1 - chance)))
    return float(np.sort(values)[-1 - max(0, above)])


# --- Extremes -------------------------------------------------------------------------------------------------------


def bound_extreme(maxima: Numbers, owners: NDArray[np.int64], target: Target) -> float:
    """The value that a chunk's largest exceeds with the chance that is wanted; the largest seen if most are 0.

    `owners` names the completion of each chunk.
    """
    k = min(len(maxima) // TAIL_SHARE, TAIL_MAX, int((maxima > 0).sum()))
    if k < TAIL_MIN:
        return float(maxima.max())
    places = np.argsort(maxima)
    start = float(maxima[places[-k - 1]])
    excess, independent = maxima[places[-k:]] - start, len(np.unique(owners[places[-k:]]))
    depth = k / len(maxima) / target.false_rejects
    shape, scale = fit_tail(excess)
    # How far the fit itself can be off is seen by fitting what it would have given.
    dice = np.random.default_rng(len(maxima))
    reaches = [reach(*fit_tail(draw_tail(shape, scale, dice.random(independent))), depth) for _ in range(RESAMPLES)]
    return start + max(reach(shape, scale, depth), float(np.quantile(reaches, target.confidence)))


def hold_in(limit: float, seen: float, *, known: float) -> float:
    """No wider than the default, unless what was seen comes near it.

    Few values cannot rule out a heavy tail, and one in 1e9 of that is anything: limits of 15 came of errors below 0.4.
    The default is known to hold for honest machines, and a chunk that is beyond a limit convicts nobody by itself.
    """
    return min(limit, max(known, FAR_FACTOR * seen))


def fit_tail(excess: Numbers) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution, by probability-weighted moments."""
    ordered = np.sort(excess)
    k = len(ordered)
    weights = 1 - (np.arange(1, k + 1) - 0.35) / k
    mean, weighted = float(ordered.mean()), float((weights * ordered).mean())
    shape = 2 - mean / (mean - 2 * weighted) if mean > 2 * weighted else SHAPE_MAX
    if shape <= 0:
        return 0.0, mean
    shape = min(shape, SHAPE_MAX)
    return shape, mean * (1 - shape)


def draw_tail(shape: float, scale: float, uniform: Numbers) -> Numbers:
    drawn: Numbers = -scale * np.log(uniform) if shape == 0 else scale / shape * (uniform**-shape - 1)
    return drawn


def reach(shape: float, scale: float, depth: float) -> float:
    """How far above its start a tail reaches with a chance of one in `depth`."""
    return scale * math.log(depth) if shape == 0 else scale / shape * (depth**shape - 1)


# --- Means ----------------------------------------------------------------------------------------------------------


def bound_mean(tokens: Numbers, sums: Numbers, largest: float, target: Target) -> float:
    """The mean over a file's tokens that is exceeded with the chance that is wanted.

    The tokens of a completion are noisy together, so the variance of a token is taken from that of whole completions.
    """
    mean = float(sums.sum() / tokens.sum())
    variance = float(((sums - mean * tokens) ** 2).mean() / tokens.mean())
    sure = mean + target.z * math.sqrt(variance / tokens.sum())
    strength = -math.log(target.false_rejects) / target.file_tokens
    return min(sure + math.sqrt(2 * variance * strength) + 2 / 3 * largest * strength, largest)
