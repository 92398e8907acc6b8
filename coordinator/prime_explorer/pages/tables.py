"""Rows that several pages show, and how a page of them is read: newest first."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prime_explorer.config import ROWS_PER_PAGE
from prime_explorer.index.store import ReadTransaction, make_row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """One page of a table, and the cursor of the next page."""

    rows: tuple[T, ...]
    next: str | None = None
    """`before` or `after` of the next page; null on the last page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySummary:
    """An entry of the log in one line."""

    idx: int
    at_ms: int
    kind: str
    author: str
    run: str | None
    about: str | None
    brief: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionSummary:
    """A submission in one line."""

    idx: int
    at_ms: int
    submission: str
    run: str
    step: int
    node: str
    lease: int
    first_slot: int
    slots: int
    samples: int
    output_tokens: int
    progress: str
    reason: str | None
    validators: int
    verdicts: int
    units: int | None
    """Credited units; null if none."""
    paid_idx: int | None
    trained_into: int | None
    slash: str | None
    finding: str | None
    """`filed`, `upheld`, `dismissed` or `undecided`: someone claimed that it is fraudulent after it was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSummary:
    """A verdict, whether it was upheld, and whether its author had read the file."""

    idx: int
    at_ms: int
    run: str
    submission: str
    validator: str
    round: int
    outcome: str
    reason: str
    evidence: str
    upheld: int | None
    """Null while the outcome is open, or if no verdict was upheld."""
    refuted: int | None
    """1 if an inspector found that its author had not read the file; null if none has checked."""
    read_proof_error: float | None
    """Distance of its read proof from the inspector's; null if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashSummary:
    """A slash in one line."""

    idx: int
    at_ms: int
    run: str
    submission: str
    node: str
    owner: str
    amount_nano: int
    progress: str
    appeal_until_ms: int
    ended_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppealSummary:
    """An appeal against a slash."""

    idx: int
    """The entry that proposed the slash."""
    run: str
    submission: str
    node: str
    progress: str
    """State of the slash."""
    appealed_idx: int
    appealed_ms: int
    appealed_by: str
    appeal_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSummary:
    """An open lease."""

    idx: int
    run: str
    lease: int
    node: str
    step: int
    first_slot: int
    slots: int
    granted_ms: int
    deadline_ms: int
    speculative: int
    """1 if it duplicates the slots of a slow lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """A published checkpoint."""

    idx: int
    run: str
    step: int
    published_ms: int
    root: str
    manifest: str
    beacon: str | None
    """Null until a head is noted after it."""
    trained_on: int
    """Submissions it was trained on; its entry in the log names them."""


ROW_TABLES: dict[type, tuple[str, str]] = {
    EntrySummary: ("entries", ""),
    SubmissionSummary: ("submissions", ""),
    VerdictSummary: ("verdicts", ""),
    SlashSummary: ("slashes", ""),
    AppealSummary: ("slashes", "appealed_idx IS NOT NULL"),
    LeaseSummary: ("leases", "state='open'"),
    CheckpointSummary: ("steps", ""),
}
"""The table of each kind of row, and the condition under which a row of the table is one."""


def read_rows(
    db: ReadTransaction,
    row: type[T],
    /,
    *,
    before: int | None = None,
    limit: int = ROWS_PER_PAGE,
    index: str = "",
    **where: Any,
) -> Rows[T]:
    """Newest first, rows that match all of these values. `index` names the SQL index to use."""
    given = {name: value for name, value in where.items() if value is not None}
    table, condition = ROW_TABLES[row]
    conditions = [condition] * bool(condition) + [f"{name}=?" for name in given]
    conditions += ["idx<?"] if before is not None else []
    values = [*given.values(), *([before] if before is not None else [])]
    query = f"SELECT * FROM {table}"
    if index:
        query += f" INDEXED BY {index}"
    if conditions:
        query += " WHERE " + " AND ".join(conditions)
    found = db.rows(f"{query} ORDER BY idx DESC LIMIT ?", *values, limit + 1)
    return cut_page(tuple(make_row(row, each) for each in found), limit)


def cut_page(rows: tuple[T, ...], limit: int) -> Rows[T]:
    """`rows` has one row more than the page if there is a next page."""
    shown = rows[:limit]
    return Rows(shown, str(shown[-1].idx) if len(rows) > limit else None)  # type: ignore[attr-defined]
