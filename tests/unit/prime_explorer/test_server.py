"""Pages over HTTP: JSON that keeps its description, tables that are walked to their end, failures that help."""

import json
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from prime_explorer.app import Explorer
from prime_explorer.config import PAGE_BURST, ROWS_PER_PAGE
from prime_explorer.index.store import IndexNotReady, IndexReader, ReadTransaction
from prime_explorer.routes import build_openapi
from prime_explorer.sources import NoObjects
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role
from prime_protocol.wire.ids import friendly_name
from prime_runtime.clock import SystemClock
from support.explorer_index import follower, mirror
from support.ledger_network import HOUR_MS, RUN, World

Client = TestClient[web.Request, web.Application]
STEPS = 30


def live_a_while() -> World:
    """Steps, slashes of every end, expired leases, a banned node, a refuted verdict, an owner with two keys."""
    world = World.started(workers=("ann", "bob", "cat"), lag_max=3)
    world.join("key", Role.WORKER, owner="owner")
    world.join("chest", Role.RELAY, owner="owner")
    world.coordinate(e.NodeStatusSet(node=world.id("cat"), status=NodeStatus.BANNED, reason="<b>rude</b>"))
    wronged, cheat = world.convicted("ann"), world.convicted("bob", 1)
    world.appeal("ann", wronged)
    world.agree(wronged, Outcome.ACCEPT)
    world.overturn(wronged)
    world.credit(wronged)
    lease = world.lease("ann", 2)
    world.wait(3 * HOUR_MS)
    world.execute(cheat)
    world.coordinate(e.LeaseEnded(lease=lease, reason="silence"))
    world.convicted("key", 3)
    for step in range(STEPS):
        name = world.settled("ann", Outcome.ACCEPT, 4)
        world.publish(name)
        if step > 1:
            world.pay_out(step - 1)
    invalid = world.settled("ann", Outcome.INVALID, 5)
    world.inspect(invalid, world.readers(invalid)[0])
    return world


WORLD = live_a_while()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("explorer")
    mirror(made / "log", WORLD.leaves)
    following, _ = follower(made)
    following.advance(WORLD.now_ms)
    following.close()
    return made


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[Client]:
    explorer = Explorer(
        mirror=folder / "log",
        folder=folder,
        live=None,
        objects=NoObjects(),
        clock=SystemClock(),
    )
    app = web.Application()
    explorer.add_routes(app)
    async with TestClient(TestServer(app)) as opened:
        yield opened
    explorer.close()


async def ask(client: Client, path: str, status: int = 200) -> Any:
    async with client.get(f"/api/v1{path}") as answer:
        assert answer.status == status, f"{path}: {answer.status} {await answer.text()}"
        return await answer.json()


def some_paths() -> list[str]:
    slashed = [name for name, made in WORLD.run.submissions.items() if made.slashed]
    submissions = [str(name) for name in WORLD.run.submissions]
    return [
        "",
        f"/runs/{RUN}",
        f"/runs/{RUN}/checkpoints/0",
        f"/runs/{RUN}/checkpoints/7",
        "/nodes",
        *(f"/nodes/{WORLD.id(name)}" for name in ("ann", "bob", "key", "chest", "val-0", "coordinator", "owner")),
        "/submissions",
        *(f"/submissions/{name}" for name in submissions[:4]),
        "/slashes",
        *(f"/slashes/{name}" for name in slashed),
        "/log",
        *(f"/log/{index}" for index in (0, 1, 29, 40, len(WORLD.leaves) - 1)),
        "/log/heads",
        "/network",
        "/search?q=an",
        "/about",
    ]


async def test_every_page_as_json_keeps_its_description(client: Client) -> None:
    described = build_openapi("1")
    async with client.get("/api/v1/openapi.json") as answer:
        assert (await answer.json())["paths"] == described["paths"]
    for path in some_paths():
        body = await ask(client, path)
        bare = "/api/v1" + path.partition("?")[0]
        found = [known for known in described["paths"] if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), bare)]
        exact = [known for known in found if "{" not in known] or found
        operation = described["paths"][exact[0]]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(body, {**schema, "components": described["components"]})


async def test_every_page_as_html_says_what_its_json_says(client: Client) -> None:
    for path in some_paths():
        async with client.get(path or "/") as answer:
            text = await answer.text()
            assert answer.status == 200, f"{path}: {text[-1000:]}"
            assert answer.headers["Cache-Control"] == "no-cache"
            assert "<h1>" in text
            assert "b&#39;" not in text, f"{path}: bytes without a format"
            tag = answer.headers["ETag"]
        async with client.get(path or "/", headers={"If-None-Match": tag}) as again:
            assert again.status == 304, path


