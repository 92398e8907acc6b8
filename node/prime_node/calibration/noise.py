"""The measurements of one pair of machines as columns: one generated completions, the other checked them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.measurement import RowMeasurement
from prime_protocol.constants import OWN_LOGPROB_ERROR_MIN, OWN_MANTISSA_ERROR_MIN
from prime_protocol.errors import LocalError
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairNoise:
    """The measurements of one pair of machines: one generated completions, the other checked them."""

    pair: str
    exponents: FloatArray
    signs: FloatArray
    mantissa_sums: FloatArray
    mantissa_means: FloatArray
    mantissa_medians: FloatArray
    chunk_margins: FloatArray
    chunk_margin_means: FloatArray
    chunk_logprobs: FloatArray
    chunk_logprob_means: FloatArray
    own_logprobs: FloatArray
    own_mantissas: FloatArray
    """What the reader's own reading in bfloat16 gave, mean log-prob and mantissa errors; 0 where it read once."""
    is_whole: NDArray[np.bool_]
    owners: NDArray[np.int64]
    """The completion of each chunk. The arrays up to here have one value per chunk."""
    tokens: FloatArray
    margin_maxima: FloatArray
    margin_sums: FloatArray
    losers: FloatArray
    """Tokens that are not the replayed winner."""
    logprob_maxima: FloatArray
    logprob_sums: FloatArray
    """One value per completion, from `tokens` on."""

    @property
    def has_two_readings(self) -> bool:
        """Whether the reader measured in two precisions."""
        return bool((self.own_logprobs > 0).any() or (self.own_mantissas > 0).any())


CHUNK_COLUMNS = (
    "exponents",
    "signs",
    "mantissa_sums",
    "mantissa_means",
    "mantissa_medians",
    "chunk_margins",
    "chunk_margin_means",
    "chunk_logprobs",
    "chunk_logprob_means",
    "own_logprobs",
    "own_mantissas",
    "is_whole",
)
ROW_COLUMNS = ("tokens", "margin_maxima", "margin_sums", "losers", "logprob_maxima", "logprob_sums")


def collect_noise(pairing: str, rows: Iterable[RowMeasurement]) -> PairNoise:
    """LocalError: a row's proofs cannot be parsed, which is not noise. Takes rows one at a time: files may be large."""
    chunks: list[FloatArray] = []
    totals: list[tuple[float, ...]] = []
    for row in rows:
        if row.proof_problem:
            raise LocalError(f"{pairing}: an honest row has proofs that cannot be read: {row.proof_problem}")
        if not row.spans or len(row.spans) != len(row.chunks):
            raise LocalError(f"{pairing}: row {row.row} has {len(row.chunks)} proofs for {len(row.spans)} chunks")
        numbers = map(list_chunk_numbers, row.spans, row.chunks)
        chunks.append(np.array(list(numbers), float).reshape(-1, len(CHUNK_COLUMNS)))
        losers = sum(span.losers for span in row.spans)
        totals.append(
            (row.tokens, row.margin_max, row.margin_sum, losers, row.logprob_error_max, row.logprob_error_sum)
        )
    table = np.concatenate(chunks) if chunks else np.zeros((0, len(CHUNK_COLUMNS)))
    columns = dict(zip(CHUNK_COLUMNS, table.T, strict=True))
    row_columns = dict(zip(ROW_COLUMNS, np.array(totals, float).reshape(-1, len(ROW_COLUMNS)).T, strict=True))
    owners = np.repeat(np.arange(len(chunks)), [len(part) for part in chunks])
    is_whole = columns.pop("is_whole") > 0
    return PairNoise(pair=pairing, owners=owners, is_whole=is_whole, **columns, **row_columns)


def list_chunk_numbers(span: ReplayedChunk, report: ChunkReport) -> tuple[float, ...]:
    """As CHUNK_COLUMNS names them."""
    return (
        report.exponent_mismatches,
        report.sign_mismatches,
        report.mantissa_error_sum,
        report.mantissa_error_mean,
        report.mantissa_error_median,
        span.margin_max,
        span.margin_sum / span.tokens,
        span.logprob_error_max,
        span.logprob_error_sum / span.tokens,
        span.own_logprob_error_sum / span.tokens,
        span.own_mantissa_error_mean,
        span.is_whole,
    )


@dataclass(frozen=True, slots=True, eq=False)
class CompletionNoise:
    """Noise of the completions of one pair that have whole chunks and were measured in two precisions."""

    noise: FloatArray
    chunks: FloatArray
    """Whole chunks of each."""
    within: float
    """Variance of a chunk within its completion."""

    @property
    def between(self) -> float:
        """Variance between completions beyond that of their chunks, weighted by length."""
        excess = (self.noise - self.noise.mean()) ** 2 - self.within / self.chunks
        return max(0.0, float((excess * self.chunks).sum() / self.chunks.sum()))


def collect_completion_noise(noise: PairNoise, tolerance: Tolerance) -> CompletionNoise:
    """As evidence.compute_noise has it. `tolerance` says what is usual; beyond that a chunk's noise is capped."""
    keep = noise.is_whole
    owners, count = noise.owners[keep], len(noise.tokens)
    logprobs = np.minimum(noise.chunk_logprob_means[keep], tolerance.logprob_error_mean_usual)
    mantissas = np.minimum(noise.mantissa_means[keep], tolerance.mantissa_error_mean_usual)
    own_logprobs = np.maximum(noise.own_logprobs[keep], OWN_LOGPROB_ERROR_MIN)
    own_mantissas = np.maximum(noise.own_mantissas[keep], OWN_MANTISSA_ERROR_MIN)

    def add_up(values: FloatArray) -> FloatArray:
        return np.bincount(owners, values, minlength=count).astype(float)

    is_read_twice = add_up(((noise.own_logprobs[keep] > 0) | (noise.own_mantissas[keep] > 0)).astype(float)) > 0
    chunks = add_up(np.ones(len(owners)))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (add_up(logprobs) / add_up(own_logprobs) + add_up(mantissas) / add_up(own_mantissas)) / 2
    each = (logprobs / own_logprobs + mantissas / own_mantissas) / 2
    squares = float(((each - means[owners]) ** 2)[is_read_twice[owners]].sum())
    known, lengths = means[is_read_twice], chunks[is_read_twice]
    spare = max(1, int(lengths.sum()) - len(lengths))
    return CompletionNoise(known, lengths, squares / spare)
