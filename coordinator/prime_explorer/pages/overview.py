"""The network at a glance, and the nodes that serve weights."""

import json
import sqlite3
from dataclasses import dataclass

from prime_explorer.index.store import ReadTransaction, make_row
from prime_explorer.pages.live import NodeCounts, RulesView, ServingNode
from prime_explorer.pages.tables import EntrySummary, Rows, SlashSummary, SubmissionSummary, read_rows
from prime_protocol.wire.ids import NodeId, RunId

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
    leases_open: int
    submissions_open: int
    slashes_open: int
    validators: int
    """Nodes that can be drawn."""
    pool_nano: int
    calibration: str
    """On what the bounds of its audits were measured; empty where they were not."""
    calibrated_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The network."""

    nodes: int
    online_counts: NodeCounts | None
    entries: int
    newest_ms: int
    rollouts: int
    """Verified, in all runs."""
    tokens: int
    deposited_nano: int
    staked_nano: int
    burned_nano: int
    runs: tuple[RunCard, ...]
    submissions: Rows[SubmissionSummary]
    slashes: Rows[SlashSummary]
    newest: Rows[EntrySummary]


def read_overview(db: ReadTransaction, online_counts: NodeCounts | None) -> Overview:
    facts = db.read_meta()
    found = db.rows("SELECT * FROM runs ORDER BY idx DESC LIMIT ?", RUNS_SHOWN)
    work = db.row("SELECT total(rollouts) AS rollouts, total(tokens) AS tokens FROM runs")
    assert work is not None, "an aggregate has a row"
    return Overview(
        nodes=facts.get("nodes", 0),
        online_counts=online_counts,
        entries=facts.get("size", 0),
        newest_ms=facts.get("at_ms", 0),
        rollouts=int(work["rollouts"]),
        tokens=int(work["tokens"]),
        deposited_nano=facts.get("deposited_nano", 0),
        staked_nano=facts.get("staked_nano", 0),
        burned_nano=facts.get("burned_nano", 0),
        runs=tuple(read_run_card(db, row) for row in found),
        submissions=read_rows(db, SubmissionSummary, limit=8),
        slashes=read_rows(db, SlashSummary, limit=5),
        newest=read_rows(db, EntrySummary, limit=8),
    )


def read_runs(db: ReadTransaction, before: int | None, limit: int) -> Rows[RunCard]:
    """Newest first."""
    last = 2**62 if before is None else before
    found = db.rows("SELECT * FROM runs WHERE idx<? ORDER BY idx DESC LIMIT ?", last, limit + 1)
    rows = tuple(read_run_card(db, row) for row in found[:limit])
    return Rows(rows, str(found[limit - 1]["idx"]) if len(found) > limit else None)


def read_run_card(db: ReadTransaction, row: sqlite3.Row) -> RunCard:
    terms = json.loads(row["terms"])
    step = db.row("SELECT * FROM steps WHERE run=? AND step=?", row["run"], row["latest_step"])
    return make_row(
        RunCard,
        row,
        model=terms["model"],
        task_set=terms["task_set"],
        slots=step["slots"] if step else terms["slots_per_step"],
        slots_done=step["slots_done"] if step else 0,
        slots_held=step["slots_held"] if step else 0,
        nodes=step["nodes"] if step else 0,
        calibration=terms["calibration"],
        calibrated_at_ms=terms["calibrated_at_ms"] or None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """The rules of the log, and the nodes that serve the weights of one run."""

    rules: RulesView | None
    """Null while the index is empty."""
    run: str
    runs: tuple[str, ...]
    serving: tuple[ServingNode, ...] | None
    """Null if this explorer has no live state."""
    ahead: int
    """Number of serving nodes that have the newest weights."""
    latest_step: int
    latest_manifest: str | None
    registered: int
    relays: int
    """Nodes that registered as relays."""
    trainer: str | None


def read_rules(db: ReadTransaction) -> RulesView | None:
    plain = db.read_meta().get("rules")
    return RulesView(**json.loads(plain)) if plain else None


def read_network(db: ReadTransaction, run: RunId | None) -> NetworkView | None:
    """For the given run, or for the newest one."""
    runs = tuple(row["run"] for row in db.rows("SELECT run FROM runs ORDER BY idx DESC LIMIT 20"))
    name = run or (RunId(runs[0]) if runs else None)
    if name is None:
        return NetworkView(
            rules=read_rules(db),
            run="",
            runs=(),
            serving=(),
            ahead=0,
            latest_step=-1,
            latest_manifest=None,
            registered=0,
            relays=0,
            trainer=None,
        )
    row = db.row("SELECT latest_step, json_extract(terms, '$.trainer') AS trainer FROM runs WHERE run=?", name)
    if row is None:
        return None
    manifest = db.value("SELECT manifest FROM steps WHERE run=? AND step=?", name, row["latest_step"])
    return NetworkView(
        rules=read_rules(db),
        run=name,
        runs=runs,
        serving=None,
        ahead=0,
        latest_step=row["latest_step"],
        latest_manifest="0x" + manifest.hex() if manifest else None,
        registered=db.read_meta().get("nodes", 0),
        relays=db.value("SELECT count(*) FROM nodes WHERE is_relay=1"),
        trainer=str(NodeId.parse(row["trainer"])),
    )
