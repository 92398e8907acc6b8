"""Work of the full gallery on disk, piece by piece: who is stopped goes on there, with the same command.

A piece is what reading some completions gave, in numbers. Bounds and rules are not part of it: they may change, and all
pieces are judged anew at the end of every run.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prime_node.engine.frame_values import to_span
from prime_node.engine.measuring import RowNumbers
from prime_protocol.toploc_verify import ChunkReport
from prime_protocol.weighing import Span


class OutOfTimeError(Exception):
    """The minutes are over. What was made is kept."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Of one subject."""

    folder: Path
    ends_s: float
    """When nothing new is begun any more, by time.monotonic."""

    def get(self, name: str, make: Callable[[], Sequence[RowNumbers]]) -> list[RowNumbers]:
        """A piece that was made before, or is made now. OutOfTimeError where it is too late to begin."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            if time.monotonic() >= self.ends_s:
                raise OutOfTimeError(name)
            self.folder.mkdir(parents=True, exist_ok=True)
            save(path, make())
        return load(path)


def save(path: Path, rows: Sequence[RowNumbers]) -> None:
    """Whole, or not at all."""
    spans = [span for row in rows for span in row.spans]
    reports = [report for row in rows for report in row.chunks]
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(
            file,
            counts=np.array([(row.row, len(row.spans), len(row.chunks)) for row in rows], np.int64),
            spans=np.array(spans, np.float64).reshape(-1, len(Span._fields)),
            reports=np.array(reports, np.int32).reshape(-1, len(ChunkReport._fields)),
            ends=np.array([row.eos_logprob for row in rows], np.float64),
            problems=np.array([row.proof_problem for row in rows], np.str_),
        )
    os.replace(part, path)


def load(path: Path) -> list[RowNumbers]:
    with np.load(path) as file:
        counts, ends, problems = file["counts"].tolist(), file["ends"].tolist(), file["problems"].tolist()
        spans = iter([to_span(values) for values in file["spans"].tolist()])
        reports = map(ChunkReport._make, file["reports"].tolist())
        return [
            put_together(
                number,
                [next(spans) for _ in range(span_count)],
                [next(reports) for _ in range(report_count)],
                end,
                problem,
            )
            for (number, span_count, report_count), end, problem in zip(counts, ends, problems, strict=True)
        ]


def put_together(
    number: int, spans: Sequence[Span], reports: Sequence[ChunkReport], end: float, problem: str
) -> RowNumbers:
    """The numbers of a row follow from those of its chunks."""
    margin = max(spans, key=lambda span: span.margin_max)
    error = max(spans, key=lambda span: span.logprob_error_max)
    return RowNumbers(
        row=number,
        tokens=sum(span.tokens for span in spans),
        chunks=tuple(reports),
        proof_problem=problem,
        spans=tuple(spans),
        margin_max=margin.margin_max,
        margin_at=margin.margin_at,
        margin_sum=sum(span.margin_sum for span in spans),
        logprob_error_max=error.logprob_error_max,
        logprob_error_at=error.logprob_error_at,
        logprob_error_sum=sum(span.logprob_error_sum for span in spans),
        eos_logprob=end,
    )
