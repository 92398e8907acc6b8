"""Nodes: the table of all, and everything about one."""

import json
import sqlite3
from dataclasses import dataclass

from prime_explorer.constants import ROWS, STEPS_CHARTED
from prime_explorer.live import Presence, RefusedFile
from prime_explorer.pages.checkpoints import ContributionRow
from prime_explorer.pages.tables import Rows, SlashRow, SubmissionRow, VerdictRow, read_rows
from prime_explorer.reading import Db, as_row
from prime_protocol.entries import NodeStatus, Role
from prime_protocol.ids import NodeId

ORDERS = {
    "units": "verified units",
    "accepted": "accepted submissions",
    "earned": "earnings",
    "stake": "stake",
}
COLUMNS = {"units": "units", "accepted": "accepted", "earned": "earned_nano", "stake": "stake_nano"}
RUNS_SHOWN = 10
ROLES = {str(role): f"is_{role}" for role in Role}
STATUSES = {str(status): str(status) for status in NodeStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node in one line."""

    node: str
    owner: str
    name: str
    roles: tuple[str, ...]
    status: str
    units: int
    accepted: int
    soft: int
    hard: int
    earned_nano: int
    stake_nano: int
    rollouts: int
    tokens: int
    verdicts: int
    upheld: int
    faults: int
    last_ms: int
    """Its newest entry in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesView:
    """The table of nodes."""

    order: str
    role: str
    status: str
    owner: str
    query: str
    nodes: Rows[NodeRow]
    presence: dict[str, Presence] | None
    """By address; null where this explorer does not know who is there."""
    uptime: dict[str, float]
    """By address: share of the minutes since it was first seen that it was online, as far as this explorer looked."""
    rank: int
    """Place of the first row, from 1; 0 where the table is filtered or goes on from another page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeRow:
    """What stood behind a node after an entry."""

    idx: int
    at_ms: int
    kind: str
    stake_nano: int
    unbonding_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayoutRow:
    """What a node was paid with a step."""

    idx: int
    at_ms: int
    run: str
    step: int
    owner: str
    amount_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredRow:
    """A lease that ended without a submission."""

    idx: int
    run: str
    lease: int
    step: int
    slots: int
    granted_ms: int
    ended_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node."""

    summary: NodeRow
    reason: str
    version: int
    hardware: str
    addresses: tuple[str, ...]
    delegated_until_ms: int | None
    unbonding_nano: int
    owner_balance_nano: int
    streak: int
    leases: int
    submitted: int
    first_idx: int
    first_ms: int
    presence: Presence | None
    sent_bytes: int | None
    """Weights passed on since it was started, by its own word; null where that is not known."""
    uptime: float | None
    """Share of the minutes since it was first seen that it was online; null where nobody looked."""
    contributions: tuple[ContributionRow, ...]
    """Newest steps, oldest first."""
    submissions: Rows[SubmissionRow]
    unanswered: tuple[UnansweredRow, ...]
    refused: tuple[RefusedFile, ...] | None
    """Files that intake refused; null where this explorer cannot know."""
    verdicts: Rows[VerdictRow]
    slashes: Rows[SlashRow]
    stakes: tuple[StakeRow, ...]
    payouts: tuple[PayoutRow, ...]


def node_row(row: sqlite3.Row) -> NodeRow:
    return as_row(NodeRow, row, roles=tuple(role for role, column in ROLES.items() if row[column]))


def read_nodes(
    db: Db,
    *,
    order: str,
    role: str,
    status: str,
    owner: NodeId | None,
    after: tuple[int, bytes] | None,
) -> Rows[NodeRow]:
    """Those with the most first."""
    column = COLUMNS[order]
    conditions = ["1"]
    values: list[object] = []
    if role:
        conditions.append(f"{ROLES[role]}=1")
    for name, value in (("status", status), ("owner", owner)):
        if value:
            conditions.append(f"{name}=?")
            values.append(value)
    if after:
        conditions.append(f"({column}, node) < (?, ?)")
        values += after
    query = f"SELECT * FROM nodes WHERE {' AND '.join(conditions)} ORDER BY {column} DESC, node DESC LIMIT ?"
    found = db.rows(query, *values, ROWS + 1)
    rows = tuple(map(node_row, found[:ROWS]))
    last = f"{found[ROWS - 1][column]}.{rows[-1].node}" if len(found) > ROWS else None
    return Rows(rows, last)


def read_node(db: Db, node: NodeId) -> NodeView | None:
    row = db.row("SELECT * FROM nodes WHERE node=?", node)
    if row is None:
        return None
    stakes = db.rows("SELECT * FROM stakes WHERE node=? ORDER BY idx DESC LIMIT ?", node, ROWS)
    payouts = db.rows("SELECT * FROM payouts WHERE node=? ORDER BY idx DESC LIMIT ?", node, ROWS)
    ended = db.rows("SELECT * FROM leases WHERE node=? AND state='ended' ORDER BY idx DESC LIMIT ?", node, 10)
    return as_row(
        NodeView,
        row,
        summary=node_row(row),
        addresses=tuple(json.loads(row["addresses"])),
        owner_balance_nano=db.value("SELECT balance_nano FROM accounts WHERE account=?", row["owner"]) or 0,
        submitted=row["submissions"],
        presence=None,
        sent_bytes=None,
        uptime=None,
        contributions=read_contributions(db, node),
        submissions=read_rows(db, SubmissionRow, limit=10, node=node),
        unanswered=tuple(as_row(UnansweredRow, each) for each in ended),
        refused=None,
        verdicts=read_rows(db, VerdictRow, limit=10, validator=node),
        slashes=read_rows(db, SlashRow, limit=5, node=node),
        stakes=tuple(as_row(StakeRow, each) for each in stakes),
        payouts=tuple(as_row(PayoutRow, each) for each in payouts),
    )


def read_contributions(db: Db, node: NodeId) -> tuple[ContributionRow, ...]:
    """Newest steps of the newest runs, oldest first."""
    found: list[ContributionRow] = []
    for run in db.rows("SELECT run FROM runs ORDER BY idx DESC LIMIT ?", RUNS_SHOWN):
        query = "SELECT * FROM contributions WHERE node=? AND run=? ORDER BY step DESC LIMIT ?"
        found += [as_row(ContributionRow, row) for row in db.rows(query, node, run["run"], STEPS_CHARTED - len(found))]
    return tuple(reversed(found))


def read_names(db: Db, text: str, limit: int) -> tuple[NodeRow, ...]:
    """Nodes whose name, or a word of it, begins so."""
    low, high = text, text + "\U0010ffff"
    found = db.rows(
        "SELECT nodes.* FROM names JOIN nodes ON nodes.node=names.node WHERE term>=? AND term<? ORDER BY term LIMIT ?",
        low,
        high,
        limit,
    )
    return tuple(node_row(row) for row in found)
