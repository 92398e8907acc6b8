"""Runs and checkpoints: progress, waiting times, metrics, lineage and contributions."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prime_explorer.config import LINEAGE_NODES_DRAWN, ROWS_PER_PAGE, STEPS_CHARTED, STEPS_DRAWN
from prime_explorer.index.store import ReadTransaction, format_id, make_row
from prime_explorer.pages.live import NodeCounts
from prime_explorer.pages.overview import RunCard, read_run_card
from prime_explorer.pages.tables import EntrySummary, Rows, SubmissionSummary, read_rows
from prime_explorer.sources import ManifestFacts
from prime_protocol.proofs.class_bounds import BOUNDED_NUMBERS
from prime_protocol.wire.ids import RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """One step, from its checkpoint to its payout. Times are null for what has not happened yet."""

    step: int
    idx: int
    root: str
    manifest: str
    published_ms: int
    beacon_ms: int | None
    first_lease_ms: int | None
    first_submitted_ms: int | None
    last_submitted_ms: int | None
    first_drawn_ms: int | None
    last_settled_ms: int | None
    paid_ms: int | None
    paid_nano: int
    slots: int
    slots_done: int
    slots_held: int
    leases: int
    expired: int
    submissions: int
    accepted: int
    invalid: int
    fraudulent: int
    audited: int
    rollouts: int
    tokens: int
    units: int
    nodes: int
    reward: float | None
    """Mean reward that validators found, over accepted submissions; null if no verdict has it."""
    held_out: float | None
    """Mean reward on held-out problems, as the trainer reported; null if it was not evaluated."""
    entropy: float | None
    mismatch_kl: float | None
    trained_on: int
    lag_mean: float | None
    """Mean lag of the submissions that the checkpoint was trained on."""
    lag_max: int | None
    ready_ms: int | None
    """When the last submission that the checkpoint was trained on was settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRates:
    """Shares of a run's submissions; null before the first."""

    audited: float | None
    invalid: float | None
    fraudulent: float | None
    overturned: float | None
    """Share of ended slashes that were overturned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUpgrade:
    """A planned protocol version."""

    version_min: int
    version_next: int
    upgrade_by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimes:
    """Where the time between checkpoints went, over some steps, according to the log."""

    steps: int
    for_work_ms: int
    """From a checkpoint to the last outcome that the next one was trained on: the trainer waits for rollouts."""
    for_trainer_ms: int
    """From then to the next checkpoint: rollouts wait for the trainer."""
    for_weights_ms: int
    """From a checkpoint to its first lease, a part of for_work_ms: nodes wait for weights and a beacon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSize:
    """Size of a checkpoint, from its manifest."""

    step: int
    kind: str
    transport_bytes: int
    full_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPair:
    """What counts as noise between two engine classes."""

    generating: str
    judging: str
    numbers: dict[str, float]
    """Those that are narrower than the run's tolerance."""


