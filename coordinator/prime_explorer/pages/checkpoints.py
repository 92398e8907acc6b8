"""A checkpoint: what it was trained on and by whom, how it travels, and what became of its step's work."""

import json
from dataclasses import dataclass
from typing import Any

from prime_explorer.constants import LINEAGE_NODES_DRAWN
from prime_explorer.manifests import ManifestFacts
from prime_explorer.pages.runs import StepRow, step_row
from prime_explorer.pages.tables import Rows, SubmissionRow, read_rows
from prime_explorer.reading import Db, as_row, plain
from prime_protocol.ids import RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRow:
    """What one node gave to a checkpoint."""

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
    soft: int
    hard: int
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
    step: StepRow
    metrics: dict[str, float]
    """The trainer's numbers of the step; empty before it has published them."""
    measured_idx: int | None
    """The entry that has them."""
    beacon: str | None
    previous_root: str | None
    is_latest: bool
    lineage: tuple[LineageRow, ...]
    """All nodes whose work it was trained on, those with the most rollouts first."""
    trained: Rows[SubmissionRow]
    """The submissions it was trained on."""
    contributions: tuple[ContributionRow, ...]
    """Work of this step: made with this checkpoint, trained into later ones."""
    manifest: ManifestFacts | None
    """What the manifest says, where this explorer could read it."""


def read_checkpoint(db: Db, run: RunId, step: int, before: int | None) -> CheckpointView | None:
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
        step=step_row(row),
        metrics=json.loads(row["metrics"] or "{}"),
        measured_idx=row["measured_idx"],
        beacon=plain(row["beacon"]),
        previous_root=plain(db.value("SELECT root FROM steps WHERE run=? AND step=?", run, step - 1)),
        is_latest=owner["latest_step"] == step,
        lineage=_read_lineage(db, run, step),
        trained=read_rows(
            db, SubmissionRow, before=before, index="submissions_by_checkpoint", run=run, trained_into=step
        ),
        contributions=read_contributions(db, run, step),
        manifest=None,
    )


def _read_lineage(db: Db, run: RunId, step: int) -> tuple[LineageRow, ...]:
    """A checkpoint names at most 1,500 submissions."""
    found = db.rows(
        "SELECT node, count(*) AS submissions, sum(slots*samples) AS rollouts, sum(output_tokens) AS tokens"
        " FROM submissions WHERE run=? AND trained_into=? GROUP BY node ORDER BY rollouts DESC, node",
        run,
        step,
    )
    return tuple(as_row(LineageRow, row) for row in found)


def read_contributions(db: Db, run: RunId, step: int) -> tuple[ContributionRow, ...]:
    found = db.rows(
        "SELECT * FROM contributions WHERE run=? AND step=? ORDER BY units DESC, node LIMIT ?",
        run,
        step,
        4 * LINEAGE_NODES_DRAWN,
    )
    return tuple(as_row(ContributionRow, row) for row in found)
