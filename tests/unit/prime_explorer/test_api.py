"""The JSON of every page over a real socket: strict requests, one form of error, caching, and a true description."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from prime_coordinator.settlement.files import ChainFiles
from prime_explorer.config import ROWS_PER_PAGE_MAX, ExplorerConfig
from prime_explorer.index.store import IndexReader
from prime_explorer.params import PARAMS
from prime_explorer.routes import JSON_ROOT, PAGE_ROUTES
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Appealed, Outcome
from prime_protocol.wire.messages import NodeActivity
from support.app_context import FakeAppContext
from support.ledger_network import RUN, World
from support.read_model import ask, reading


async def busy_context(folder: Path) -> tuple[FakeAppContext, dict[str, str]]:
    """A context with a row of everything, and a value for each parameter of a path."""
    world = World.started(lag_max=0)
    past = world.settled("ann", Outcome.ACCEPT, 0)
    world.publish(past)
    world.pay_out(0)
    world.lease("ann", 3, 2)
    slashed = world.convicted("bob", 1)
    world.appeal("bob", slashed)
    names = {"run": RUN, "node": str(world.id("ann")), "submission": str(slashed), "index": "3", "step": "1"}
    ChainFiles(folder).write_payout(RUN, 1, 5, {world.id("ann"): 7})
    context = await FakeAppContext.open(world, folder)
    context.core.liveness.beat(world.id("ann"), NodeActivity.WORKING, 0, world.now_ms)
    return context, {**names, "epoch": "1"}


def fill(path: str, names: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: names[match[1]], path)


async def test_description_matches_every_route_and_every_field(tmp_path: Path) -> None:
    """Each answer is checked against the schema of its path, which allows no field more or less."""
    context, names = await busy_context(tmp_path)
    async with reading(context) as client:
        document = await ask(client, "/openapi.json")
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
    served = {path for path in routes if path.startswith(JSON_ROOT)}
    assert served - {f"{JSON_ROOT}/openapi.json", f"{JSON_ROOT}{{tail}}"} == set(document["paths"])
    assert document["openapi"] == "3.1.0"


async def test_description_names_every_parameter_that_is_read(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with reading(context) as client:
        document = await ask(client, "/openapi.json")
    for page in PAGE_ROUTES:
        told = document["paths"][page.json_path]["get"]["parameters"]
        assert [each["name"] for each in told] == [*page.in_path, *page.in_query]
        assert all(each["schema"] == PARAMS[each["name"]].schema for each in told)


WRONG = [
    ("/nodes?after=x", 400, "after"),
    ("/nodes?after=-1", 400, "after"),
    ("/nodes?after=99999999999999999999.0x" + "00" * 20, 400, "after"),
    ("/nodes?limit=0", 400, "limit"),
    (f"/nodes?limit={ROWS_PER_PAGE_MAX + 1}", 400, "limit"),
    ("/nodes?limit=1e3", 400, "limit"),
    ("/nodes?limit=\u0663", 400, "limit"),
    ("/nodes?limit=", 400, "limit"),
    ("/nodes?limit=3&limit=4", 400, "query"),
    ("/nodes?colour=red", 400, "colour"),
    ("/nodes?phase=ONLINE", 400, "phase"),
    ("/nodes?owner=0xABC", 400, "owner"),
    ("/nodes?q=" + 101 * "a", 400, "q"),
    ("/nodes/0x12", 400, "node"),
    ("/nodes/0x" + "00" * 20, 404, "node"),
    ("/runs/Nope", 400, "run"),
    ("/runs/nope", 404, "run"),
    ("/runs/nope?run=run-1", 400, "query"),
    ("/submissions/0x" + "00" * 32, 404, "submission"),
    ("/submissions?step=1", 400, "run"),
    ("/log/-1", 400, "index"),
    ("/log/01", 400, "index"),
    ("/log/999999", 404, "index"),
    (f"/log/{2**63 - 1}", 404, "index"),
    (f"/log/{2**63}", 400, "index"),
    (f"/log/{2**64 - 1}", 400, "index"),
    (f"/log?before={2**63}", 400, "before"),
    (f"/runs?before={2**63}", 400, "before"),
    (f"/submissions?step={2**63}", 400, "step"),
    (f"/payouts/{RUN}/{2**63}", 400, "epoch"),
    (f"/log/consistency?old={2**63 - 1}", 400, "old"),
    (f"/log/consistency?old={2**64}", 400, "old"),
    (f"/log/consistency?old=1&new={2**63}", 400, "new"),
    (f"/payouts/{RUN}/2", 404, "epoch"),
    (f"/payouts/{RUN}/0", 400, "epoch"),
    ("/log?kind=Nonsense", 400, "kind"),
    ("/log?about=%27%20OR%201=1", 400, "about"),
    ("/log/consistency", 400, "old"),
    ("/log/consistency?old=999999", 400, "old"),
    ("/log/consistency?old=1&new=999999", 400, "new"),
    ("/no/such/thing", 404, "path"),
]


async def test_wrong_request_gets_one_clear_error(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with reading(context) as client:
        for path, status, field in WRONG:
            response = await client.get(JSON_ROOT + path)
            body = await response.json()
            assert (response.status, body["error"]["field"]) == (status, field), (path, body)
            assert body["error"]["problem"]
            assert response.headers["Cache-Control"] == "no-store"


async def test_the_largest_cursor_is_read_without_an_error(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with reading(context) as client:
        for path in ("/runs", "/leases", "/submissions", "/verdicts", "/slashes", "/appeals", "/checkpoints", "/log"):
            await ask(client, path, before=str(2**63 - 1))
        await ask(client, "/nodes", after=f"{10**18 - 1}.0x" + "ff" * 20)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_written(tmp_path: Path, method: str) -> None:
    context, names = await busy_context(tmp_path)
    async with reading(context) as client:
        for page in PAGE_ROUTES:
            response = await client.request(method, fill(page.json_path, names), data=b"{}")
            assert response.status == 405
            assert response.headers["Allow"] == "GET, HEAD"
    assert context.commits == 0


async def test_unchanged_result_is_not_sent_again(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with reading(context) as client:
        first = await client.get(f"{JSON_ROOT}/status")
        tag = first.headers["ETag"]
        again = await client.get(f"{JSON_ROOT}/status", headers={"If-None-Match": f'"other", W/{tag}'})
        context.world.wait(500)
        changed = await client.get(f"{JSON_ROOT}/status", headers={"If-None-Match": tag})
    assert (first.status, again.status, changed.status) == (200, 304, 200)
    assert first.headers["Cache-Control"] == "no-cache"


async def test_only_what_can_never_change_may_be_kept(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with reading(context) as client:
        settled = await client.get(f"{JSON_ROOT}/log/consistency?old=3&new=9")
        newest = await client.get(f"{JSON_ROOT}/log/consistency?old=3")
    assert "immutable" in settled.headers["Cache-Control"]
    assert newest.headers["Cache-Control"] == "no-cache"


async def test_status_is_counted_at_most_twice_a_second(tmp_path: Path) -> None:
    context, _ = await busy_context(tmp_path)
    async with reading(context) as client:
        first = await ask(client, "/status")
        context.world.lease("ann", 6)
        kept = await ask(client, "/status")
        context.world.wait(500)
        fresh = await ask(client, "/status")
        context.world.wait(-10_000)
        set_back = await ask(client, "/status")
    assert (kept["leases_open"], kept["now_ms"]) == (first["leases_open"], first["now_ms"])
    assert kept["entries"] == first["entries"] + 1, "a client that has just written finds its entry counted"
    assert fresh["leases_open"] == first["leases_open"] + 1
    assert set_back["now_ms"] == fresh["now_ms"] - 10_000


async def test_failure_of_the_disk_or_the_program_shows_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context, _ = await busy_context(tmp_path)

    async def break_down(*_: Any) -> Any:
        raise failure

    async with reading(context) as client:
        monkeypatch.setattr(IndexReader, "query", break_down)
        failure: Exception = LocalError("the database postgresql://secret refused")
        down = await client.get(f"{JSON_ROOT}/verdicts")
        failure = ZeroDivisionError("secret")
        bug = await client.get(f"{JSON_ROOT}/verdicts")
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
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        response = await client.get(f"{JSON_ROOT}/appeals")
        body = json.loads(await response.read())
    assert body["rows"][0]["appeal_reason"] == "<script>alert(1)</script>"
    assert response.content_type == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_without_an_index_only_live_state_and_proofs_are_served(tmp_path: Path) -> None:
    context, names = await busy_context(tmp_path)
    context.config = replace(context.config, explorer=ExplorerConfig(enabled=False))
    async with reading(context) as client:
        for page in PAGE_ROUTES:
            extra = "?old=1" if page.required else ""
            async with client.get(fill(page.json_path, names) + extra) as answer:
                assert answer.status == (404 if page.needs_index else 200), page.name
        async with client.get("/nodes") as answer:
            assert answer.status == 404
