"""How far the numbers of an honest machine may differ from those of another, before an audit counts it as evidence.

Each number has two bounds: what is usual, and a limit. evidence.py weighs the chunks beyond them. In bfloat16 there is
also a bound on the noise of a whole completion: constant extra noise means another computation, such as a quantised
cache.

The bounds are part of a run's terms, so every validator uses the same ones. They depend on the model and the precision;
`prime-node calibrate` measures them. The defaults are loose: they fit bfloat16 across different kinds of machines.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from prime_protocol.constants import (
    EXPONENT_MISMATCHES_USUAL,
    LOGPROB_ERROR_MAX,
    LOGPROB_ERROR_MEAN_MAX,
    LOGPROB_ERROR_MEAN_USUAL,
    LOGPROB_ERROR_USUAL,
    MANTISSA_ERROR_MEAN_USUAL,
    MARGIN_MAX,
    MARGIN_MEAN_MAX,
    MARGIN_MEAN_USUAL,
    MARGIN_RATE,
    MARGIN_RATE_MAX,
    MARGIN_RATE_MIN,
    MARGIN_SCALE,
    MARGIN_SCALE_MIN,
    MARGIN_USUAL,
    NOISE_DIVISOR_MIN,
    NOISE_SPREAD,
    NOISE_SPREAD_CHUNK,
    NOISE_TYPICAL,
    TOLERANCE_NUMBER_MAX,
    TOPLOC_EXPONENT_MISMATCHES_MAX,
    TOPLOC_K,
    TOPLOC_MANTISSA_ERROR_MEAN_MAX,
    TOPLOC_MANTISSA_ERROR_MEDIAN_MAX,
    TOPLOC_SIGN_MISMATCHES_MAX,
)
from prime_protocol.errors import LocalError
from prime_protocol.wire.codec import Range

Count = Annotated[int, Range(0, TOPLOC_K - 1)]
Error = Annotated[float, Range(0.0, TOLERANCE_NUMBER_MAX)]
Divisor = Annotated[float, Range(NOISE_DIVISOR_MIN, TOLERANCE_NUMBER_MAX)]

MANTISSA_ERROR_NONE = 128
"""Stands for the mantissa error where no exponent matches: one more than the largest difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToplocThresholds:
    """Tolerance for floating-point noise, per 128 values; a run may calibrate its own."""

    exponent_mismatches_max: int = TOPLOC_EXPONENT_MISMATCHES_MAX
    sign_mismatches_max: int = TOPLOC_SIGN_MISMATCHES_MAX
    mantissa_error_mean_max: float = TOPLOC_MANTISSA_ERROR_MEAN_MAX
    mantissa_error_median_max: int = TOPLOC_MANTISSA_ERROR_MEDIAN_MAX

    def __post_init__(self) -> None:
        for name, top in (
            ("exponent_mismatches_max", TOPLOC_K - 1),
            ("sign_mismatches_max", TOPLOC_K - 1),
            ("mantissa_error_mean_max", MANTISSA_ERROR_NONE - 1),
            ("mantissa_error_median_max", MANTISSA_ERROR_NONE - 1),
        ):
            if not 0 <= getattr(self, name) <= top:
                raise LocalError(f"{name} is {getattr(self, name)}, allowed is 0 to {top}")


class Precision(StrEnum):
    """What engines compute in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What counts as floating-point noise in one run."""

    precision: Precision = Precision.BFLOAT16
    """What engines compute in. A machine without bfloat16 instructions computes in float32, which is closer still."""
    exponent_mismatches_max: Count = TOPLOC_EXPONENT_MISMATCHES_MAX
    """TOPLOC, per 128 values of a chunk: values with another exponent."""
    sign_mismatches_max: Count = TOPLOC_SIGN_MISMATCHES_MAX
    """TOPLOC, per 128 values of a chunk: values with the right exponent and the wrong sign."""
    mantissa_error_mean_max: Annotated[float, Range(0.0, MANTISSA_ERROR_NONE - 1)] = TOPLOC_MANTISSA_ERROR_MEAN_MAX
    """TOPLOC: mean error of the mantissas in a chunk."""
    mantissa_error_median_max: Annotated[int, Range(0, MANTISSA_ERROR_NONE - 1)] = TOPLOC_MANTISSA_ERROR_MEDIAN_MAX
    """TOPLOC: median error of the mantissas in a chunk."""
    margin_max: Error = MARGIN_MAX
    """Most by which one token may lose against the replayed winner."""
    margin_mean_max: Error = MARGIN_MEAN_MAX
    """The same, as the mean over all tokens of a file."""
    logprob_error_max: Error = LOGPROB_ERROR_MAX
    """Most by which one token's log-probability may differ."""
    logprob_error_mean_max: Error = LOGPROB_ERROR_MEAN_MAX
    """The same, as the mean over all tokens of a file."""
    exponent_mismatches_usual: Count = EXPONENT_MISMATCHES_USUAL
    """Of a chunk: what few honest ones exceed. Many that do mean another model; evidence.py weighs them."""
    mantissa_error_mean_usual: Annotated[float, Range(0.0, MANTISSA_ERROR_NONE - 1)] = MANTISSA_ERROR_MEAN_USUAL
    margin_usual: Error = MARGIN_USUAL
    """Of a chunk's tokens: the largest."""
    margin_mean_usual: Error = MARGIN_MEAN_USUAL
    """Of a chunk's tokens: the mean."""
    logprob_error_usual: Error = LOGPROB_ERROR_USUAL
    logprob_error_mean_usual: Error = LOGPROB_ERROR_MEAN_USUAL
    noise_typical: Divisor = NOISE_TYPICAL
    """Mean noise of honest completions, as a multiple of what the reader's own reading in bfloat16 has."""
    noise_spread: Divisor = NOISE_SPREAD
    """Its standard deviation in honest completions, however long they are."""
    noise_spread_chunk: Divisor = NOISE_SPREAD_CHUNK
    """What each chunk adds to it, which evens out in longer ones."""
    margin_rate: Annotated[float, Range(MARGIN_RATE_MIN, MARGIN_RATE_MAX)] = MARGIN_RATE
    """How many tokens of honest completions lose against the replayed winner; see margin_noise.py."""
    margin_scale: Annotated[float, Range(MARGIN_SCALE_MIN, TOLERANCE_NUMBER_MAX)] = MARGIN_SCALE
    """Mean of the exponential distribution that bounds by how much they lose."""

    def thresholds(self) -> ToplocThresholds:
        """The part that judges TOPLOC proofs."""
        return ToplocThresholds(
            exponent_mismatches_max=self.exponent_mismatches_max,
            sign_mismatches_max=self.sign_mismatches_max,
            mantissa_error_mean_max=self.mantissa_error_mean_max,
            mantissa_error_median_max=self.mantissa_error_median_max,
        )
