"""The first page: the network at a glance."""

import json
import sqlite3
from dataclasses import dataclass

from prime_explorer.live import Attendance
from prime_explorer.pages.tables import EntryRow, Rows, SlashRow, SubmissionRow, read_rows
from prime_explorer.reading import Db, as_row

RUNS_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """A run in a few numbers."""

    run: str
    status: str
    model: str
    task_set: str
    latest_step: int
    slots: int
    slots_done: int
    slots_held: int
    rollouts: int
    tokens: int
    submissions: int
    accepted: int
    nodes: int
    """Nodes that submitted in the latest step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The network."""

    nodes: int
    attendance: Attendance | None
    entries: int
    newest_ms: int
    rollouts: int
    """Verified, in all runs."""
    tokens: int
    deposited_nano: int
    staked_nano: int
    burned_nano: int
    runs: tuple[RunCard, ...]
    submissions: Rows[SubmissionRow]
    slashes: Rows[SlashRow]
    newest: Rows[EntryRow]


def read_overview(db: Db, attendance: Attendance | None) -> Overview:
    facts = db.facts()
    found = db.rows("SELECT * FROM runs ORDER BY idx DESC LIMIT ?", RUNS_SHOWN)
    work = db.row("SELECT total(rollouts) AS rollouts, total(tokens) AS tokens FROM runs")
    assert work is not None, "an aggregate has a row"
    return Overview(
        nodes=facts.get("nodes", 0),
        attendance=attendance,
        entries=facts.get("size", 0),
        newest_ms=facts.get("at_ms", 0),
        rollouts=int(work["rollouts"]),
        tokens=int(work["tokens"]),
        deposited_nano=facts.get("deposited_nano", 0),
        staked_nano=facts.get("staked_nano", 0),
        burned_nano=facts.get("burned_nano", 0),
        runs=tuple(read_card(db, row) for row in found),
        submissions=read_rows(db, SubmissionRow, limit=8),
        slashes=read_rows(db, SlashRow, limit=5),
        newest=read_rows(db, EntryRow, limit=8),
    )


def read_card(db: Db, row: sqlite3.Row) -> RunCard:
    terms = json.loads(row["terms"])
    step = db.row("SELECT * FROM steps WHERE run=? AND step=?", row["run"], row["latest_step"])
    return as_row(
        RunCard,
        row,
        model=terms["model"],
        task_set=terms["task_set"],
        slots=step["slots"] if step else terms["slots_per_step"],
        slots_done=step["slots_done"] if step else 0,
        slots_held=step["slots_held"] if step else 0,
        nodes=step["nodes"] if step else 0,
    )
