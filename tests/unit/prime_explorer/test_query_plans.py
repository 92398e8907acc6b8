"""Every query of the read model finds its rows by an index: the plan of each is read, for every page and filter."""

import re
import sqlite3
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from prime_explorer.index.store import ReadTransaction
from prime_explorer.pages.nodes import NODE_ORDERS
from prime_explorer.routes import JSON_ROOT, PAGE_ROUTES, PageRoute
from prime_protocol.ledger.entries import Outcome
from prime_protocol.wire.ids import friendly_name
from support.app_context import FakeAppContext
from support.ledger_network import RUN, World
from support.read_model import Client, ask, reading

SMALL = ("meta", "runs", "json_each")
"""Tables with a few rows: facts about the index, and the runs of a network."""
NODES = "nodes"
"""Combined filters of nodes may walk or sort the nodes that one of them finds; they are bounded by their number."""


def violates(query: str, plan: list[str]) -> bool:
    """Whether a query may read a share of a large table, or sorts more than the end of an order."""
    scanned = {match[1] for line in plan if (match := re.match(r"SCAN (\w+)", line))} - {*SMALL, NODES}
    if any(line == f"SCAN {NODES}" for line in plan):
        return True  # without an index
    # A scan in the order of the result ends with its page, unless a condition passes over rows. The condition of a
    # partial index passes over none.
    for partial in ("state='open'", "appealed_idx IS NOT NULL"):
        query = query.replace(f" WHERE {partial} ORDER BY", " ORDER BY")
    is_page = query.endswith("LIMIT ?") and " WHERE " not in query
    is_sorted = "USE TEMP B-TREE FOR ORDER BY" in plan and bool(tables_of(query) - {*SMALL, NODES})
    return (bool(scanned) and not is_page) or is_sorted


def tables_of(query: str) -> set[str]:
    return set(re.findall(r"(?:FROM|JOIN) (\w+)", query))


BOUNDED = {
    "names": "a search sorts the names that start with its words",
    "GROUP BY node": "a checkpoint names at most 1,500 submissions",
}
"""Queries that sort what an index has found, and why that is bounded."""


@pytest.mark.parametrize(
    ("query", "plan", "is_bad"),
    [
        ("SELECT * FROM entries WHERE brief=?", ["SCAN entries"], True),
        ("SELECT * FROM entries ORDER BY idx DESC LIMIT ?", ["SCAN entries"], False),
        ("SELECT * FROM entries WHERE kind=? ORDER BY idx LIMIT ?", ["SEARCH entries USING INDEX x (kind=?)"], False),
        ("SELECT * FROM nodes WHERE status=? LIMIT ?", ["SCAN nodes"], True),
        ("SELECT * FROM verdicts WHERE run=? ORDER BY at_ms LIMIT ?", ["USE TEMP B-TREE FOR ORDER BY"], True),
        ("SELECT * FROM runs ORDER BY idx DESC LIMIT ?", ["SCAN runs", "USE TEMP B-TREE FOR ORDER BY"], False),
    ],
)
def test_a_bad_plan_is_told_from_a_good_one(query: str, plan: list[str], is_bad: bool) -> None:
    assert violates(query, plan) is is_bad


def list_requests(world: World, page: PageRoute) -> list[tuple[str, dict[str, str]]]:
    """The page with every combination of its filters, given or not, and every place that its path may name."""
    name = next(iter(world.run.slashes))
    ann = str(world.id("ann"))
    values = {
        "run": RUN, "node": ann, "owner": ann, "author": ann, "submission": str(name), "about": ann,
        "kind": "Submitted", "state": "accepted", "status": "active", "phase": "online", "role": "worker",
        "step": "0", "epoch": "1",
        "index": "3", "old": "3", "new": "9", "before": "20", "after": f"5.{ann}",
    }  # fmt: skip
    path = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], page.json_path.removeprefix(JSON_ROOT))
    paths = [path, f"/nodes/{world.id('coordinator')}"] if page.name == "node" else [path]
    filters = [name for name in page.in_query if name in values]
    chosen = [
        {**dict.fromkeys(page.required, "3"), **{name: values[name] for name, is_given in pairs if is_given}}
        for pairs in (list(zip(filters, given, strict=True)) for given in product((False, True), repeat=len(filters)))
    ]
    found = [(path, query) for path in paths for query in chosen if "step" not in query or "run" in query]
    if page.name == "nodes":
        found += [(path, {**query, "order": order}) for path, query in found for order in NODE_ORDERS]
    if "q" in page.in_query:
        words = (ann[:9], str(name)[:12], "12", RUN, friendly_name(world.id("ann")), "0x" + "ab" * 32)
        found += [(path, {"q": word}) for path in paths for word in words]
    return found


async def collect_queries(client: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    seen: set[str] = set()
    for method in ("rows", "row"):
        original = getattr(ReadTransaction, method)

        def record(self: Any, query: str, *values: Any, original: Any = original) -> Any:
            seen.add(query)
            return original(self, query, *values)

        monkeypatch.setattr(ReadTransaction, method, record)
    for page in PAGE_ROUTES:
        if page.needs_index:
            for path, query in list_requests(world, page):
                await ask(client, path, **query)
    for path in ("/contributions.csv", f"/contributions.csv?node={world.id('ann')}", "/"):
        async with client.get(path) as answer:
            assert answer.status == 200
            await answer.read()
    return seen


async def test_no_query_reads_a_large_table_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.started(lag_max=0)
    world.settled("ann", Outcome.ACCEPT, 0)
    world.appeal("bob", world.convicted("bob", 1))
    context = await FakeAppContext.open(world, tmp_path)
    async with reading(context) as client:
        queries = await collect_queries(client, world, monkeypatch)
    index = sqlite3.connect(tmp_path / "explorer" / "index.db")
    assert len(queries) > 60
    for query in sorted(queries):
        plan = [row[3] for row in index.execute(f"EXPLAIN QUERY PLAN {query}", [None] * query.count("?"))]
        is_bounded = any(part in query for part in BOUNDED)
        assert is_bounded or not violates(query, plan), f"{query}: {plan}"
    assert all(any(part in query for query in queries) for part in BOUNDED), "an exception that no query needs"
    index.close()
