"""Derives the tolerance of a run from the noise between honest machines, for a stated chance of a false reject. Pure.

No number is bounded by the largest one measured: among a million honest chunks to come, one will be larger. The
measured values are fitted, and the fit is extrapolated to the stated chance:

- Counts (exponents, signs, the sum of mantissa errors) are sums of rare events whose rate differs from chunk to chunk:
  a negative binomial distribution.
- The largest margin and log-prob error of a chunk are extremes: a generalised Pareto tail over the largest tenth, never
  lighter than an exponential one. Chunks of one completion are correlated, so the confidence depends on the number of
  completions. Where they are few, the default is the limit.
- Means over a file follow Bernstein's inequality, from their variance between completions.
- What is usual in a chunk needs no fit: all but one honest chunk in 300 are below it.
- The noise of a whole completion, measured in units of the reader's own noise, has one part that averages out over its
  chunks and one that does not. Its spread is widened until, for every pair of machines, a completion multiplies the
  evidence against its author by at most 1 on average. That makes the evidence a fair bet against an honest author; few
  completions, or outliers beyond a normal distribution, widen it more.

- The margins of a completion: how many tokens lose, and the mean of an exponential distribution of by how much. Both
  are widened in the same way, until no bet on margins gains on average.

Each estimate is taken at its upper confidence limit, and the worst pair of machines decides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_node.calibration.noise import CompletionNoise, FloatArray, PairNoise, collect_completion_noise
from prime_protocol.constants import (
    EVIDENCE_NOISE_MAX,
    FAR_BEYOND_FACTOR,
    LOGPROB_ERROR_MAX,
    MARGIN_MAX,
    MARGIN_RATE_MAX,
    NOISE_SHIFT,
    TOLERANCE_NUMBER_MAX,
    TOPLOC_K,
)
from prime_protocol.errors import LocalError
from prime_protocol.proofs.margin_noise import compute_bets, compute_edit_weight
from prime_protocol.proofs.tolerance import MANTISSA_ERROR_NONE, Precision, Tolerance

CHUNKS_MIN = 1_000
ROWS_MIN = 100
"""Fewer say nothing about rare events."""
TAIL_SHARE = 10
TAIL_MIN, TAIL_MAX = 10, 1_000
"""A tail is fitted to the largest tenth of the chunks, within these numbers."""
SHAPE_MAX = 0.25
"""Heaviest plausible tail. Rounding errors have far lighter ones; a heavier fit means a broken machine."""
RESAMPLES = 200
ERROR_FLOOR = 1e-4
"""Smallest limit of a log-prob error: a hundred times the resolution of float32 near 10."""
MANTISSA_FLOOR = 0.05
"""Smallest limit of a usual mantissa error: six units in 128 values."""
USUAL_ONE_IN = 300
"""One honest chunk in this many may be unusual in one number. There are six numbers, and 2 % in all are allowed."""
CHANCE_MATCH = MANTISSA_ERROR_NONE - 1
"""A value of another index may have the right exponent by chance, and then any mantissa."""
WIDEN_FACTOR = 1.02
SPREAD_FLOOR = 0.01
"""Smallest spread. With a narrower one, a hundredth of the noise would count as a standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTarget:
    """What the limits have to guarantee."""

    false_rejects: float = 1e-9
    """Chance that one number of one honest chunk, completion or file is above its limit."""
    confidence: float = 0.95
    """Confidence that the chance is no larger."""
    file_tokens: int = 512
    """Fewest output tokens of a file. The fewer there are, the more a mean varies."""

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


def fit_tolerance(
    noises: Sequence[PairNoise], target: CalibrationTarget, *, precision: Precision, hidden: int
) -> Tolerance:
    """Limits that every pair keeps."""
    for noise in noises:
        if len(noise.exponents) < CHUNKS_MIN or len(noise.tokens) < ROWS_MIN:
            raise LocalError(
                f"{noise.pair} has {len(noise.exponents)} chunks in {len(noise.tokens)} completions; a fit needs "
                f"{CHUNKS_MIN} in {ROWS_MIN}: ask for more or longer completions"
            )
    # A chunk at the end of a completion may have fewer values, and is allowed in proportion.
    scale = TOPLOC_K / min(TOPLOC_K, hidden)
    mantissa_sum = max(bound_count(noise.mantissa_sums, target) for noise in noises) + CHANCE_MATCH
    mantissa_mean = min(mantissa_sum * scale / TOPLOC_K, float(CHANCE_MATCH))
    logprob = max(ERROR_FLOOR, *(bound_extreme(noise.chunk_logprobs, noise.owners, target) for noise in noises))
    logprob = clamp_limit(logprob, max(noise.chunk_logprobs.max() for noise in noises), known=LOGPROB_ERROR_MAX)
    # A token only loses if the errors of its own and the winner's log-prob add up to the gap between them.
    margin = max(2 * logprob, *(bound_extreme(noise.chunk_margins, noise.owners, target) for noise in noises))
    margin = clamp_limit(margin, max(noise.chunk_margins.max() for noise in noises), known=MARGIN_MAX)
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
        **fit_margins(noises, target),
        **fit_noise([collect_completion_noise(noise, Tolerance(**usual)) for noise in noises], z=target.z),
    )


