"""How close the numbers of an audit are to what the run allows: each as a strip with its threshold. Pure.

Submissions: the table of all, and everything about one: slots, judgement, rollouts, what it became.

Slashes and appeals: the table of all, and the whole story of one, in order, with what it takes to check it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from prime_explorer.index.store import ReadTransaction, make_row
from prime_explorer.pages.rollouts import RolloutsView
from prime_explorer.pages.tables import EntrySummary, Rows, SlashSummary, SubmissionSummary, VerdictSummary, read_rows
from prime_protocol.proofs.toploc_verify import ChunkReport
from prime_protocol.wire.ids import Digest, NodeId, RunId

METRIC_LIMITS = {
    "exponent_mismatches_max": ("exponent_mismatches_max", "exponent mismatches"),
    "sign_mismatches_max": ("sign_mismatches_max", "sign mismatches"),
    "mantissa_error_mean_max": ("mantissa_error_mean_max", "mantissa error, mean"),
    "mantissa_error_median_max": ("mantissa_error_median_max", "mantissa error, median"),
    "margin_max": ("margin_max", "sampling margin, largest"),
    "margin_mean": ("margin_mean_max", "sampling margin, mean"),
    "logprob_error_max": ("logprob_error_max", "log-prob error, largest"),
    "logprob_error_mean": ("logprob_error_mean_max", "log-prob error, mean"),
}
"""A verdict's numbers: which of the run's tolerances each is held to, and what it is called."""
CHUNK_LIMITS = {
    "exponent_mismatches": "exponent_mismatches_max",
    "sign_mismatches": "sign_mismatches_max",
    "mantissa_error_median": "mantissa_error_median_max",
}
POINTS_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One number of one validator, or of one chunk."""

    who: str
    value: float
    share: float
    """Of the limit: above 1 is more than the run allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricStrip:
    """All numbers of one kind."""

    name: str
    title: str
    limit: float
    points: tuple[MetricPoint, ...]


def make_metric_strips(
    verdicts: Sequence[tuple[str, dict[str, float]]], tolerance: dict[str, Any]
) -> tuple[MetricStrip, ...]:
    """One strip for each number that the run has a limit for, with a point for each verdict."""
    strips = []
    for name, (limit_name, title) in METRIC_LIMITS.items():
        limit = float(tolerance.get(limit_name, 0))
        values = [(who, metrics[name]) for who, metrics in verdicts if math.isfinite(metrics.get(name, math.nan))]
        if values:
            strips.append(_make_strip(name, title, values, limit))
    return tuple(strips)


def _compute_share(value: float, limit: float) -> float:
    return value / limit if limit > 0 else (2.0 if value > 0 else 0.0)


def read_chunk_strips(evidence: bytes, tolerance: dict[str, Any]) -> tuple[MetricStrip, ...]:
    """From an evidence bundle as prime-node writes it: a strip for each number, with a point for each chunk or row.

    A bundle is a validator's word. What cannot be read gives no strips.
    """
    try:
        numbers = [_read_numbers(each) for each in msgpack.unpackb(evidence, strict_map_key=True)["numbers"]]
    except (ValueError, KeyError, TypeError, msgpack.UnpackException):
        return ()
    strips = []
    for name, limit_name in CHUNK_LIMITS.items():
        values = [
            (f"row {row}, chunk {place}", float(getattr(chunk, name)))
            for row, _, chunks in numbers
            for place, chunk in enumerate(chunks)
        ]
        strips.append(_make_strip(name, f"{name.replace('_', ' ')}, each chunk", values, tolerance[limit_name]))
    margins = [(f"row {row}", margin) for row, margin, _ in numbers]
    strips.append(_make_strip("margin", "sampling margin, largest of each row", margins, tolerance["margin_max"]))
    return tuple(strip for strip in strips if strip.points)


def _read_numbers(raw: Any) -> tuple[int, float, list[ChunkReport]]:
    """A row's number, its largest margin, and the reports of its chunks: rows of 32-bit integers."""
    margin = float(raw["margin_max"])
    if not math.isfinite(margin):
        raise ValueError("a margin that is no number")
    values = np.frombuffer(raw["reports"], dtype="<i4").reshape(-1, len(ChunkReport._fields))
    return int(raw["row"]), margin, list(map(ChunkReport._make, values.tolist()))


def _make_strip(name: str, title: str, values: Sequence[tuple[str, float]], limit: float) -> MetricStrip:
    points = tuple(
        MetricPoint(who=who, value=value, share=_compute_share(value, limit)) for who, value in values[:POINTS_MAX]
    )
    return MetricStrip(name=name, title=title, limit=limit, points=points)


