"""Submissions and slashes: tables, and everything about one submission or slash.

A strip shows one metric of an audit against the run's limit.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from prime_explorer.config import ROWS_PER_PAGE
from prime_explorer.index.store import ReadTransaction, make_row
from prime_explorer.pages.rollouts import RolloutsView
from prime_explorer.pages.tables import EntrySummary, Rows, SlashSummary, SubmissionSummary, VerdictSummary, read_rows
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.class_bounds import BOUNDED_NUMBERS
from prime_protocol.proofs.toploc_verify import ChunkReport
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step

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
"""Metrics of a verdict, with the run's tolerance that limits each, and a title."""
CHUNK_LIMITS = {
    "exponent_mismatches": "exponent_mismatches_max",
    "sign_mismatches": "sign_mismatches_max",
    "mantissa_error_median": "mantissa_error_median_max",
}
POINTS_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One value of one validator, or of one chunk."""

    who: str
    value: float
    share: float
    """Share of the limit: above 1 exceeds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricStrip:
    """All values of one metric."""

    name: str
    title: str
    limit: float
    points: tuple[MetricPoint, ...]


def make_metric_strips(
    verdicts: Sequence[tuple[str, dict[str, float]]], terms: dict[str, Any]
) -> tuple[MetricStrip, ...]:
    """One strip per metric that the run limits, with one point per verdict: its share of what its classes allow."""
    strips = []
    for name, (limit_name, title) in METRIC_LIMITS.items():
        known = [(who, metrics) for who, metrics in verdicts if math.isfinite(metrics.get(name, math.nan))]
        points = tuple(
            MetricPoint(
                who=who,
                value=metrics[name],
                share=_compute_share(metrics[name], float(find_bounds(terms, metrics).get(limit_name, 0))),
            )
            for who, metrics in known[:POINTS_MAX]
        )
        if points:
            limit = float(terms["tolerance"].get(limit_name, 0))
            strips.append(MetricStrip(name=name, title=title, limit=limit, points=points))
    return tuple(strips)


def find_bounds(terms: dict[str, Any], metrics: dict[str, float]) -> dict[str, Any]:
    """The bounds of the two engine classes that a verdict names; the run's tolerance where it names none."""
    named = metrics.get("generating_class", 0) - 1, metrics.get("judging_class", 0) - 1
    for pair in terms.get("class_bounds", {}).get("pairs", ()):
        if (pair["generating"], pair["judging"]) == named:
            return dict(zip(BOUNDED_NUMBERS, pair["numbers"], strict=True))
    return dict(terms["tolerance"])


def _compute_share(value: float, limit: float) -> float:
    return value / limit if limit > 0 else (2.0 if value > 0 else 0.0)


def read_chunk_strips(evidence: bytes, tolerance: dict[str, Any]) -> tuple[MetricStrip, ...]:
    """From an evidence bundle of prime-node: one strip per metric, with one point per chunk or row.

    A bundle is a validator's claim. An unreadable bundle gives no strips.
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
        raise ValueError("a margin is not finite")
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
    "invalid": "rejected, without fraud",
    "fraudulent": "rejected, provably dishonest",
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
"""The SQL index to use, by whether run, node and progress are given."""
HISTORY_MAX = 300
"""Entries about one submission: at most 16 rounds of 15 validators, usually a dozen."""


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
    randomness_round: int
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
    reward: float | None
    """Mean reward that the validators found; null if no verdict has it."""
    credited_idx: int | None
    is_carried: int | None
    """Credited after its step was paid, so the next payout of the run includes it."""
    finding_evidence: str | None
    """The evidence bundle of the newest finding about it; null if there is no finding."""
    tolerance: dict[str, Any]
    """The tolerances of the run."""
    rounds: tuple[AuditRound, ...]
    verdicts: tuple[VerdictDetail, ...]
    strips: tuple[MetricStrip, ...]
    """Metrics of all verdicts against the run's limits."""
    chunk_strips: tuple[MetricStrip, ...]
    """Values of each chunk from an evidence bundle, if one is available."""
    history: tuple[EntrySummary, ...]
    """Every entry about it, oldest first."""
    rollouts: RolloutsView | None
    """Null if the file is not available."""
    expired: dict[str, int]
    """When each file of this page that is deleted has expired, by digest, in milliseconds."""


def read_submissions(
    db: ReadTransaction,
    run: RunId | None,
    node: NodeId | None,
    state: str,
    before: int | None,
    limit: int = ROWS_PER_PAGE,
    step: Step | None = None,
) -> Rows[SubmissionSummary]:
    index = INDEXES[(run is not None, node is not None, bool(state))]
    if step is not None:
        if run is None:
            raise RemoteError("run", "is missing: a step belongs to a run")
        index = "submissions_by_step" if node is None else index
    where = {"run": run, "node": node, "step": step, "progress": state or None}
    return read_rows(db, SubmissionSummary, before=before, limit=limit, index=index, **where)


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
        strips=make_metric_strips([(each.summary.validator, each.metrics) for each in verdicts], terms),
        chunk_strips=(),
        history=read_history(db, name),
        rollouts=None,
        expired={},
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
    "appealed": "other validators check again",
    "executed": "the stake is slashed",
    "overturned": "stake and bond were returned",
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
    """The final outcome of the submission."""
    rounds: tuple[AuditRound, ...]
    verdicts: tuple[VerdictDetail, ...]
    history: tuple[EntrySummary, ...]
    expired: dict[str, int]
    """When each file of this page that is deleted has expired, by digest, in milliseconds."""


def read_slashes(
    db: ReadTransaction, run: RunId | None, before: int | None, limit: int = ROWS_PER_PAGE
) -> Rows[SlashSummary]:
    index = "slashes_by_run" if run else "slashes_by_place"
    return read_rows(db, SlashSummary, before=before, limit=limit, index=index, run=run)


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
        history=read_history(db, name),
        expired={},
    )
