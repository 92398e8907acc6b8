"""The explorer, put together: an index that is kept up with a mirror of a log, and the pages over it.

A coordinator mounts it beside its own routes; `prime-coordinator explorer` serves it alone, from a copy of the log.
"""

import asyncio
import logging
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from prime_explorer.attendance import Attendances
from prime_explorer.constants import BEGIN_MS
from prime_explorer.contents import PAGES
from prime_explorer.contributions import send_contributions
from prime_explorer.describing import JSON_ROOT, describe_pages
from prime_explorer.live import Live, NoObjects, Objects
from prime_explorer.manifests import Manifests
from prime_explorer.news import News
from prime_explorer.reading import Reader
from prime_explorer.rendering import Renderer
from prime_explorer.rollout_texts import Model
from prime_explorer.serving import HEADERS, STATIC, Failure, Server
from prime_explorer.site import Site
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.errors import LocalError
from prime_runtime.clock import Clock
from prime_runtime.supervision import Part, Supervisor

log = logging.getLogger(__name__)
END_S = 5.0
"""For the follower to write its snapshot and go."""


class Explorer:
    """One index and its pages."""

    def __init__(
        self,
        *,
        mirror: Path,
        folder: Path,
        live: Live,
        objects: Objects,
        clock: Clock,
        models: tuple[Model, ...] = (),
        proxies: Collection[str] = (),
        source: str | None = None,
        key: str | None = None,
        is_live: bool,
    ) -> None:
        """`folder` is where the index is kept; `source` is the URL that `mirror` is a copy of, where it is one."""
        self._clock = clock
        self._wanted = asyncio.Event()
        self._reader = Reader(folder / "index.db")
        self._news = News(self._reader, clock)
        renderer = Renderer(is_live=is_live, has_files=not isinstance(objects, NoObjects))
        self._attendances = Attendances(folder / "attendance.db", live, clock)
        site = Site(self._reader, mirror, live, objects, Manifests(objects), self._attendances, models)
        self._server = Server(site, renderer, wake=self._wanted.set, proxies=proxies)
        self._command = [
            sys.executable,
            "-m",
            "prime_explorer.follow",
            "--mirror",
            str(mirror),
            "--folder",
            str(folder),
        ]
        self._command += [*(("--source", source) if source else ()), *(("--key", key) if key else ())]

    def add_routes(self, app: web.Application) -> None:
        for page in PAGES:
            app.router.add_get(page.path, self._server.page(page))
            app.router.add_get(JSON_ROOT + page.path.rstrip("/"), self._server.data(page))
        app.router.add_get(f"{JSON_ROOT}/openapi.json", self._server.guard(_describe, is_json=True))
        app.router.add_route("*", JSON_ROOT + "/{tail:.*}", self._server.guard(_refuse_path, is_json=True))
        for path in sorted(STATIC.iterdir()):
            app.router.add_get(f"/static/{path.name}", self._server.file(path.name))
        app.router.add_get(
            "/contributions.csv", self._server.guard(lambda request: send_contributions(request, self._reader))
        )
        app.router.add_get("/live", self._server.stream(self._news.stream))

    async def run(self) -> None:
        """Until cancelled."""
        parts = [
            Part("explorer's index", self._follow),
            Part("explorer's news", self._news.run),
            Part("explorer's attendance", self._attendances.run),
        ]
        await Supervisor(parts, self._clock).run()

    def begin(self) -> None:
        """Do not wait for the first reader."""
        self._wanted.set()

    def end_streams(self) -> None:
        """Let go of readers who would stay for ever."""
        self._news.close()

    def close(self) -> None:
        """When nobody is served any more."""
        self._reader.close()

    async def _follow(self) -> None:
        """The process that keeps the index, from when somebody wants it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_MS / 1000):
                await self._wanted.wait()
        process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.PIPE)
        try:
            code = await process.wait()
        finally:
            await _end(process)
        raise LocalError(f"its process ended with {code}")


async def _describe(request: web.Request) -> web.StreamResponse:
    return web.json_response(describe_pages(str(PROTOCOL_VERSION)), headers=HEADERS)


async def _refuse_path(request: web.Request) -> web.StreamResponse:
    if request.method not in ("GET", "HEAD"):
        raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
    raise Failure(404, "Not found", f"What can be asked is in {JSON_ROOT}/openapi.json.")


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