def fit_usual(noises: Sequence[PairNoise], target: CalibrationTarget) -> dict[str, Any]:
    """Values above all but a few honest chunks, in every pair. Means and proofs are judged in whole chunks only, since
    short ones vary more; the largest margin and log-prob error in all, and answers may be too short for whole ones.
    """

    def find(name: str, floor: float) -> float:
        return max(floor, *(bound_usual(getattr(noise, name)[noise.is_whole], target) for noise in noises))

    def find_largest(name: str) -> float:
        return max(find(name, ERROR_FLOOR), *(bound_usual(getattr(noise, name), target) for noise in noises))

    return {
        "exponent_mismatches_usual": min(math.ceil(find("exponents", 0)), TOPLOC_K - 1),
        "mantissa_error_mean_usual": round_up(find("mantissa_means", MANTISSA_FLOOR)),
        "margin_usual": round_up(find_largest("chunk_margins")),
        "margin_mean_usual": round_up(find("chunk_margin_means", ERROR_FLOOR / 10)),
        "logprob_error_usual": round_up(find_largest("chunk_logprobs")),
        "logprob_error_mean_usual": round_up(find("chunk_logprob_means", ERROR_FLOOR / 10)),
    }


def scale_count(count: int, scale: float) -> int:
    return min(math.ceil(count * scale), TOPLOC_K - 1)


def round_up(value: float, digits: int = 2) -> float:
    """More digits would claim a precision that the fit does not have."""
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{min(math.ceil(value / unit - 1e-9) * unit, TOLERANCE_NUMBER_MAX):.{digits + 1}g}")


# --- Counts ---------------------------------------------------------------------------------------------------------


def bound_count(counts: FloatArray, target: CalibrationTarget) -> int:
    """The count that a chunk exceeds with the target's chance."""
    n, total = len(counts), float(counts.sum())
    dispersion = max(1.0, float(counts.var()) / max(counts.mean(), 1 / n)) * (1 + target.z * math.sqrt(2 / n))
    # One more than was seen, so that nothing seen does not stand for nothing possible.
    mean = (total + 1 + target.z * math.sqrt((total + 1) * dispersion)) / n
    return count_quantile(mean, mean * dispersion, target.false_rejects)


def count_quantile(mean: float, variance: float, chance: float) -> int:
    """Smallest count with at most that chance of a larger one: negative binomial, or Poisson without overdispersion."""
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


def bound_usual(values: FloatArray, target: CalibrationTarget) -> float:
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


