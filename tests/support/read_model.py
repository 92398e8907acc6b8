"""The pages of a coordinator over a World: its real index, its live state and its routes, on a test server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from prime_coordinator.api.explorer import make_explorer
from prime_coordinator.gossip.relay import GossipRelay
from prime_coordinator.home import CoordinatorHome
from prime_explorer.index.follower import LogFollower
from prime_explorer.index.store import IndexWriter
from prime_explorer.routes import JSON_ROOT
from prime_runtime.clock import SystemClock
from prime_runtime.objects.store import open_object_store
from support.app_context import FakeAppContext

Client = TestClient[web.Request, web.Application]


def index_log(context: FakeAppContext) -> None:
    """Bring the index up to the newest signed head."""
    home = CoordinatorHome(context.config.folder)
    index = IndexWriter.open(home.explorer / "index.db", "test")
    follower = LogFollower(home.mirror, index, snapshot=home.explorer / "state.snapshot", key=None)
    follower.advance(context.now_ms())
    follower.close()


@asynccontextmanager
async def reading(context: FakeAppContext) -> AsyncIterator[Client]:
    """A client of the pages, with everything that the world has written in the index."""
    index_log(context)
    objects = open_object_store(str(context.config.folder / "objects"))
    explorer = make_explorer(context, GossipRelay(Random(1), now_ms=0), objects, SystemClock())
    app = web.Application()
    explorer.add_routes(app)
    async with TestClient(TestServer(app)) as client:
        yield client
    explorer.close()
    context.log.close()


async def ask(client: Client, path: str, **query: str) -> Any:
    async with client.get(JSON_ROOT + path, params=query) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def ask_all(client: Client, path: str, table: str = "", **query: str) -> list[Any]:
    """Every row, page after page. `table` is the field of the view that has the rows."""
    rows: list[Any] = []
    while True:
        view = await ask(client, path, **query)
        page = view[table] if table else view
        rows += page["rows"]
        if page["next"] is None:
            return rows
        query["after" if path == "/nodes" else "before"] = page["next"]