async def test_the_page_of_heads_names_the_coordinator(client: Client) -> None:
    assert (await ask(client, "/log/heads"))["coordinator"] == str(WORLD.state.coordinator)


async def test_an_inspected_verdict_is_marked_where_it_is_listed(client: Client) -> None:
    ((name, made),) = [(name, made) for name, made in WORLD.run.submissions.items() if made.inspected]
    (validator,) = made.refuted
    body = await ask(client, f"/submissions/{name}")
    rows = [row["summary"] for row in body["verdicts"]]
    assert {row["validator"] for row in rows if row["refuted"]} == {str(validator)}
    assert {row["read_proof_error"] for row in rows if row["refuted"] == 0} == {0.0}
    for path, read in ((f"/submissions/{name}", len(rows) - 1), (f"/nodes/{validator}", 0)):
        async with client.get(path) as answer:
            text = await answer.text()
        assert text.count('class="badge refuted"') == text.count("not read: its read proof is off by") == 1
        assert text.count("<td>read</td>") == read


async def walk(client: Client, path: str, table: str, cursor: str) -> list[dict[str, Any]]:
    """Every row of a table, page by page."""
    rows: list[dict[str, Any]] = []
    there = path
    for _ in range(100):
        page = (await ask(client, there))[table]
        assert len(page["rows"]) <= ROWS_PER_PAGE
        rows += page["rows"]
        if page["next"] is None:
            return rows
        there = f"{path}{'&' if '?' in path else '?'}{cursor}={page['next']}"
    raise AssertionError(f"{path} never ends")


async def test_a_table_is_walked_to_its_end_each_row_once(client: Client) -> None:
    entries = await walk(client, "/log", "entries", "before")
    assert [row["idx"] for row in entries] == list(reversed(range(len(WORLD.leaves))))
    steps = await walk(client, f"/runs/{RUN}", "steps", "before")
    assert [row["step"] for row in steps] == list(reversed(range(STEPS + 1)))
    submissions = await walk(client, "/submissions", "submissions", "before")
    assert len({row["submission"] for row in submissions}) == len(submissions) == STEPS + 4
    for order in ("units", "accepted", "earned", "stake"):
        nodes = await walk(client, f"/nodes?order={order}", "nodes", "after")
        assert {row["node"] for row in nodes} == set(map(str, WORLD.state.nodes))
        field = {"earned": "earned_nano", "stake": "stake_nano"}.get(order, order)
        assert [row[field] for row in nodes] == sorted((row[field] for row in nodes), reverse=True)


async def test_tables_are_filtered(client: Client) -> None:
    ann, owner = WORLD.id("ann"), WORLD.id("owner")
    settled = await walk(client, f"/log?kind=Settled&run={RUN}", "entries", "before")
    assert len(settled) == STEPS + 4
    assert {row["kind"] for row in settled} == {"Settled"}
    assert {row["author"] for row in await walk(client, f"/log?author={ann}", "entries", "before")} == {str(ann)}
    about = await walk(client, f"/log?about={ann}", "entries", "before")
    assert {row["kind"] for row in about} >= {"Staked", "LeaseGranted"}
    for query, names in (
        ("status=banned", {"cat"}),
        ("role=relay", {"chest"}),
        (f"owner={owner}", {"key", "chest"}),
        (f"q={str(ann)[:9]}", {"ann"}),
        (f"q={friendly_name(ann)}", {"ann"}),
        (f"q={str(owner)[2:10]}", {"key", "chest"}),
    ):
        found = await ask(client, f"/nodes?{query}")
        assert {row["node"] for row in found["nodes"]["rows"]} == {str(WORLD.id(name)) for name in names}, query
    fraudulent = await ask(client, f"/submissions?state=fraudulent&run={RUN}")
    assert {row["node"] for row in fraudulent["submissions"]["rows"]} == {str(WORLD.id("bob")), str(WORLD.id("key"))}
    mine = await ask(client, f"/submissions?node={WORLD.id('key')}&run={RUN}&state=fraudulent")
    assert [row["slash"] for row in mine["submissions"]["rows"]] == ["proposed"]
    assert len((await ask(client, f"/slashes?run={RUN}"))["slashes"]["rows"]) == 3


