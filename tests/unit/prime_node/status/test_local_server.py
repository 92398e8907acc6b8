"""The local page and the metrics over a real socket: for this machine only, without scripts, and no orders."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from prime_node.config import PageConfig
from prime_node.status.local_server import LocalServer
from prime_protocol.errors import LocalError
from support.node_report import JOINING, RELAY, REPORT


@asynccontextmanager
async def serving(report: dict[str, Any], page: PageConfig | None = None) -> AsyncIterator[tuple[str, Any]]:
    server = LocalServer(lambda: report, {}, page or PageConfig())
    url = await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield url, session
    finally:
        await server.close()


async def test_the_page_shows_the_node_and_allows_nothing_else() -> None:
    async with serving(REPORT) as (url, session):
        async with session.get(url) as response:
            assert response.status == 200
            assert "quiet-amber-otter" in await response.text()
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "script" not in policy
            assert not [name for name in response.headers if name.startswith("Access-Control")]
        async with session.get(f"{url}/style.css") as response:
            assert response.content_type == "text/css"
            assert "prefers-color-scheme: dark" in await response.text()
        for method, path in (("POST", "/"), ("POST", "/stop"), ("GET", "/stop"), ("GET", "/../key.json")):
            async with session.request(method, url + path) as response:
                assert response.status in (404, 405)


@pytest.mark.parametrize("name", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:8470", "[::1]:80", ""])
async def test_a_foreign_name_for_this_machine_is_turned_away(name: str) -> None:
    async with serving(REPORT) as (url, session):
        for path in ("/", "/metrics", "/status"):
            async with session.get(url + path, headers={"Host": name}) as response:
                assert response.status == 421
        port = url.rpartition(":")[2]
        async with session.get(url, headers={"Host": f"localhost:{port}"}) as response:
            assert response.status == 200


async def test_metrics_are_for_prometheus() -> None:
    async with serving(REPORT) as (url, session), session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    for line in (
        "prime_node_joined 1.0",
        "prime_node_coordinator_reached 1.0",
        "prime_node_weights_step 3.0",
        'prime_node_jobs{state="credited"} 1.0',
        'prime_node_jobs{state="slashed"} 0.0',
        "prime_node_tokens_per_second 812.0",
        "prime_node_balance_amount 2.5",
        "prime_node_upload_bytes_total 5000.0",
        "prime_node_verdicts_total 0.0",
        "prime_node_engine_ready 1.0",
        "prime_node_rules_change_pending 0.0",
        "prime_node_rules_change_unknown 0.0",
    ):
        assert line in lines, line


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_announced_change_of_rules_is_a_metric(is_known: bool) -> None:
    change = {"rules": 9, "from_ms": 1, "release": "9.0.0", "is_known": is_known}
    report = {**REPORT, "coordinator": {**REPORT["coordinator"], "rules_change": change}}
    async with serving(report) as (url, session), session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    assert "prime_node_rules_change_pending 1.0" in lines
    assert f"prime_node_rules_change_unknown {float(not is_known)}" in lines


async def test_a_relay_and_a_node_that_joins_have_fewer_metrics_and_no_faults() -> None:
    for report, expected in ((RELAY, "prime_node_joined 1.0"), (JOINING, "prime_node_joined 0.0")):
        async with serving(report) as (url, session), session.get(f"{url}/metrics") as response:
            text = await response.text()
        assert expected in text
        assert "prime_node_jobs" not in text


async def test_a_page_that_is_turned_off_is_not_there() -> None:
    async with serving(REPORT, PageConfig(enabled=False)) as (url, session):
        for path in ("/", "/metrics", "/style.css"):
            async with session.get(url + path) as response:
                assert response.status == 404


async def test_a_port_that_is_taken_is_refused_if_it_was_asked_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalError, match="choose another --page-port"):
            async with serving(REPORT, PageConfig(port=port)):
                pass
    servers = [LocalServer(lambda: REPORT, {}, PageConfig()) for _ in range(2)]
    urls = [await server.start() for server in servers]
    assert len(set(urls)) == 2, "two nodes on one machine both have a page"
    await asyncio.gather(*(server.close() for server in servers))
