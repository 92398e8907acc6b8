"""A program's door: orders for who can read its lock file, pages for who asks by the right name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from prime_protocol.errors import LocalError
from prime_runtime.http.control_api import ControlServer, ProgramNotRunning, call_control_api, wait_until_stopped
from prime_runtime.lock import hold_process_lock

WHO, START = "trainer", "prime-trainer start"


async def show_page(request: web.Request) -> web.Response:
    return web.Response(text="numbers")


def refuse(given: dict[str, str]) -> str:
    raise LocalError("not now")


@asynccontextmanager
async def open_door(lock: Path, done: list[str]) -> AsyncIterator[str]:
    def stop(given: dict[str, str]) -> str:
        done.append(given.get("when", "now"))
        return "it stops"

    door = ControlServer(lambda: {"step": 3}, {"stop": stop, "refused": refuse}, {"/metrics": show_page})
    with hold_process_lock(lock, WHO, advice=""):
        url = await door.open(0, advice="")
        try:
            with lock.open("r+") as file:
                file.write(f'{{"pid": 1, "url": "{url}", "token": "{door.token}"}}\n')
            yield url
        finally:
            await door.close()


async def test_commands_of_the_machine_ask_and_order_over_the_lock_file(tmp_path: Path) -> None:
    done: list[str] = []
    async with open_door(tmp_path / "lock", done):
        assert await call_control_api(tmp_path / "lock", WHO, "GET", "/status", start=START) == {"step": 3}
        assert await call_control_api(tmp_path / "lock", WHO, "POST", "/stop", start=START) == {"text": "it stops"}
        later = {"when": "later"}
        await call_control_api(tmp_path / "lock", WHO, "POST", "/stop", start=START, given=later)
        with pytest.raises(LocalError, match=r"^not now$"):
            await call_control_api(tmp_path / "lock", WHO, "POST", "/refused", start=START)
        with pytest.raises(ProgramNotRunning, match="HTTP 404"):
            await call_control_api(tmp_path / "lock", WHO, "POST", "/nothing", start=START)
        with pytest.raises(ProgramNotRunning, match="has not after 60 ms"):
            await wait_until_stopped(tmp_path / "lock", WHO, 60)
    assert done == ["now", "later"]
    await wait_until_stopped(tmp_path / "lock", WHO, 60)


async def test_strangers_get_the_pages_only_and_no_page_under_a_foreign_name(tmp_path: Path) -> None:
    async with open_door(tmp_path / "lock", []) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/metrics") as response:
            assert await response.text() == "numbers"
        for method, path in (("GET", "/status"), ("POST", "/stop")):
            async with session.request(method, url + path, headers={"Authorization": "Bearer guess"}) as response:
                assert response.status == 403
        async with session.get(f"{url}/metrics", headers={"Host": "evil.example:80"}) as response:
            assert response.status == 421


async def test_program_that_is_not_there_or_not_ready_is_said_to_be_so(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with pytest.raises(
        ProgramNotRunning, match=r"the trainer in .* is not running; start it with: prime-trainer start"
    ):
        await call_control_api(lock, WHO, "GET", "/status", start=START)
    with hold_process_lock(lock, WHO, advice=""), pytest.raises(ProgramNotRunning, match="is starting"):
        await call_control_api(lock, WHO, "GET", "/status", start=START)
    with hold_process_lock(lock, WHO, advice="") as held:
        held.write_url("http://127.0.0.1:1", token="x")
        with pytest.raises(ProgramNotRunning, match="does not answer"):
            await call_control_api(lock, WHO, "GET", "/status", start=START)


async def test_port_that_is_taken_is_said_with_what_to_do() -> None:
    doors = [ControlServer(dict, {}, {}) for _ in range(2)]
    url = await doors[0].open(0, advice="")
    taken = int(url.rpartition(":")[2])
    with pytest.raises(LocalError, match="the port is in use; choose another"):
        await doors[1].open(taken, advice="choose another")
    third = ControlServer(dict, {}, {})
    assert await third.open(taken, advice="", is_firm=False) != url
    for door in (doors[0], third):
        await door.close()