async def test_a_search_leads_to_what_it_found(client: Client) -> None:
    name = next(iter(WORLD.run.submissions))
    root = WORLD.run.checkpoints[7].root  # type: ignore[index]
    manifest = WORLD.run.checkpoints[7].manifest  # type: ignore[index]
    for query, path in (
        (str(name), f"/submissions/{name}"),
        (str(name)[2:14].upper(), f"/submissions/{name}"),
        (str(root)[:12], f"/runs/{RUN}/checkpoints/7"),
        (str(manifest)[:12], f"/log?about={manifest}"),
        (str(WORLD.id("ann")), f"/nodes/{WORLD.id('ann')}"),
        ("#17", "/log/17"),
        ("run-1", f"/runs/{RUN}"),
    ):
        async with client.get("/search", params={"q": query}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers.get("Location")) == (303, path), query
    for query in ("", "nothing-like-it", "0xzz", "%", "<script>", "9" * 15):
        async with client.get("/search", params={"q": query}, allow_redirects=False) as answer:
            text = await answer.text()
            assert answer.status == 200
            assert "<script>" not in text.partition("<main")[2]


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/log/999999", 404, "no entry with this number yet"),
        ("/nodes/0x" + "12" * 20, 404, "This address is not in the log"),
        ("/nodes/ann", 400, "node must be 0x and 40"),
        ("/nodes?order=beauty", 400, "order is not one of units"),
        ("/nodes?after=5", 400, "not a position in this table"),
        ("/submissions/0x12", 400, "64 lower-case hex digits"),
        ("/submissions?before=-1", 400, "before is not a whole number"),
        ("/slashes/0x" + "12" * 32, 404, "was not slashed"),
        ("/runs/Nothing", 400, "inner dashes"),
        ("/runs/nothing", 404, "no such run"),
        (f"/runs/{RUN}/checkpoints/999", 404, "no such checkpoint yet"),
        ("/log?kind=Nonsense", 400, "kind is not one of"),
        ("/log/heads?old=9&new=3", 400, "more than the newer"),
        ("/network?run=nothing", 404, "no such run"),
    ],
)
async def test_what_is_not_there_or_not_right_is_said_with_a_way_on(
    client: Client, path: str, status: int, says: str
) -> None:
    async with client.get(path) as answer:
        text = await answer.text()
    assert answer.status == status
    assert says in text
    assert 'href="/"' in text
    body = await ask(client, path, status)
    assert says in body["error"]["problem"]


async def test_an_address_that_asks_too_often_is_told_when_to_come_back(client: Client) -> None:
    for _ in range(PAGE_BURST + 200):
        async with client.get("/static/theme.js") as answer:
            await answer.read()
            if answer.status == 429:
                assert int(answer.headers["Retry-After"]) >= 1
                return
    raise AssertionError("nobody was ever refused")


async def test_before_there_is_an_index_pages_say_so_and_come_back_by_themselves(tmp_path: Path) -> None:
    explorer = Explorer(mirror=tmp_path, folder=tmp_path, live=None, objects=NoObjects(), clock=SystemClock())
    app = web.Application()
    explorer.add_routes(app)
    async with TestClient(TestServer(app)) as client:
        for path in ("/", "/nodes", "/log/3", "/contributions.csv"):
            async with client.get(path) as answer:
                assert answer.status == 503
                assert 'http-equiv="refresh"' in await answer.text()
        assert (await ask(client, "/nodes", 503))["error"]["title"] == "The index is being built"
    explorer.close()


async def test_an_index_of_another_release_is_not_read(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "index.db")
    connection.executescript("CREATE TABLE meta (name TEXT, value); INSERT INTO meta VALUES ('made_by', 'older code');")
    connection.close()
    reader = IndexReader(tmp_path / "index.db")
    with pytest.raises(IndexNotReady, match="another release"):
        await reader.query(ReadTransaction.read_meta)
    reader.close()


async def test_contributions_as_csv_are_those_of_the_books(client: Client) -> None:
    async with client.get("/contributions.csv") as answer:
        head, *lines = (await answer.text()).splitlines()
    rows = [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
    assert {row["node"]: int(row["units"]) for row in rows} == {
        str(name): node.units for name, node in WORLD.state.nodes.items()
    }
    async with client.get("/contributions.csv", params={"node": str(WORLD.id("ann"))}) as answer:
        assert "attachment" in answer.headers["Content-Disposition"]
        head, *lines = (await answer.text()).splitlines()
    steps = [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
    assert sum(int(row["units"]) for row in steps) == WORLD.state.nodes[WORLD.id("ann")].units
    assert sum(int(row["paid_nano"]) for row in steps) == WORLD.state.nodes[WORLD.id("ann")].earned_nano


async def test_what_people_wrote_is_escaped(client: Client) -> None:
    async with client.get(f"/nodes/{WORLD.id('cat')}") as answer:
        text = await answer.text()
    assert "&lt;b&gt;rude&lt;/b&gt;" in text
    assert "<b>rude</b>" not in text
    assert json.loads(json.dumps((await ask(client, f"/nodes/{WORLD.id('cat')}"))["reason"])) == "<b>rude</b>"
