"""How noisy an honest completion is against the reader's own reading, and how far that spreads: the second test of an
audit. Pure.

Noise has one part that evens out over the chunks of a completion and one that does not. The spread is widened until a
completion of any pairing of machines multiplies the evidence against its author by no more than 1 on average, for sure
enough: few completions, or some that are further out than a normal distribution has them, widen it more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.measuring import RowNumbers
from prime_protocol.constants import NOISE_SHIFT, NOISE_WEIGHT_MAX, TOLERANCE_NUMBER_MAX
from prime_protocol.tolerance import Tolerance
from prime_protocol.weighing import get_noise

Numbers = NDArray[np.float64]
WIDER = 1.02
SPREAD_FLOOR = 0.01
"""Least spread. A narrower one would make a hundredth of the noise, which is nobody's fault, a standard deviation."""


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """Noise of the completions of one pairing that have whole chunks and were read twice."""

    noise: Numbers
    chunks: Numbers
    """Whole ones in each."""
    within: float
    """Variance that a single chunk has in its completion."""

    @property
    def between(self) -> float:
        """Variance of completions beyond that of their chunks; long ones tell most of it."""
        excess = (self.noise - self.noise.mean()) ** 2 - self.within / self.chunks
        return max(0.0, float((excess * self.chunks).sum() / self.chunks.sum()))


def gather(rows: Sequence[RowNumbers], tolerance: Tolerance) -> Completions:
    """`tolerance` says what is usual, beyond which a chunk counts no more."""
    noise, chunks, squares = [], [], 0.0
    for row in rows:
        whole = [(span, report) for span, report in zip(row.spans, row.chunks, strict=True) if span.is_whole]
        if any(span.is_read_twice for span, _ in whole):
            mean = get_noise(whole, tolerance)
            squares += sum((get_noise([chunk], tolerance) - mean) ** 2 for chunk in whole)
            noise.append(mean)
            chunks.append(len(whole))
    spare = max(1, sum(chunks) - len(chunks))
    return Completions(np.array(noise, float), np.array(chunks, float), squares / spare)


def fit_noise(pairings: Sequence[Completions], *, z: float) -> dict[str, Any]:
    """The three bounds; none where nobody read twice, and then the run's defaults hold."""
    known = [each for each in pairings if len(each.noise)]
    if not known:
        return {}
    typical = max(bound_mean(each.noise, z) for each in known)
    spread, spread_chunk = widen(known, typical, z)
    return {
        "noise_typical": round_to_three(typical),
        "noise_spread": round_to_three(spread),
        "noise_spread_chunk": round_to_three(spread_chunk),
    }


def bound_mean(values: Numbers, z: float) -> float:
    return float(values.mean() + z * values.std() / math.sqrt(len(values)))


def see_spread(pairings: Sequence[Completions]) -> tuple[float, float]:
    """Standard deviations in the noisiest pairing: of completions, and of chunks in them."""
    worst = max(pairings, key=lambda each: float(each.noise.mean()))
    return math.sqrt(worst.between), math.sqrt(worst.within)


def widen(pairings: Sequence[Completions], typical: float, z: float) -> tuple[float, float]:
    """From the noisiest pairing's own spread, at its upper confidence limit, up to one that all of them keep."""
    sure = math.sqrt(1 + z * math.sqrt(2 / min(len(each.noise) for each in pairings)))
    spread, spread_chunk = (max(sure * part, SPREAD_FLOOR) for part in see_spread(pairings))
    while any(bound_bet(each, typical, spread, spread_chunk, z) > 1 for each in pairings):
        spread, spread_chunk = spread * WIDER, spread_chunk * WIDER
    return spread, spread_chunk


def bound_bet(completions: Completions, typical: float, spread: float, spread_chunk: float, z: float) -> float:
    """What a completion multiplies the evidence by, on average: the upper confidence limit."""
    deviations = (completions.noise - typical) / np.sqrt(spread**2 + spread_chunk**2 / completions.chunks)
    most = NOISE_WEIGHT_MAX / 10 * math.log(10)
    return bound_mean(np.exp(np.clip(NOISE_SHIFT * (deviations - NOISE_SHIFT / 2), -most, most)), z)


def round_to_three(value: float) -> float:
    """Up, to three digits: typical noise is known better than to two."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{min(math.ceil(value / unit - 1e-9) * unit, TOLERANCE_NUMBER_MAX):.4g}")