def list_class_pairs(terms: dict[str, Any]) -> tuple[ClassPair, ...]:
    """Empty for a run that does not tell classes apart."""
    table = terms.get("class_bounds", {})
    return tuple(
        ClassPair(
            generating=table["classes"][pair["generating"]],
            judging=table["classes"][pair["judging"]],
            numbers={
                name: number
                for name, number in zip(BOUNDED_NUMBERS, pair["numbers"], strict=True)
                if number < terms["tolerance"][name]
            },
        )
        for pair in table.get("pairs", ())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run."""

    summary: RunCard
    terms: dict[str, Any]
    class_bounds: tuple[ClassPair, ...]
    """Bounds of pairs of engine classes, where they are narrower than the tolerance."""
    upgrade: PlannedUpgrade | None
    online_counts: NodeCounts | None
    submissions: int
    accepted: int
    invalid: int
    fraudulent: int
    expired: int
    units: int
    paid_nano: int
    pool_nano: int
    file_bytes: int
    verdicts: int
    validators: int
    leases_open: int
    submissions_open: int
    slashes: int
    slashes_open: int
    rates: RunRates
    drawn: tuple[StepSummary, ...]
    """Newest steps, oldest first."""
    waits: WaitTimes | None
    """Over the drawn steps; null before two of them have data."""
    charted: tuple[StepSummary, ...]
    weights: tuple[CheckpointSize, ...]
    """Sizes of the newest checkpoints whose manifests are available."""
    steps: Rows[StepSummary]
    notices: Rows[EntrySummary]
    """When the run was created, changed, paused."""


def read_run(db: ReadTransaction, run: RunId, before: int | None, online_counts: NodeCounts | None) -> RunView | None:
    row = db.row("SELECT * FROM runs WHERE run=?", run)
    if row is None:
        return None
    terms = json.loads(row["terms"])
    charted = tuple(reversed(read_steps(db, run, None, STEPS_CHARTED).rows))
    return make_row(
        RunView,
        row,
        summary=read_run_card(db, row),
        terms=terms,
        class_bounds=list_class_pairs(terms),
        upgrade=find_upgrade(terms),
        online_counts=online_counts,
        rates=compute_rates(row),
        charted=charted,
        drawn=charted[-STEPS_DRAWN:],
        waits=compute_waits(charted[-STEPS_DRAWN:]),
        weights=(),
        steps=read_steps(db, run, before, ROWS_PER_PAGE),
        notices=_read_notices(db, run),
    )


def _read_notices(db: ReadTransaction, run: RunId) -> Rows[EntrySummary]:
    found = [
        row
        for kind in ("RunCreated", "RunUpdated", "RunStatusSet")
        for row in read_rows(db, EntrySummary, limit=5, index="entries_by_run_and_kind", run=run, kind=kind).rows
    ]
    return Rows(tuple(sorted(found, key=lambda row: row.idx, reverse=True)[:5]))


def read_steps(db: ReadTransaction, run: RunId, before: int | None, limit: int) -> Rows[StepSummary]:
    """Newest first."""
    last = 2**62 if before is None else before
    found = db.rows("SELECT * FROM steps WHERE run=? AND step<? ORDER BY step DESC LIMIT ?", run, last, limit + 1)
    rows = tuple(make_step_summary(row) for row in found[:limit])
    return Rows(rows, str(rows[-1].step) if len(found) > limit else None)


def make_step_summary(row: sqlite3.Row) -> StepSummary:
    return make_row(
        StepSummary,
        row,
        reward=row["reward_sum"] / row["rewards"] if row["rewards"] else None,
        lag_mean=row["lag_sum"] / row["trained_on"] if row["trained_on"] else None,
    )


def compute_rates(row: sqlite3.Row) -> RunRates:
    settled = row["accepted"] + row["invalid"] + row["fraudulent"]
    return RunRates(
        audited=_share(row["audited"], row["audited"] + row["undrawn"]),
        invalid=_share(row["invalid"], settled),
        fraudulent=_share(row["fraudulent"], settled),
        overturned=_share(row["overturned"], row["overturned"] + row["executed"]),
    )


def compute_waits(steps: Sequence[StepSummary]) -> WaitTimes | None:
    pairs = [(step, later) for step, later in pairwise(steps) if later.ready_ms is not None]
    if not pairs:
        return None
    ready = [(step, later, max(step.published_ms, later.ready_ms or 0)) for step, later in pairs]
    return WaitTimes(
        steps=len(pairs),
        for_work_ms=sum(at - step.published_ms for step, _, at in ready),
        for_trainer_ms=sum(later.published_ms - at for _, later, at in ready),
        for_weights_ms=sum(max(0, (step.first_lease_ms or step.published_ms) - step.published_ms) for step, _ in pairs),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def find_upgrade(terms: dict[str, Any]) -> PlannedUpgrade | None:
    if not terms["upgrade_by_ms"]:
        return None
    return PlannedUpgrade(
        version_min=terms["version_min"], version_next=terms["version_next"], upgrade_by_ms=terms["upgrade_by_ms"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRow:
    """What one node contributed to a checkpoint."""

    node: str
    submissions: int
    rollouts: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionRow:
    """What one node did in a step."""

    node: str
    run: str
    step: int
    submissions: int
    accepted: int
    invalid: int
    fraudulent: int
    rollouts: int
    tokens: int
    units: int
    paid_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A checkpoint."""

    run: str
    model: str
    trainer: str
    step: StepSummary
    metrics: dict[str, float]
    """The trainer's metrics of the step; empty before it reported them."""
    measured_idx: int | None
    """The entry that has them."""
    beacon: str | None
    previous_root: str | None
    is_latest: bool
    lineage: tuple[LineageRow, ...]
    """All nodes whose rollouts it was trained on, most rollouts first."""
    trained: Rows[SubmissionSummary]
    """The submissions it was trained on."""
    contributions: tuple[ContributionRow, ...]
    """Work of this step: made with this checkpoint, trained into later ones."""
    manifest: ManifestFacts | None
    """From the manifest, if it is available."""
    expired: dict[str, int]
    """When each file of this page that is deleted has expired, by digest, in milliseconds."""


def read_checkpoint(db: ReadTransaction, run: RunId, step: int, before: int | None) -> CheckpointView | None:
    row = db.row("SELECT * FROM steps WHERE run=? AND step=?", run, step)
    if row is None:
        return None
    owner = db.row("SELECT terms, latest_step FROM runs WHERE run=?", run)
    assert owner is not None, "a step has a run"
    terms: dict[str, Any] = json.loads(owner["terms"])
    return CheckpointView(
        run=run,
        model=terms["model"],
        trainer=terms["trainer"],
        step=make_step_summary(row),
        metrics=json.loads(row["metrics"] or "{}"),
        measured_idx=row["measured_idx"],
        beacon=format_id(row["beacon"]),
        previous_root=format_id(db.value("SELECT root FROM steps WHERE run=? AND step=?", run, step - 1)),
        is_latest=owner["latest_step"] == step,
        lineage=_read_lineage(db, run, step),
        trained=read_rows(
            db, SubmissionSummary, before=before, index="submissions_by_checkpoint", run=run, trained_into=step
        ),
        contributions=read_step_contributions(db, run, step),
        manifest=None,
        expired={},
    )


def _read_lineage(db: ReadTransaction, run: RunId, step: int) -> tuple[LineageRow, ...]:
    """A checkpoint names at most 1,500 submissions, so the query needs no limit."""
    found = db.rows(
        "SELECT node, count(*) AS submissions, sum(slots*samples) AS rollouts, sum(output_tokens) AS tokens"
        " FROM submissions WHERE run=? AND trained_into=? GROUP BY node ORDER BY rollouts DESC, node",
        run,
        step,
    )
    return tuple(make_row(LineageRow, row) for row in found)


def read_step_contributions(db: ReadTransaction, run: RunId, step: int) -> tuple[ContributionRow, ...]:
    found = db.rows(
        "SELECT * FROM contributions WHERE run=? AND step=? ORDER BY units DESC, node LIMIT ?",
        run,
        step,
        4 * LINEAGE_NODES_DRAWN,
    )
    return tuple(make_row(ContributionRow, row) for row in found)
