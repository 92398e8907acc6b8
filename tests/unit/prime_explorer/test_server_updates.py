"""Open pages hear of news, and take up no place once their readers have left."""

import asyncio
import json
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from prime_explorer import server as news
from prime_explorer.app import Explorer
from prime_explorer.config import CONCURRENT_PAGES_MAX, STREAMS_PER_ADDRESS_MAX
from prime_explorer.sources import NoObjects
from prime_protocol.ledger.entries import Role
from prime_runtime.clock import SystemClock
from support.explorer_index import follower, mirror
from support.ledger_network import World


async def test_a_stream_tells_of_growth_and_its_place_is_free_when_its_reader_leaves(tmp_path: Path) -> None:
    world = World.started()
    mirror(tmp_path / "log", world.leaves)
    following, _ = follower(tmp_path)
    following.advance(1)
    explorer = Explorer(
        mirror=tmp_path / "log",
        folder=tmp_path,
        live=None,
        objects=NoObjects(),
        clock=SystemClock(),
    )
    app = web.Application()
    explorer.add_routes(app)
    telling = asyncio.create_task(explorer._updates.run())
    async with TestClient(TestServer(app)) as client:
        stream = await client.get("/live")
        assert await stream.content.readline() == b"retry: 5000\n"
        await _until_event(stream)  # what is known at first is news, too
        world.register("more", Role.RELAY)
        mirror(tmp_path / "log", world.leaves)
        following.advance(2)
        assert (await _until_event(stream))["size"] == len(world.leaves)
        stream.close()
        open_ = [await client.get("/live") for _ in range(STREAMS_PER_ADDRESS_MAX - 1)]
        for _ in range(CONCURRENT_PAGES_MAX):
            async with client.get("/about") as page:
                assert page.status == 200, "streams take no places from pages"
        for each in open_:
            each.close()
        await asyncio.sleep(2 * news.STREAM_CHECK_MS / 1000)
        again = [await client.get("/live") for _ in range(STREAMS_PER_ADDRESS_MAX)]
        assert [each.status for each in again] == [200] * STREAMS_PER_ADDRESS_MAX
        async with client.get("/live") as refused:
            assert refused.status == 503
        explorer.close_streams()
        for each in again:
            await each.read()
    telling.cancel()
    following.close()
    explorer.close()


async def _until_event(stream: object) -> dict[str, object]:
    async with asyncio.timeout(20):
        while True:
            line: bytes = await stream.content.readline()  # type: ignore[attr-defined]
            if line.startswith(b"data: "):
                found: dict[str, object] = json.loads(line.removeprefix(b"data: "))
                return found