def bound_extreme(maxima: FloatArray, owners: NDArray[np.int64], target: CalibrationTarget) -> float:
    """The value that a chunk's largest exceeds with the target's chance; the largest measured one if most are 0.

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
    # Parametric bootstrap: refitting samples of the fitted tail shows how far the fit itself can be off.
    rng = np.random.default_rng(len(maxima))
    reaches = [
        tail_quantile(*fit_tail(sample_tail(shape, scale, rng.random(independent))), depth) for _ in range(RESAMPLES)
    ]
    return start + max(tail_quantile(shape, scale, depth), float(np.quantile(reaches, target.confidence)))


def clamp_limit(limit: float, seen: float, *, known: float) -> float:
    """No wider than the default, unless measured values come near it.

    Few values cannot rule out a heavy tail, whose 1e-9 quantile is arbitrary: errors below 0.4 led to limits of 15. The
    default is known to hold for honest machines, and one chunk beyond a limit does not lead to a slash by itself.
    """
    return min(limit, max(known, FAR_BEYOND_FACTOR * seen))


def fit_tail(excess: FloatArray) -> tuple[float, float]:
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


def sample_tail(shape: float, scale: float, uniform: FloatArray) -> FloatArray:
    drawn: FloatArray = -scale * np.log(uniform) if shape == 0 else scale / shape * (uniform**-shape - 1)
    return drawn


def tail_quantile(shape: float, scale: float, depth: float) -> float:
    """How far above its start a tail reaches, with a chance of one in `depth`."""
    return scale * math.log(depth) if shape == 0 else scale / shape * (depth**shape - 1)


# --- Means ----------------------------------------------------------------------------------------------------------


def bound_mean(tokens: FloatArray, sums: FloatArray, largest: float, target: CalibrationTarget) -> float:
    """The mean over a file's tokens that is exceeded with the target's chance.

    The tokens of a completion are noisy together, so the variance of a token is taken from that of whole completions.
    """
    mean = float(sums.sum() / tokens.sum())
    variance = float(((sums - mean * tokens) ** 2).mean() / tokens.mean())
    sure = mean + target.z * math.sqrt(variance / tokens.sum())
    strength = -math.log(target.false_rejects) / target.file_tokens
    return min(sure + math.sqrt(2 * variance * strength) + 2 / 3 * largest * strength, largest)


# --- Margins of whole completions ------------------------------------------------------------------------------------


def fit_margins(noises: Sequence[PairNoise], target: CalibrationTarget) -> dict[str, Any]:
    """How many tokens lose and by how much, at bounds at which no bet gains on honest completions of any pair.

    A token loses where the errors of two scores exceed the gap between them, so where few tokens lost, the errors of
    log-probs say by how much they may. The tail needs no fit: rounding errors have lighter ones than exponential, and
    a completion weighs no more than can be verified here.
    """
    rate = min(max(bound_rate(noise.tokens, noise.losers, target.z) for noise in noises), MARGIN_RATE_MAX)
    scale = max(ERROR_FLOOR / 10, *(bound_loss(noise, target.z) for noise in noises))
    found = Tolerance(margin_rate=round_up(rate), margin_scale=round_up(scale))
    while any(bound_margin_factor(noise, found, target.z) > 1 for noise in noises):
        rate, scale = min(rate * WIDEN_FACTOR, MARGIN_RATE_MAX), scale * WIDEN_FACTOR
        found = Tolerance(margin_rate=round_up(rate), margin_scale=round_up(scale))
    return {"margin_rate": found.margin_rate, "margin_scale": found.margin_scale}


def bound_rate(tokens: FloatArray, losers: FloatArray, z: float) -> float:
    """Share of tokens that lose, with one more than were seen. Those of a completion go together."""
    mean = (losers.sum() + 1) / tokens.sum()
    spread = math.sqrt(float(((losers - mean * tokens) ** 2).sum())) / tokens.sum()
    return float(mean + z * max(spread, math.sqrt(mean / tokens.sum())))


def bound_loss(noise: PairNoise, z: float) -> float:
    """Mean margin of the tokens that lose, or twice the mean error of a log-prob where that is more."""
    losers = max(1.0, float(noise.losers.sum()))
    mean = float(noise.margin_sums.sum()) / losers * (1 + z / math.sqrt(losers))
    return max(mean, 2 * float(noise.logprob_sums.sum() / noise.tokens.sum()))


def bound_margin_factor(noise: PairNoise, tolerance: Tolerance, z: float) -> float:
    """The factor by which a completion multiplies the evidence on average, at its upper confidence limit, in the bet
    that gains most.
    """
    columns = zip(noise.tokens, noise.losers, noise.margin_sums, strict=True)
    bets = [compute_bets(int(tokens), int(losers), total, tolerance) for tokens, losers, total in columns]
    tests = [*zip(*bets, strict=True), [compute_edit_weight(each) / 10 for each in bets]]
    return max(bound_sample_mean(10 ** np.array(test, float), z) for test in tests)


# --- Noise of whole completions --------------------------------------------------------------------------------------


def fit_noise(pairings: Sequence[CompletionNoise], *, z: float) -> dict[str, Any]:
    """The three limits; empty where no reader measured in two precisions, and then the run's defaults hold."""
    known = [each for each in pairings if len(each.noise)]
    if not known:
        return {}
    typical = max(bound_sample_mean(each.noise, z) for each in known)
    spread, spread_chunk = widen_spread(known, typical, z)
    return {
        "noise_typical": round_up(typical, digits=3),
        "noise_spread": round_up(spread, digits=3),
        "noise_spread_chunk": round_up(spread_chunk, digits=3),
    }


def bound_sample_mean(values: FloatArray, z: float) -> float:
    return float(values.mean() + z * values.std() / math.sqrt(len(values)))


def measure_spread(pairings: Sequence[CompletionNoise]) -> tuple[float, float]:
    """Standard deviations in the noisiest pair: between completions, and between chunks of a completion."""
    worst = max(pairings, key=lambda each: float(each.noise.mean()))
    return math.sqrt(worst.between), math.sqrt(worst.within)


def widen_spread(pairings: Sequence[CompletionNoise], typical: float, z: float) -> tuple[float, float]:
    """The noisiest pair's own spread, at its upper confidence limit, widened until all pairs keep it."""
    sure = math.sqrt(1 + z * math.sqrt(2 / min(len(each.noise) for each in pairings)))
    spread, spread_chunk = (max(sure * part, SPREAD_FLOOR) for part in measure_spread(pairings))
    while any(bound_evidence_factor(each, typical, spread, spread_chunk, z) > 1 for each in pairings):
        spread, spread_chunk = spread * WIDEN_FACTOR, spread_chunk * WIDEN_FACTOR
    return spread, spread_chunk


def bound_evidence_factor(
    completions: CompletionNoise, typical: float, spread: float, spread_chunk: float, z: float
) -> float:
    """The factor by which a completion multiplies the evidence on average, at its upper confidence limit."""
    deviations = (completions.noise - typical) / np.sqrt(spread**2 + spread_chunk**2 / completions.chunks)
    most = EVIDENCE_NOISE_MAX / 10 * math.log(10)
    return bound_sample_mean(np.exp(np.clip(NOISE_SHIFT * (deviations - NOISE_SHIFT / 2), -most, most)), z)
