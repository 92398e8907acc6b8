"""The explorer, put together: a process that indexes a mirror of a log, and the pages over the index.

A coordinator mounts it beside its own routes. `prime-coordinator explorer` serves it standalone, over a copy of another
operator's log, for people who verify instead of trusting: it also serves the files of the copy, so that the browser can
check proofs, and fetches the files that the log names, if it is told from where.
"""

import asyncio
import logging
import sys
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import aiohttp
from aiohttp import web

from prime_explorer.config import EXPIRED_ASKED_MAX, FETCH_TIMEOUT_S, INDEX_DELAY_MS, PAGE_BURST, PAGE_RATE
from prime_explorer.handlers import PageContext
from prime_explorer.index.store import IndexReader
from prime_explorer.pages.rollouts import RunTokenizer
from prime_explorer.rendering import Renderer
from prime_explorer.routes import JSON_ROOT, PAGE_ROUTES, build_openapi
from prime_explorer.server import HEADERS, STATIC_FOLDER, PageError, PageServer, UpdateStream, send_contributions_csv
from prime_explorer.sources import LiveState, ManifestCache, NoObjects, ObjectSource, UptimeCounter
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.http.messages import EXPIRED_HEADER, parse_expiry
from prime_runtime.log_files import serve_keys, serve_tile, serve_tree_head
from prime_runtime.rate_limits import RateLimit
from prime_runtime.supervisor import SupervisedTask, Supervisor

log = logging.getLogger(__name__)


DEFAULT_RATE = RateLimit(per_second=PAGE_RATE, burst=PAGE_BURST)
SHUTDOWN_S = 5.0
"""Time for the follower to write its snapshot and exit."""


class Explorer:
    """One index and its pages."""

    def __init__(
        self,
        *,
        mirror: Path,
        folder: Path,
        live: LiveState | None,
        objects: ObjectSource,
        clock: Clock,
        models: tuple[RunTokenizer, ...] = (),
        proxies: Collection[str] = (),
        rate: RateLimit = DEFAULT_RATE,
        source: str | None = None,
        key: str | None = None,
        is_indexed: bool = True,
    ) -> None:
        """`folder` holds the index; `source` is the URL that `mirror` is a copy of, if it is one.

        Without an index only those pages are served that do not need it, as JSON.
        """
        self._is_indexed = is_indexed
        self._clock = clock
        self._wanted = asyncio.Event()
        self._reader = IndexReader(folder / "index.db")
        self._updates = UpdateStream(self._reader, clock)
        renderer = Renderer(is_live=live is not None, has_files=not isinstance(objects, NoObjects))
        self._uptime = UptimeCounter(folder / "uptime.db", live, clock)
        context = PageContext(self._reader, mirror, live, objects, ManifestCache(objects), self._uptime, models)
        self._server = PageServer(context, renderer, wake=self._wanted.set, proxies=proxies, rate=rate)
        self._command = [
            sys.executable,
            "-m",
            "prime_explorer.index.follower",
            "--mirror",
            str(mirror),
            "--folder",
            str(folder),
        ]
        self._command += [*(("--source", source) if source else ()), *(("--key", key) if key else ())]

    def add_routes(self, app: web.Application) -> None:
        for page in PAGE_ROUTES:
            if self._is_indexed or not page.needs_index:
                app.router.add_get(page.json_path, self._server.data(page))
        app.router.add_get(f"{JSON_ROOT}/openapi.json", self._server.guard(_send_openapi, is_json=True))
        app.router.add_route("*", JSON_ROOT + "{tail:(/.*)?}", self._server.guard(_reject_unknown_path, is_json=True))
        if not self._is_indexed:
            return
        for page in PAGE_ROUTES:
            if page.template:
                app.router.add_get(page.path, self._server.page(page))
        for path in sorted(STATIC_FOLDER.iterdir()):
            app.router.add_get(f"/static/{path.name}", self._server.file(path.name))
        app.router.add_get(
            "/contributions.csv", self._server.guard(lambda request: send_contributions_csv(request, self._reader))
        )
        app.router.add_get("/live", self._server.stream(self._updates.stream))

    async def run(self) -> None:
        """Run until cancelled."""
        if not self._is_indexed:
            await asyncio.Event().wait()
        parts = [
            SupervisedTask("explorer index", self._run_follower),
            SupervisedTask("explorer updates", self._updates.run),
            SupervisedTask("explorer uptime", self._uptime.run),
        ]
        await Supervisor(parts, self._clock).run()

    def start_indexing(self) -> None:
        """Index now instead of waiting for the first request."""
        self._wanted.set()

    def close_streams(self) -> None:
        """End the update streams, which would otherwise stay open."""
        self._updates.close()

    def close(self) -> None:
        """Called after the last request."""
        self._reader.close()

    async def _run_follower(self) -> None:
        """Run the indexing process, from the first request or after INDEX_DELAY_MS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(INDEX_DELAY_MS / 1000):
                await self._wanted.wait()
        process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.PIPE)
        try:
            code = await process.wait()
        finally:
            await _stop_process(process)
        raise LocalError(f"the indexing process exited with code {code}")


async def _send_openapi(request: web.Request) -> web.StreamResponse:
    return web.json_response(build_openapi(str(PROTOCOL_VERSION)), headers=HEADERS)


async def _reject_unknown_path(request: web.Request) -> web.StreamResponse:
    if request.method not in ("GET", "HEAD"):
        problem = "This API is read-only: use GET."
        raise PageError(405, "Not allowed", problem, field="method")
    raise PageError(404, "Not found", f"{JSON_ROOT}/openapi.json lists the pages.", field="path")


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(SHUTDOWN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneConfig:
    """The options of `prime-coordinator explorer`."""

    log: str
    """URL of a log, or a folder that holds a copy of one."""
    folder: Path
    """Folder of the index, and of the copy if the log is a URL."""
    host: str = "127.0.0.1"
    port: int = 0
    key: str | None = None
    """Verifier key of the log, as its operator published it."""
    objects: str | None = None
    """Base URL of the files that the log names: URL/objects/<digest>."""
    models: tuple[RunTokenizer, ...] = ()

    @property
    def is_remote(self) -> bool:
        return self.log.startswith(("http://", "https://"))

    @property
    def mirror(self) -> Path:
        return self.folder / "mirror" if self.is_remote else Path(self.log)


class HttpObjects:
    """Files from a coordinator, each verified against its digest."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url.rstrip("/")
        self._session = session

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        url = f"{self._url}/objects/{digest}"
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(FETCH_TIMEOUT_S)) as answer:
                if answer.status != 200:
                    return None
                data = await read_bounded(answer, bytes_max)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.info("cannot get %s: %s", url, error)
            return None
        return data if data is not None and sha256(data).digest() == digest else None

    async def find_expired(self, digests: Sequence[Digest]) -> dict[Digest, int]:
        """Asked one by one, without the bodies. Of the files beyond EXPIRED_ASKED_MAX nothing is known."""
        asked = list(digests)[:EXPIRED_ASKED_MAX]
        found = await asyncio.gather(*map(self._find_expired_ms, asked))
        return {digest: at_ms for digest, at_ms in zip(asked, found, strict=True) if at_ms is not None}

    async def _find_expired_ms(self, digest: Digest) -> int | None:
        url = f"{self._url}/objects/{digest}"
        timeout = aiohttp.ClientTimeout(FETCH_TIMEOUT_S)
        try:
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as answer:
                header = answer.headers.get(EXPIRED_HEADER, "") if answer.status == 410 else ""
        except (aiohttp.ClientError, TimeoutError) as error:
            log.info("cannot ask for %s: %s", url, error)
            return None
        return parse_expiry(header)


