"""Nodes and accounts: the table of nodes, one node, and one address that is not a node."""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from prime_explorer.config import ROWS_PER_PAGE, SEARCH_RESULTS_MAX, STEPS_CHARTED
from prime_explorer.index.store import ReadTransaction, make_row
from prime_explorer.pages.live import LiveNodeWork, NodePresence, RefusedFile
from prime_explorer.pages.runs import ContributionRow
from prime_explorer.pages.tables import (
    EntrySummary,
    LeaseSummary,
    Rows,
    SlashSummary,
    SubmissionSummary,
    VerdictSummary,
    read_rows,
)
from prime_protocol.constants import LEASES_OPEN_MAX
from prime_protocol.ledger.entries import NodeStatus, Role
from prime_protocol.wire.ids import NodeId

NODE_ORDERS = {
    "units": "verified units",
    "accepted": "accepted submissions",
    "earned": "earnings",
    "stake": "stake",
}
ORDER_COLUMNS = {"units": "units", "accepted": "accepted", "earned": "earned_nano", "stake": "stake_nano"}
RUNS_SHOWN = 10
ROLE_COLUMNS = {str(role): f"is_{role}" for role in Role}
NODE_PHASES = {"online": "online", "late": "late", "lost": "lost"}
NODE_STATUSES = {str(status): str(status) for status in NodeStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCard:
    """A node in one line."""

    node: str
    owner: str
    name: str
    roles: tuple[str, ...]
    status: str
    units: int
    accepted: int
    invalid: int
    fraudulent: int
    earned_nano: int
    stake_nano: int
    rollouts: int
    tokens: int
    verdicts: int
    upheld: int
    faults: int
    last_ms: int
    """Its newest entry in the log."""
    excluded: tuple[str, ...]
    """Runs in which it was slashed and gets no work until its owner stakes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesView:
    """The table of nodes."""

    order: str
    role: str
    status: str
    phase: str
    owner: str
    query: str
    nodes: Rows[NodeCard]
    presence: dict[str, NodePresence] | None
    """By address; null if this explorer has no live state."""
    uptime: dict[str, float]
    """By address: share of samples since it was first seen in which it was online."""
    rank: int
    """Rank of the first row, from 1; 0 if the table is filtered or not on its first page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeChange:
    """The stake of a node after an entry."""

    idx: int
    at_ms: int
    kind: str
    stake_nano: int
    unbonding_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePayout:
    """A payout to a node for a step."""

    idx: int
    at_ms: int
    run: str
    step: int
    owner: str
    amount_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredLease:
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
class NodeRunRecord:
    """What a node's work in one run says of it."""

    run: str
    streak: int
    """Submissions accepted in a row."""
    suspicion: float
    """What its files weigh together, in powers of ten."""
    state: str
    """`excluded`, `pay held`, or empty."""
    restake_nano: int
    """What its owner must stake again before it gets work in this run."""
    held_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node."""

    summary: NodeCard
    reason: str
    version: int
    hardware: str
    addresses: tuple[str, ...]
    delegated_until_ms: int | None
    unbonding_nano: int
    owner_balance_nano: int
    run_records: tuple[NodeRunRecord, ...]
    leases: int
    submitted: int
    first_idx: int
    first_ms: int
    presence: NodePresence | None
    work: LiveNodeWork | None
    """Null if this explorer has no live state."""
    sent_bytes: int | None
    """Bytes of weights sent since it started, by its own announcement; null if unknown."""
    uptime: float | None
    """Share of samples since it was first seen in which it was online; null if there are none."""
    contributions: tuple[ContributionRow, ...]
    """Newest steps, oldest first."""
    leases_open: Rows[LeaseSummary]
    submissions: Rows[SubmissionSummary]
    unanswered: tuple[UnansweredLease, ...]
    refused: tuple[RefusedFile, ...] | None
    """Files that intake refused; null if this explorer has no live state."""
    verdicts: Rows[VerdictSummary]
    slashes: Rows[SlashSummary]
    stakes: tuple[StakeChange, ...]
    payouts: tuple[NodePayout, ...]


def make_node_card(row: sqlite3.Row) -> NodeCard:
    return make_row(
        NodeCard,
        row,
        roles=tuple(role for role, column in ROLE_COLUMNS.items() if row[column]),
        excluded=tuple(each["run"] for each in json.loads(row["run_records"]) if each["restake_nano"]),
    )


def read_nodes(
    db: ReadTransaction,
    *,
    order: str,
    role: str,
    status: str,
    owner: NodeId | None,
    among: Iterable[NodeId] | None = None,
    after: tuple[int, bytes] | None,
    limit: int = ROWS_PER_PAGE,
) -> Rows[NodeCard]:
    """Highest first. `among` are the only nodes to list."""
    column = ORDER_COLUMNS[order]
    conditions = ["1"]
    values: list[object] = []
    if role:
        conditions.append(f"{ROLE_COLUMNS[role]}=1")
    for name, value in (("status", status), ("owner", owner)):
        if value:
            conditions.append(f"{name}=?")
            values.append(value)
    if among is not None:
        conditions.append("hex(node) IN (SELECT value FROM json_each(?))")
        values.append(json.dumps([node.hex().upper() for node in among]))
    if after:
        conditions.append(f"({column}, node) < (?, ?)")
        values += after
    query = f"SELECT * FROM nodes WHERE {' AND '.join(conditions)} ORDER BY {column} DESC, node DESC LIMIT ?"
    found = db.rows(query, *values, limit + 1)
    rows = tuple(map(make_node_card, found[:limit]))
    last = f"{found[limit - 1][column]}.{rows[-1].node}" if len(found) > limit else None
    return Rows(rows, last)


def read_node(db: ReadTransaction, node: NodeId) -> NodeView | None:
    row = db.row("SELECT * FROM nodes WHERE node=?", node)
    if row is None:
        return None
    stakes = db.rows("SELECT * FROM stakes WHERE node=? ORDER BY idx DESC LIMIT ?", node, ROWS_PER_PAGE)
    payouts = db.rows("SELECT * FROM payouts WHERE node=? ORDER BY idx DESC LIMIT ?", node, ROWS_PER_PAGE)
    ended = db.rows("SELECT * FROM leases WHERE node=? AND state='ended' ORDER BY idx DESC LIMIT ?", node, 10)
    return make_row(
        NodeView,
        row,
        summary=make_node_card(row),
        addresses=tuple(json.loads(row["addresses"])),
        run_records=tuple(NodeRunRecord(**each) for each in json.loads(row["run_records"])),
        owner_balance_nano=db.value("SELECT balance_nano FROM accounts WHERE account=?", row["owner"]) or 0,
        submitted=row["submissions"],
        presence=None,
        work=None,
        sent_bytes=None,
        uptime=None,
        contributions=read_node_contributions(db, node),
        leases_open=read_rows(db, LeaseSummary, limit=LEASES_OPEN_MAX, index="leases_open_by_node", node=node),
        submissions=read_rows(db, SubmissionSummary, limit=10, node=node),
        unanswered=tuple(make_row(UnansweredLease, each) for each in ended),
        refused=None,
        verdicts=read_rows(db, VerdictSummary, limit=10, validator=node),
        slashes=read_rows(db, SlashSummary, limit=5, node=node),
        stakes=tuple(make_row(StakeChange, each) for each in stakes),
        payouts=tuple(make_row(NodePayout, each) for each in payouts),
    )


def read_node_contributions(db: ReadTransaction, node: NodeId) -> tuple[ContributionRow, ...]:
    """Newest steps of the newest runs, oldest first."""
    found: list[ContributionRow] = []
    for run in db.rows("SELECT run FROM runs ORDER BY idx DESC LIMIT ?", RUNS_SHOWN):
        query = "SELECT * FROM contributions WHERE node=? AND run=? ORDER BY step DESC LIMIT ?"
        found += [
            make_row(ContributionRow, row) for row in db.rows(query, node, run["run"], STEPS_CHARTED - len(found))
        ]
    return tuple(reversed(found))


def find_nodes_by_name(db: ReadTransaction, text: str, limit: int) -> tuple[NodeCard, ...]:
    """Nodes with a name, or a word of it, that starts with `text`."""
    low, high = text, text + "\U0010ffff"
    found = db.rows(
        "SELECT nodes.* FROM names JOIN nodes ON nodes.node=names.node WHERE term>=? AND term<? ORDER BY term LIMIT ?",
        low,
        high,
        limit,
    )
    return tuple(make_node_card(row) for row in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """An address that is not a node: a coordinator, trainer, owner or sponsor."""

    TEMPLATE: ClassVar[str] = "account.html"

    account: str
    balance_nano: int
    is_coordinator: bool
    trains: tuple[str, ...]
    """Runs whose trainer it is."""
    nodes: tuple[NodeCard, ...]
    """Nodes that it owns, most units first."""
    entries: Rows[EntrySummary]
    """Entries that it signed, newest first."""


def read_account(db: ReadTransaction, account: NodeId) -> AccountView | None:
    balance = db.value("SELECT balance_nano FROM accounts WHERE account=?", account)
    runs = db.rows(
        "SELECT run FROM runs WHERE json_extract(terms, '$.trainer')=? LIMIT ?", str(account), SEARCH_RESULTS_MAX
    )
    owned = db.rows("SELECT * FROM nodes WHERE owner=? ORDER BY units DESC, node LIMIT ?", account, SEARCH_RESULTS_MAX)
    if balance is None and not runs and not owned:
        return None
    return AccountView(
        account=str(account),
        balance_nano=balance or 0,
        is_coordinator=db.read_meta().get("coordinator") == bytes(account),
        trains=tuple(row["run"] for row in runs),
        nodes=tuple(map(make_node_card, owned)),
        entries=read_rows(db, EntrySummary, limit=10, index="entries_by_author", author=account),
    )
