"""The JSON API over a real socket: strict questions, one form of error, caching, bounds, and a true description."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from prime_coordinator.api.queries import PARAMS
from prime_coordinator.api.routes import API_ROOT, ROUTES, add_json_routes
from prime_coordinator.constants import PAGE_ROWS_MAX, READER_BURST
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Appealed, Outcome
from support.app_context import FakeAppContext
from support.ledger_network import RUN, World

Client = TestClient[web.Request, web.Application]


@asynccontextmanager
async def serving(context: FakeAppContext) -> AsyncIterator[Client]:
    app = web.Application()
    add_json_routes(app, context)
    async with TestClient(TestServer(app)) as client:
        yield client
    context.log.close()


async def busy_context(folder: Path) -> tuple[FakeAppContext, dict[str, str]]:
    """A context with a row of everything, and a value for each parameter of a path."""
    world = World.started(lag_max=0)
    past = world.settled("ann", Outcome.ACCEPT, 0)
    world.credit(past)
    world.publish(past)
    world.pay_out(0)
    world.lease("ann", 3, 2)
    slashed = world.convicted("bob", 1)
    world.appeal("bob", slashed)
    names = {"run": RUN, "node": str(world.id("ann")), "submission": str(slashed), "index": "3"}
    names["epoch"] = "1"
    ChainFiles(folder).write_payout(RUN, 1, 5, {world.id("ann"): 7})
    return await FakeAppContext.open(world, folder), names


def fill(path: str, names: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: names[match[1]], path)


async def test_description_matches_every_route_and_every_field(tmp_path: Path) -> None:
    """Each answer is checked against the schema of its path, which allows no field more or less."""
    context, names = await busy_context(tmp_path)
    async with serving(context) as client:
        document = await (await client.get(f"{API_ROOT}/openapi.json")).json()
        routes = {resource.canonical for resource in client.app.router.resources()}
        for path, operation in document["paths"].items():
            extra = "?old=5" if path.endswith("consistency") else ""
            response = await client.get(fill(path, names) + extra)
            assert response.status == 200, await response.text()
            schema = operation["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            body = await response.json()
            jsonschema.validate(body, {**schema, "components": document["components"]}, jsonschema.Draft202012Validator)
            if "next" in body and not path.endswith("refused"):
                assert body["rows"], f"{path} was checked with no row"
    assert routes - {f"{API_ROOT}/openapi.json", f"{API_ROOT}/{{tail}}"} == set(document["paths"])
    assert document["openapi"] == "3.1.0"


async def test_description_names_every_parameter_that_is_read(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with serving(context) as client:
        document = await (await client.get(f"{API_ROOT}/openapi.json")).json()
    for question in ROUTES.values():
        told = document["paths"][API_ROOT + question.path]["get"]["parameters"]
        assert [each["name"] for each in told] == [*question.in_path, *question.in_query]
        assert all(each["schema"] == PARAMS[each["name"]].schema for each in told)


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/nodes?cursor=x", 400, "cursor"),
        ("/nodes?cursor=-1", 400, "cursor"),
        ("/nodes?cursor=99999999999999999999", 400, "cursor"),
        ("/nodes?limit=0", 400, "limit"),
        (f"/nodes?limit={PAGE_ROWS_MAX + 1}", 400, "limit"),
        ("/nodes?limit=1e3", 400, "limit"),
        ("/nodes?limit=\u0663", 400, "limit"),
        ("/nodes?limit=3&limit=4", 400, "query"),
        ("/nodes?colour=red", 400, "colour"),
        ("/nodes?phase=ONLINE", 400, "phase"),
        ("/nodes?owner=0xABC", 400, "owner"),
        ("/nodes/0x12", 400, "node"),
        ("/nodes/0x" + "00" * 20, 404, "node"),
        ("/runs/Nope", 400, "run"),
        ("/runs/nope", 404, "run"),
        ("/runs/nope?run=run-1", 400, "run"),
        ("/submissions/0x" + "00" * 32, 404, "submission"),
        ("/log/entries/-1", 400, "index"),
        ("/log/entries/01", 400, "index"),
        ("/log/entries/999999", 404, "index"),
        (f"/log/entries/{2**63 - 1}", 404, "index"),
        (f"/log/entries/{2**63}", 400, "index"),
        (f"/log/entries/{2**64 - 1}", 400, "index"),
        (f"/log/entries?cursor={2**63}", 400, "cursor"),
        (f"/runs?cursor={2**63}", 400, "cursor"),
        (f"/submissions?step={2**63}", 400, "step"),
        (f"/payouts/{RUN}/{2**63}", 400, "epoch"),
        (f"/log/consistency?old={2**63 - 1}", 400, "old"),
        (f"/log/consistency?old={2**64}", 400, "old"),
        (f"/log/consistency?old=1&new={2**63}", 400, "new"),
        (f"/payouts/{RUN}/2", 404, "epoch"),
        (f"/payouts/{RUN}/0", 400, "epoch"),
        ("/log/entries?kind=Nonsense", 400, "kind"),
        ("/log/entries?subject=%27%20OR%201=1", 400, "subject"),
        ("/log/consistency", 400, "old"),
        ("/log/consistency?old=999999", 400, "old"),
        ("/log/consistency?old=1&new=999999", 400, "new"),
        ("/no/such/thing", 404, "path"),
    ],
)
async def test_wrong_request_gets_one_clear_error(tmp_path: Path, path: str, status: int, field: str) -> None:
    context, _ = await busy_context(tmp_path)
    async with serving(context) as client:
        response = await client.get(API_ROOT + path)
        body = await response.json()
    assert (response.status, body["error"]["field"]) == (status, field), body
    assert body["error"]["problem"]
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/runs", "/nodes", "/leases", "/submissions", "/log/entries"])
async def test_the_largest_cursor_is_read_without_an_error(tmp_path: Path, path: str) -> None:
    context, _ = await busy_context(tmp_path)
    async with serving(context) as client:
        assert (await client.get(f"{API_ROOT}{path}?cursor={2**63 - 1}")).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_written(tmp_path: Path, method: str) -> None:
    context, names = await busy_context(tmp_path)
    async with serving(context) as client:
        for question in ROUTES.values():
            response = await client.request(method, API_ROOT + fill(question.path, names), data=b"{}")
            assert response.status == 405
            assert response.headers["Allow"] == "GET, HEAD"
    assert context.commits == 0


async def test_unchanged_result_is_not_sent_again(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with serving(context) as client:
        first = await client.get(f"{API_ROOT}/leases")
        tag = first.headers["ETag"]
        again = await client.get(f"{API_ROOT}/leases", headers={"If-None-Match": f'"other", W/{tag}'})
        context.world.lease("ann", 6)
        changed = await client.get(f"{API_ROOT}/leases", headers={"If-None-Match": tag})
    assert (first.status, again.status, changed.status) == (200, 304, 200)
    assert first.headers["Cache-Control"] == "no-cache"


async def test_only_what_can_never_change_may_be_kept(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with serving(context) as client:
        settled = await client.get(f"{API_ROOT}/log/consistency?old=3&new=9")
        newest = await client.get(f"{API_ROOT}/log/consistency?old=3")
    assert "immutable" in settled.headers["Cache-Control"]
    assert newest.headers["Cache-Control"] == "no-cache"


async def test_status_is_counted_at_most_twice_a_second(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with serving(context) as client:
        first = await (await client.get(f"{API_ROOT}/status")).json()
        context.world.lease("ann", 6)
        kept = await (await client.get(f"{API_ROOT}/status")).json()
        context.world.wait(500)
        fresh = await (await client.get(f"{API_ROOT}/status")).json()
        context.world.wait(-10_000)
        set_back = await (await client.get(f"{API_ROOT}/status")).json()
    assert first == kept
    assert fresh["leases_open"] == first["leases_open"] + 1
    assert set_back["now_ms"] == fresh["now_ms"] - 10_000


async def test_one_address_cannot_ask_without_end(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with serving(context) as client:
        found = [(await client.get(f"{API_ROOT}/runs")).status for _ in range(READER_BURST + 40)]
        last = await client.get(f"{API_ROOT}/runs")
    assert found[:READER_BURST] == [200] * READER_BURST
    assert 429 in found
    assert last.status == 200 or int(last.headers["Retry-After"]) >= 1


async def test_failure_of_the_disk_or_the_program_shows_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context, _ = await busy_context(tmp_path)

    async def break_down(**_: Any) -> Any:
        raise failure

    monkeypatch.setattr(context.log, "list_entries", break_down)
    async with serving(context) as client:
        failure: Exception = LocalError("the database postgresql://secret refused")
        down = await client.get(f"{API_ROOT}/verdicts")
        failure = ZeroDivisionError("secret")
        bug = await client.get(f"{API_ROOT}/verdicts")
        texts = [await down.text(), await bug.text()]
    assert (down.status, bug.status) == (503, 500)
    assert "secret" not in "".join(texts)
    incident = re.search("incident ([0-9a-f]{12})", texts[1])
    assert incident
    assert incident[1] in caplog.text


async def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """JSON is never taken for a page, whatever a reason says."""
    world = World.started()
    name = world.convicted("bob")
    world.write("bob", Appealed(submission=name, reason="<script>alert(1)</script>"))
    context = await FakeAppContext.open(world, tmp_path)
    async with serving(context) as client:
        response = await client.get(f"{API_ROOT}/appeals")
        body = json.loads(await response.read())
    assert body["rows"][0]["reason"] == "<script>alert(1)</script>"
    assert response.content_type == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
