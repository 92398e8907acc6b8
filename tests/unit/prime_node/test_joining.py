"""A first start finds out what it can: the run that is active, the coordinator's key; and refuses what does not fit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from prime_node.config import NodeConfig
from prime_node.joining import complete_config, explain_error, is_retryable, parse_coordinator_info
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.rpc import Refusal, RefusalCode
from prime_runtime.http.client import CallRefused, Unreachable
from prime_runtime.http.coordinator_api import NotFound, open_json_client

LOG_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
COORDINATOR = "0x" + "11" * 20
URL = "http://c:8440"


def status(*runs: tuple[str, str]) -> dict[str, Any]:
    rows = [{"run": run, "status": state, "model": "tiny", "task_set": "arithmetic"} for run, state in runs]
    return {"network": "devnet", "coordinator": COORDINATOR, "log_key": LOG_KEY, "runs": rows, "more": 1}


def config(**changes: Any) -> NodeConfig:
    return NodeConfig(folder=Path("/tmp"), coordinator=URL, **changes)


def test_the_url_alone_is_enough_where_one_run_is_active() -> None:
    greeting = parse_coordinator_info(status(("old", "closed"), ("demo", "active"), ("rest", "paused")))
    found = complete_config(config(), greeting)
    assert found.is_complete
    assert (found.network, found.run, found.coordinator_id, found.log_key) == ("devnet", "demo", COORDINATOR, LOG_KEY)


@pytest.mark.parametrize(
    ("pool_nano", "step_budget_nano", "is_unpaid"), [(0, 5, True), (4, 5, True), (5, 5, False), (9, 0, True)]
)
def test_a_run_that_cannot_pay_a_step_is_known_before_joining(
    pool_nano: int, step_budget_nano: int, is_unpaid: bool
) -> None:
    answer = status(("demo", "active"))
    answer["runs"][0] |= {"pool_nano": pool_nano, "step_budget_nano": step_budget_nano}
    (run,) = parse_coordinator_info(answer).runs
    assert run.is_unpaid is is_unpaid


def test_what_the_owner_set_is_not_overruled() -> None:
    greeting = parse_coordinator_info(status(("demo", "active"), ("other", "active")))
    assert complete_config(config(run="other"), greeting).run == "other"
    own_key = "EnochRoot+af0cfe78+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
    assert complete_config(config(run="demo", log_key=own_key), greeting).log_key == own_key


@pytest.mark.parametrize(
    ("runs", "changes", "problem"),
    [
        ([("a", "active"), ("b", "active")], {}, "2 runs are active on devnet: a, b; choose one with --run"),
        ([("a", "paused")], {}, r"no run is active on devnet; .* There are: a \(paused\)"),
        ([("a", "active")], {"run": "b"}, r"there is no run b on devnet; there are: a \(active\)"),
        ([], {}, "none at all"),
        ([("a", "active")], {"network": "mainnet"}, "belongs to the network devnet, but network is set to mainnet"),
        ([("a", "active")], {"coordinator_id": "0x" + "22" * 20}, "That is another coordinator: ask the operator"),
    ],
)
def test_an_ambiguous_or_contradicting_setting_is_an_error(runs: Any, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(LocalError, match=problem):
        complete_config(config(**changes), parse_coordinator_info(status(*runs)))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        status() | {"network": "Not A Name"},
        status() | {"coordinator": "0x"},
        status() | {"log_key": "x"},
        status() | {"runs": 5},
        status() | {"runs": [{}]},
        status(("../..", "active")),
    ],
)
def test_an_answer_that_is_no_greeting_is_refused(answer: Any) -> None:
    with pytest.raises(RemoteError):
        parse_coordinator_info(answer)


@pytest.mark.parametrize(
    ("error", "is_hope"),
    [
        (Unreachable("down"), True),
        (LocalError("is the URL right?"), False),
        (RemoteError("Payload.sender", "is another"), False),
        *(
            (refused, code not in ("malformed", "unauthentic", "unknown"))
            for code in RefusalCode
            for refused in [CallRefused("no", Refusal(code=code, field="", problem="x", retry_after_ms=0, now_ms=0))]
        ),
    ],
)
def test_a_first_start_waits_only_for_what_can_pass(error: Any, is_hope: bool) -> None:
    assert is_retryable(error) is is_hope


def refused(code: RefusalCode, field: str = "", problem: str = "x", now_ms: int = 0) -> CallRefused:
    return CallRefused("no", Refusal(code=code, field=field, problem=problem, retry_after_ms=0, now_ms=now_ms))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (refused(RefusalCode.CLOCK, now_ms=0), "this machine's clock is 1 h 0 min ahead of the coordinator's; set it"),
        (refused(RefusalCode.CLOCK, now_ms=7_200_000), "1 h 0 min behind the coordinator's; set it, for instance with"),
        (
            refused(RefusalCode.MALFORMED, "Payload.version", "is 0, this run needs 1: please upgrade"),
            "too old for this network: it is 0, this run needs 1: please upgrade: pip install --upgrade prime-swarm",
        ),
        (
            RemoteError("Payload.version", "is 1, this run needs 2: please upgrade"),
            "this program is newer than the coordinator, whose answer is 1, this run needs 2; install the version",
        ),
        (refused(RefusalCode.FORBIDDEN), "no"),
        (LocalError("is the URL right?"), "is the URL right?"),
    ],
)
def test_errors_tell_a_new_owner_what_to_do(error: LocalError | RemoteError, text: str) -> None:
    assert text in explain_error(error, 3_600_000)


# --- The public JSON of somebody who may be anybody -------------------------------------------------------------------


@asynccontextmanager
async def answering(body: bytes, *, status: int = 200, kind: str = "application/json") -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status, content_type=kind)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("how", "error", "problem"),
    [
        ({"body": b"<html>", "kind": "text/html", "status": 404}, LocalError, "is no coordinator .HTTP 404"),
        ({"body": b"{"}, LocalError, "is not JSON"),
        ({"body": b'{"a": 1, "a": 2}'}, LocalError, "has a name twice"),
        ({"body": b"[" * 200}, LocalError, "nests deeper"),
        ({"body": b" " * (2**20 + 1)}, LocalError, "longer than 1048576 bytes"),
        ({"body": b'{"error": {"problem": "is not known"}}', "status": 404}, NotFound, "is not known"),
        ({"body": b'{"error": {"problem": "too many"}}', "status": 429}, Unreachable, "cannot answer now: too many"),
        ({"body": b"[]", "status": 500}, Unreachable, "cannot answer now: HTTP 500"),
    ],
)
async def test_a_hostile_answer_is_an_error_that_helps(
    how: dict[str, Any], error: type[Exception], problem: str
) -> None:
    async with answering(**how) as url, open_json_client(url) as client:
        with pytest.raises(error, match=problem):
            await client.get("/status")


async def test_nothing_in_an_answer_can_command_a_terminal() -> None:
    async with answering(rb'{"a": ["\u001b[2J", {"b\u0007": 1.5}], "c": null}') as url, open_json_client(url) as client:
        assert await client.get("/x", run="demo") == {"a": ["\\x1b[2J", {"b\\x07": 1.5}], "c": None}


async def test_an_unreachable_coordinator_is_reported_as_such() -> None:
    async with answering(b"{}") as url:
        pass
    async with open_json_client(url) as client:
        with pytest.raises(Unreachable, match="connection refused"):
            await client.get("/status")
