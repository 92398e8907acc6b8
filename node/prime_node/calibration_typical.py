"""What is typical noise, and how far honest completions spread around it: the second test of an audit. Pure.

It convicts whom noise convicts that never ceases, so it has to know honest noise well: the mean of each number in the
noisiest pairing of machines, and the standard deviation of a completion's noise, which has one part that evens out over
its chunks and one that does not, as some texts are noisier than others. The spread is then widened until a completion
of any pairing multiplies the evidence against its author by no more than 1 on average, for sure enough: what is few, or
further out than a normal distribution has it, widens it more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import NOISE_SHIFT, NOISE_WEIGHT_MAX, TOLERANCE_NUMBER_MAX

Numbers = NDArray[np.float64]
WIDER = 1.02
SPREAD_FLOOR = 0.01
"""Least spread. A narrower one would make a hundredth of the noise, which is nobody's fault, a standard deviation."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Whole chunks of one pairing."""

    rows: NDArray[np.int64]
    """Which completion each is of."""
    mantissas: Numbers
    logprobs: Numbers
    """Means of their errors, cut at what is usual."""


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """Noise of completions, where typical noise is 1."""

    noise: Numbers
    chunks: Numbers
    within: float
    """Variance of a chunk in its completion."""

    @property
    def between(self) -> float:
        """Variance of completions beyond that of their chunks; long ones tell most of it."""
        excess = (self.noise - self.noise.mean()) ** 2 - self.within / self.chunks
        return max(0.0, float((excess * self.chunks).sum() / self.chunks.sum()))


def fit_typical(pairings: Sequence[Chunks], *, mantissa_floor: float, logprob_floor: float, z: float) -> dict[str, Any]:
    """The four bounds. Where no completion has a whole chunk, nothing is known and nobody is convicted by it."""
    mantissa = max(mantissa_floor, *(bound_mean_of_rows(each.rows, each.mantissas, z) for each in pairings))
    logprob = max(logprob_floor, *(bound_mean_of_rows(each.rows, each.logprobs, z) for each in pairings))
    noises = [gather(each, mantissa=mantissa, logprob=logprob) for each in pairings if len(each.rows)]
    spread, spread_chunk = widen(noises, z) if noises else (TOLERANCE_NUMBER_MAX, TOLERANCE_NUMBER_MAX)
    return {
        "mantissa_error_mean_typical": round_to_three(mantissa),
        "logprob_error_mean_typical": round_to_three(logprob),
        "noise_spread": round_to_three(spread),
        "noise_spread_chunk": round_to_three(spread_chunk),
    }


def bound_mean_of_rows(rows: NDArray[np.int64], values: Numbers, z: float) -> float:
    """Upper confidence limit of the mean of chunks; those of one completion are noisy together."""
    if not len(values):
        return 0.0
    mean = float(values.mean())
    sums = np.bincount(rows, weights=values - mean)
    return mean + z * math.sqrt(float((sums**2).sum())) / len(values)


def gather(chunks: Chunks, *, mantissa: float, logprob: float) -> Completions:
    noise = (chunks.mantissas / mantissa + chunks.logprobs / logprob) / 2
    _, rows, counts = np.unique(chunks.rows, return_inverse=True, return_counts=True)
    means = np.bincount(rows, weights=noise) / counts
    spare = max(1, len(noise) - len(counts))
    return Completions(means, counts.astype(float), float(((noise - means[rows]) ** 2).sum()) / spare)


def see_spread(noises: Sequence[Completions]) -> tuple[float, float]:
    """Standard deviations in the noisiest pairing: of completions, and of chunks in them."""
    worst = max(noises, key=lambda each: float(each.noise.mean()))
    return math.sqrt(worst.between), math.sqrt(worst.within)


def widen(noises: Sequence[Completions], z: float) -> tuple[float, float]:
    """From the noisiest pairing's own spread, at its upper confidence limit, up to one that all of them keep."""
    sure = math.sqrt(1 + z * math.sqrt(2 / min(len(each.noise) for each in noises)))
    spread, spread_chunk = (max(sure * part, SPREAD_FLOOR) for part in see_spread(noises))
    while any(bound_bet(each, spread, spread_chunk, z) > 1 for each in noises):
        spread, spread_chunk = spread * WIDER, spread_chunk * WIDER
    return spread, spread_chunk


def bound_bet(completions: Completions, spread: float, spread_chunk: float, z: float) -> float:
    """What a completion multiplies the evidence by, on average: the upper confidence limit."""
    deviations = (completions.noise - 1) / np.sqrt(spread**2 + spread_chunk**2 / completions.chunks)
    most = NOISE_WEIGHT_MAX / 10 * math.log(10)
    bets = np.exp(np.clip(NOISE_SHIFT * (deviations - NOISE_SHIFT / 2), -most, most))
    return float(bets.mean() + z * bets.std() / math.sqrt(len(bets)))


def round_to_three(value: float) -> float:
    """Up, to three digits: the second is a tenth of the spread."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{min(math.ceil(value / unit - 1e-9) * unit, TOLERANCE_NUMBER_MAX):.4g}")
