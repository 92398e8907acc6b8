"""From the numbers of many chunks to one decision, by a sequential test: one unlucky chunk never convicts. Pure.

Every chunk of 32 tokens weighs for or against its author, as its worst number says: usual, unusual, beyond a limit, or
far beyond it. Weights are tenths of a power of ten and are added up in the order of the file; a sum below zero is reset
to zero, so that honest rows cannot offset forged ones. A file is fraudulent once the sum reaches EVIDENCE_FRAUDULENT.
That is Page's test (CUSUM) with a bet whose expectation is below 1 for honest work, which bounds the chance of a false
conviction by 1e-12 for each chunk of a file (Ville's inequality), whatever the file's length.

A deviation that noise cannot cause decides by itself: a malformed proof, or a number far beyond its limit.

A second test of the same kind covers whole completions and detects small, constant deviations: an 8-bit KV cache makes
every chunk of a bfloat16 run a little noisier and none unusual. Some texts are noisier than others, so noise
is measured in what the reader's own reading in bfloat16 gives on the same tokens; an honest completion then has 1,
within a few hundredths. Completions are drawn with seeds of their own, so each is a bet of its own.

A third test weighs the margins of whole completions by how likely honest noise makes them: margin_noise.py.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prime_protocol.constants import (
    EVIDENCE_BEYOND_LIMIT,
    EVIDENCE_FRAUDULENT,
    EVIDENCE_NOISE_MAX,
    EVIDENCE_UNLIKELY,
    EVIDENCE_UNUSUAL,
    EVIDENCE_USUAL,
    FAR_BEYOND_FACTOR,
    NOISE_SHIFT,
    OWN_LOGPROB_ERROR_MIN,
    OWN_MANTISSA_ERROR_MIN,
    TOPLOC_CHUNK_TOKENS,
)
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport, find_chunk_faults

CHANCE_CHECKS = frozenset({"decoy_hits", "collisions", "leading_zeros"})
"""What they exceed is no tolerance for noise but a bound on chance of 1e-12 or less."""


class ReplayedChunk(NamedTuple):
    """What the tokens of one chunk gave when the draw was replayed."""

    tokens: int
    margin_max: float
    margin_at: int
    """Which output token of the completion has it."""
    margin_sum: float
    logprob_error_max: float
    logprob_error_at: int
    logprob_error_sum: float
    own_logprob_error_sum: float = 0.0
    own_mantissa_error_mean: float = 0.0
    """What the reader's own reading in the run's precision gave of the same; 0 where it was not read twice."""
    losers: int = 0
    """Tokens that are not the replayed winner: those with a margin above 0."""

    @property
    def is_whole(self) -> bool:
        return self.tokens == TOPLOC_CHUNK_TOKENS

    @property
    def is_read_twice(self) -> bool:
        return self.own_logprob_error_sum > 0 or self.own_mantissa_error_mean > 0


class Deviation(NamedTuple):
    """One number of a chunk that is not usual."""

    check: str
    value: float
    bound: float
    """What it is beyond: its limit, or what is usual."""
    weight: int
    at: int | None = None
    """The output token it is about; None where it is about the whole chunk."""


@dataclass(frozen=True, slots=True)
class EvidenceSum:
    """What all chunks of a file come to."""

    most: int
    """The largest sum, in tenths of a power of ten."""
    at: int
    """Number of the chunk with which it was reached."""
    unusual: int
    """Chunks that are unusual, and no more than that."""
    beyond: int
    """Chunks with a number beyond its limit."""
    noise: int = 0
    """The largest sum of what completions weigh by their noise, in tenths as well."""
    margin: int = 0
    """The same by their margins, see margin_noise.py."""
    bets: tuple[int, ...] = ()
    """What the whole file weighs under each bet on margins, and by the noise of its completions: what a verdict says
    for the sums of its author's files."""

    @property
    def evidence(self) -> int:
        """The largest of the tests' sums."""
        return max(self.most, self.noise, self.margin)

    @property
    def convicts(self) -> bool:
        return self.evidence >= EVIDENCE_FRAUDULENT

    @property
    def is_unlikely(self) -> bool:
        """Too much for honest noise to be paid, and too little to charge anybody."""
        return EVIDENCE_UNLIKELY <= self.evidence < EVIDENCE_FRAUDULENT


def compute_weight(value: float, *, usual: float, limit: float) -> tuple[int, float]:
    """What one number weighs, and the bound that it is beyond."""
    if value > limit:
        is_far = 0 < FAR_BEYOND_FACTOR * limit < value
        return (EVIDENCE_FRAUDULENT if is_far else EVIDENCE_BEYOND_LIMIT), limit
    return (EVIDENCE_UNUSUAL if value > usual else EVIDENCE_USUAL), usual


