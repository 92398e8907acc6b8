"""Rules that a submission is judged by: ours, and the public original's, side by side. Pure.

The original compares each chunk's proof by three numbers and no more: it knows neither replayed sampling nor decoys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prime_node.checks import weigh_rows
from prime_node.engine.measuring import RowNumbers
from prime_protocol.constants import WEIGHT_CONVICTS
from prime_protocol.tolerance import Tolerance
from prime_protocol.toploc_verify import ChunkReport
from prime_protocol.weighing import heaviest, mark_noise, mark_proof, mark_span

Rows = Sequence[RowNumbers]


@dataclass(frozen=True, slots=True)
class Original:
    """Three hard cuts for each chunk; one chunk above any of them and the file is rejected."""

    name: str
    exponents: int
    mean: float
    median: float

    def score(self, report: ChunkReport) -> float:
        """Above 1 is rejected."""
        return max(
            report.exponent_mismatches / self.exponents,
            report.mantissa_error_mean / self.mean,
            report.mantissa_error_median / self.median,
        )

    def score_rows(self, rows: Rows) -> float:
        return max((self.score(chunk) for row in rows for chunk in row.chunks), default=0.0)

    def rejects(self, rows: Rows) -> bool:
        return self.score_rows(rows) > 1


PAPER = Original("38/10/8", 38, 10, 8)
DEPLOYED = Original("60/40/40", 60, 40, 40)


def score_rows(rows: Rows, tolerance: Tolerance) -> float:
    """Ours: the evidence, in powers of ten."""
    return weigh_rows(rows, tolerance)[0].evidence / 10


def find_checks(rows: Rows, tolerance: Tolerance) -> tuple[str, ...]:
    """What convicts, the heaviest first; nothing where nothing does."""
    return tuple(dict.fromkeys(flaw.check for flaw in weigh_rows(rows, tolerance)[1]))


def tokens_needed(rows: Rows, tolerance: Tolerance) -> int | None:
    """Output tokens that were read when the evidence sufficed; None where it never does."""
    total = noise = tokens = 0
    for row in rows:
        for size, weight in list_weights(row, tolerance):
            tokens += size
            total = max(0, total + weight)
            if total >= WEIGHT_CONVICTS:
                return tokens
        mark = None if row.proof_problem else mark_noise(row.spans, row.chunks, tolerance)
        noise = max(0, noise + (mark.weight if mark is not None else 0))
        if noise >= WEIGHT_CONVICTS:
            return tokens
    return None


def list_weights(row: RowNumbers, tolerance: Tolerance) -> Iterator[tuple[int, int]]:
    """Tokens and weight of each chunk."""
    for place, span in enumerate(row.spans):
        marks = list(mark_span(span, tolerance))
        if row.proof_problem:
            yield span.tokens, WEIGHT_CONVICTS
        else:
            yield span.tokens, heaviest([*marks, *mark_proof(row.chunks[place], tolerance, is_whole=span.is_whole)])