async def read_bounded(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(2**16):
        data += chunk
        if len(data) > bytes_max:
            return None
    return bytes(data)


async def serve_standalone(config: StandaloneConfig, on_ready: asyncio.Future[str], until: asyncio.Event) -> None:
    """Serve until told to stop; `on_ready` gets the address."""
    async with AsyncExitStack() as stack:
        objects: ObjectSource = NoObjects()
        if config.objects:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            objects = HttpObjects(config.objects, session)
        explorer = Explorer(
            mirror=config.mirror,
            folder=config.folder,
            live=None,
            objects=objects,
            clock=SystemClock(),
            models=config.models,
            source=config.log if config.is_remote else None,
            key=config.key,
        )
        stack.callback(explorer.close)
        app = web.Application()
        explorer.add_routes(app)
        _add_log_routes(app, config)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        on_ready.set_result(await _listen(runner, config))
        explorer.start_indexing()
        work = asyncio.create_task(explorer.run())
        try:
            await until.wait()
        finally:
            explorer.close_streams()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def _listen(runner: web.AppRunner, config: StandaloneConfig) -> str:
    tcp_site = web.TCPSite(runner, config.host, config.port)
    try:
        await tcp_site.start()
    except OSError as error:
        raise LocalError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}; choose another --port"
        ) from None
    host, port = runner.addresses[0][:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _add_log_routes(app: web.Application, config: StandaloneConfig) -> None:
    async def get_checkpoint(request: web.Request) -> web.StreamResponse:
        return await serve_tree_head(config.mirror)

    async def get_keys(request: web.Request) -> web.StreamResponse:
        return await serve_keys(config.mirror)

    async def get_tile(request: web.Request) -> web.StreamResponse:
        return await serve_tile(config.mirror, request.match_info["path"])

    async def get_object(request: web.Request) -> web.StreamResponse:
        try:
            digest = Digest.parse(request.match_info["digest"])
        except RemoteError as error:
            return web.Response(status=404, text=f"{error}\n")
        if config.objects is None:
            text = "This explorer has only the log. Start it with --objects URL to get the files that the log names.\n"
            return web.Response(status=404, text=text)
        return web.Response(status=302, headers={"Location": f"{config.objects.rstrip('/')}/objects/{digest}"})

    app.router.add_get("/log/checkpoint", get_checkpoint)
    app.router.add_get("/log/keys", get_keys)
    app.router.add_get("/log/tile/{path:.+}", get_tile)
    app.router.add_get("/objects/{digest}", get_object)