def find_proof_deviations(report: ChunkReport, tolerance: Tolerance, *, is_whole: bool) -> Iterator[Deviation]:
    """Every number of one proof that is not usual. What is usual is known of whole chunks only: short ones stray."""
    beyond = {fault.check: fault for fault in find_chunk_faults(0, report, tolerance.thresholds())}
    for fault in beyond.values():
        is_chance = fault.check in CHANCE_CHECKS
        weight, _ = compute_weight(fault.value, usual=fault.limit, limit=fault.limit)
        yield Deviation(fault.check, fault.value, fault.limit, EVIDENCE_FRAUDULENT if is_chance else weight)
    for check, value, usual in (
        ("exponent_mismatches", report.exponent_mismatches, tolerance.exponent_mismatches_usual),
        ("mantissa_error_mean", report.mantissa_error_mean, tolerance.mantissa_error_mean_usual),
    ):
        if is_whole and value > usual and check not in beyond:
            yield Deviation(check, value, usual, EVIDENCE_UNUSUAL)


def find_replay_deviations(span: ReplayedChunk, tolerance: Tolerance) -> Iterator[Deviation]:
    """Every number of one chunk's tokens that is not usual. Means of so few tokens have no limit of their own."""
    for check, value, at, usual, limit in (
        ("margin", span.margin_max, span.margin_at, tolerance.margin_usual, tolerance.margin_max),
        (
            "logprob_error",
            span.logprob_error_max,
            span.logprob_error_at,
            tolerance.logprob_error_usual,
            tolerance.logprob_error_max,
        ),
    ):
        weight, bound = compute_weight(value, usual=usual, limit=limit)
        if weight != EVIDENCE_USUAL:
            yield Deviation(check, value, bound, weight, at)
    for check, total, usual in (
        ("margin_mean", span.margin_sum, tolerance.margin_mean_usual),
        ("logprob_error_mean", span.logprob_error_sum, tolerance.logprob_error_mean_usual),
    ):
        if span.is_whole and total / span.tokens > usual:
            yield Deviation(check, total / span.tokens, usual, EVIDENCE_UNUSUAL)


def get_chunk_weight(marks: Iterable[Deviation]) -> int:
    """What a chunk weighs: its worst number decides, as the numbers of one chunk go together."""
    return max((mark.weight for mark in marks), default=EVIDENCE_USUAL)


class EvidenceCounter:
    """The test, one weight at a time in the order of the file: reading can stop as soon as the sum convicts."""

    def __init__(self) -> None:
        self._total = self._most = self._at = self._count = self._unusual = self._beyond = 0

    def add(self, weight: int) -> None:
        self._unusual += weight == EVIDENCE_UNUSUAL
        self._beyond += weight > EVIDENCE_UNUSUAL
        self._total = max(0, self._total + weight)
        if self._total > self._most:
            self._most, self._at = self._total, self._count
        self._count += 1

    def sum(self) -> EvidenceSum:
        """What was added so far comes to. More weights never lower `most`: a conviction stands."""
        return EvidenceSum(self._most, self._at, self._unusual, self._beyond)


# --- Completions ----------------------------------------------------------------------------------------------------


def compute_noise_deviation(
    spans: Sequence[ReplayedChunk], reports: Sequence[ChunkReport], tolerance: Tolerance
) -> Deviation | None:
    """What a completion weighs by its noise; None where nothing is known of it. The bound is where it turns."""
    whole = [(span, report) for span, report in zip(spans, reports, strict=True) if span.is_whole]
    if not any(span.is_read_twice for span, _ in whole):
        return None
    noise = compute_noise(whole, tolerance)
    spread = math.hypot(tolerance.noise_spread, tolerance.noise_spread_chunk / math.sqrt(len(whole)))
    deviations = (noise - tolerance.noise_typical) / spread - NOISE_SHIFT / 2
    weight = math.floor(10 * NOISE_SHIFT * deviations / math.log(10))
    bound = tolerance.noise_typical + spread * NOISE_SHIFT / 2
    return Deviation("noise", noise, bound, max(-EVIDENCE_NOISE_MAX, min(weight, EVIDENCE_NOISE_MAX)))


def compute_noise(whole: Sequence[tuple[ReplayedChunk, ChunkReport]], tolerance: Tolerance) -> float:
    """Of log-probs and of proofs, against the reader's own, the mean of both. Each chunk's numbers are cut at what is
    usual, so that one cannot speak for all.
    """
    logprobs = sum(min(span.logprob_error_sum / span.tokens, tolerance.logprob_error_mean_usual) for span, _ in whole)
    mantissas = sum(min(report.mantissa_error_mean, tolerance.mantissa_error_mean_usual) for _, report in whole)
    own_logprobs = sum(max(span.own_logprob_error_sum / span.tokens, OWN_LOGPROB_ERROR_MIN) for span, _ in whole)
    own_mantissas = sum(max(span.own_mantissa_error_mean, OWN_MANTISSA_ERROR_MIN) for span, _ in whole)
    return (logprobs / own_logprobs + mantissas / own_mantissas) / 2