SUBMISSION_PROGRESS = {
    "waiting": "received, waiting for its draw",
    "auditing": "with its validators",
    "accepted": "accepted",
    "soft": "rejected, nobody's dishonesty",
    "hard": "rejected, provably dishonest",
}
INDEXES = {
    (False, False, False): "submissions_by_place",
    (True, False, False): "submissions_by_run",
    (False, True, False): "submissions_by_node",
    (True, True, False): "submissions_by_node",
    (False, False, True): "submissions_by_progress",
    (True, False, True): "submissions_by_progress",
    (False, True, True): "submissions_by_node",
    (True, True, True): "submissions_by_node",
}
"""Which index is walked along, by whether run, node and progress are given."""
HISTORY_MAX = 300
"""Entries about one submission: at most 16 rounds of 15 validators, in practice a dozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionsView:
    """The table of submissions."""

    run: str
    node: str
    state: str
    submissions: Rows[SubmissionSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRound:
    """One draw of validators."""

    round: int
    idx: int
    drawn_ms: int
    head_size: int
    validators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictDetail:
    """A verdict with its numbers."""

    summary: VerdictSummary
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionView:
    """A submission."""

    summary: SubmissionSummary
    owner: str
    leased_ms: int
    file_digest: str
    file_bytes: int
    rollout_root: str
    checkpoint_step: int
    checkpoint_root: str
    context_tokens: int
    drawn_ms: int | None
    settled_idx: int | None
    settled_ms: int | None
    planted: str | None
    reward: float | None
    """Mean of what the validators found; null where no verdict says it."""
    credited_idx: int | None
    is_carried: int | None
    """Credited after its step was paid, so the next payout of the run takes it along."""
    tolerance: dict[str, Any]
    """What the run allows as noise."""
    rounds: tuple[AuditRound, ...]
    verdicts: tuple[VerdictDetail, ...]
    strips: tuple[MetricStrip, ...]
    """Numbers of all verdicts against what the run allows."""
    chunk_strips: tuple[MetricStrip, ...]
    """Numbers of each chunk, from an evidence bundle, where this explorer could read one."""
    story: tuple[EntrySummary, ...]
    """Every entry about it, oldest first."""
    rollouts: RolloutsView | None
    """Null where the file is not here."""


def read_submissions(
    db: ReadTransaction, run: RunId | None, node: NodeId | None, state: str, before: int | None
) -> Rows[SubmissionSummary]:
    index = INDEXES[(run is not None, node is not None, bool(state))]
    return read_rows(db, SubmissionSummary, before=before, index=index, run=run, node=node, progress=state or None)


def read_submission(db: ReadTransaction, name: Digest) -> SubmissionView | None:
    row = db.row("SELECT * FROM submissions WHERE submission=?", name)
    if row is None:
        return None
    terms = read_terms(db, row["run"])
    given = db.rows("SELECT * FROM verdicts WHERE submission=? ORDER BY idx", name)
    verdicts = tuple(
        VerdictDetail(summary=make_row(VerdictSummary, each), metrics=json.loads(each["metrics"])) for each in given
    )
    return make_row(
        SubmissionView,
        row,
        summary=make_row(SubmissionSummary, row),
        tolerance=terms["tolerance"],
        rounds=read_rounds(db, name),
        verdicts=verdicts,
        strips=make_metric_strips([(each.summary.validator, each.metrics) for each in verdicts], terms["tolerance"]),
        chunk_strips=(),
        story=read_history(db, name),
        rollouts=None,
    )


def read_rounds(db: ReadTransaction, name: Digest) -> tuple[AuditRound, ...]:
    found = db.rows("SELECT * FROM rounds WHERE submission=? ORDER BY round", name)
    return tuple(make_row(AuditRound, each, validators=tuple(json.loads(each["validators"]))) for each in found)


def read_history(db: ReadTransaction, name: Digest) -> tuple[EntrySummary, ...]:
    """Every entry about a submission, oldest first."""
    found = db.rows(
        "SELECT entries.* FROM mentions JOIN entries ON entries.idx=mentions.idx WHERE subject=?"
        " ORDER BY mentions.idx LIMIT ?",
        name,
        HISTORY_MAX,
    )
    return tuple(make_row(EntrySummary, each) for each in found)


def read_terms(db: ReadTransaction, run: str) -> dict[str, Any]:
    terms: dict[str, Any] = json.loads(db.value("SELECT terms FROM runs WHERE run=?", run))
    return terms


SLASH_PROGRESS = {
    "proposed": "stake is in escrow, and can be appealed",
    "appealed": "other validators look again",
    "executed": "the stake is gone",
    "overturned": "stake and bond went back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashesView:
    """The table of slashes."""

    run: str
    slashes: Rows[SlashSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashView:
    """A slash, from its submission to its end."""

    summary: SlashSummary
    evidence: str
    slash_to: str
    bond_nano: int
    rounds_before: int
    """Rounds up to this one led to the slash; later ones decide the appeal."""
    step: int
    appealed_idx: int | None
    appealed_ms: int | None
    appealed_by: str | None
    appeal_reason: str | None
    ended_idx: int | None
    outcome: str | None
    """What the submission is in the end."""
    rounds: tuple[AuditRound, ...]
    verdicts: tuple[VerdictDetail, ...]
    story: tuple[EntrySummary, ...]


def read_slashes(db: ReadTransaction, run: RunId | None, before: int | None) -> Rows[SlashSummary]:
    index = "slashes_by_run" if run else "slashes_by_place"
    return read_rows(db, SlashSummary, before=before, index=index, run=run)


def read_slash(db: ReadTransaction, name: Digest) -> SlashView | None:
    row = db.row("SELECT * FROM slashes WHERE submission=?", name)
    if row is None:
        return None
    given = db.rows("SELECT * FROM verdicts WHERE submission=? ORDER BY idx", name)
    return make_row(
        SlashView,
        row,
        summary=make_row(SlashSummary, row),
        step=db.value("SELECT step FROM submissions WHERE submission=?", name),
        rounds=read_rounds(db, name),
        verdicts=tuple(VerdictDetail(summary=make_row(VerdictSummary, each), metrics={}) for each in given),
        story=read_history(db, name),
    )
