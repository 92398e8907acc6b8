"""Submissions: the table of all, and everything about one: slots, judgement, rollouts, what it became."""

import json
from dataclasses import dataclass
from typing import Any

from prime_explorer.margins import Strip, compare_metrics
from prime_explorer.pages.tables import EntryRow, Rows, SubmissionRow, VerdictRow, read_rows
from prime_explorer.reading import Db, as_row
from prime_explorer.rollout_texts import RolloutsShown
from prime_protocol.ids import Digest, NodeId, RunId

PROGRESS = {
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
STORY_MAX = 300
"""Entries about one submission: at most 16 rounds of 15 validators, in practice a dozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionsView:
    """The table of submissions."""

    run: str
    node: str
    state: str
    submissions: Rows[SubmissionRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One draw of validators."""

    round: int
    idx: int
    drawn_ms: int
    head_size: int
    validators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictDetail:
    """A verdict with its numbers."""

    summary: VerdictRow
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionView:
    """A submission."""

    summary: SubmissionRow
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
    rounds: tuple[RoundRow, ...]
    verdicts: tuple[VerdictDetail, ...]
    strips: tuple[Strip, ...]
    """Numbers of all verdicts against what the run allows."""
    chunk_strips: tuple[Strip, ...]
    """Numbers of each chunk, from an evidence bundle, where this explorer could read one."""
    story: tuple[EntryRow, ...]
    """Every entry about it, oldest first."""
    rollouts: RolloutsShown | None
    """Null where the file is not here."""


def read_submissions(
    db: Db, run: RunId | None, node: NodeId | None, state: str, before: int | None
) -> Rows[SubmissionRow]:
    index = INDEXES[(run is not None, node is not None, bool(state))]
    return read_rows(db, SubmissionRow, before=before, index=index, run=run, node=node, progress=state or None)


def read_submission(db: Db, name: Digest) -> SubmissionView | None:
    row = db.row("SELECT * FROM submissions WHERE submission=?", name)
    if row is None:
        return None
    terms = read_terms(db, row["run"])
    given = db.rows("SELECT * FROM verdicts WHERE submission=? ORDER BY idx", name)
    verdicts = tuple(
        VerdictDetail(summary=as_row(VerdictRow, each), metrics=json.loads(each["metrics"])) for each in given
    )
    return as_row(
        SubmissionView,
        row,
        summary=as_row(SubmissionRow, row),
        tolerance=terms["tolerance"],
        rounds=read_rounds(db, name),
        verdicts=verdicts,
        strips=compare_metrics([(each.summary.validator, each.metrics) for each in verdicts], terms["tolerance"]),
        chunk_strips=(),
        story=read_story(db, name),
        rollouts=None,
    )


def read_rounds(db: Db, name: Digest) -> tuple[RoundRow, ...]:
    found = db.rows("SELECT * FROM rounds WHERE submission=? ORDER BY round", name)
    return tuple(as_row(RoundRow, each, validators=tuple(json.loads(each["validators"]))) for each in found)


def read_story(db: Db, name: Digest) -> tuple[EntryRow, ...]:
    """Every entry about a submission, oldest first."""
    found = db.rows(
        "SELECT entries.* FROM mentions JOIN entries ON entries.idx=mentions.idx WHERE subject=?"
        " ORDER BY mentions.idx LIMIT ?",
        name,
        STORY_MAX,
    )
    return tuple(as_row(EntryRow, each) for each in found)


def read_terms(db: Db, run: str) -> dict[str, Any]:
    terms: dict[str, Any] = json.loads(db.value("SELECT terms FROM runs WHERE run=?", run))
    return terms
