"""The explorer by itself: pages over a copy of somebody's log, for whoever would rather check than believe.

It follows the copy like a coordinator's own explorer does, serves the copy's files for the checks in the browser, and
fetches the files that the log names from where they are, if it is told where.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import aiohttp
from aiohttp import web

from prime_explorer.app import Explorer
from prime_explorer.constants import FETCH_TIMEOUT_S
from prime_explorer.live import NoObjects, NothingLive, Objects
from prime_explorer.rollout_texts import Model
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest
from prime_runtime.clock import SystemClock
from prime_runtime.mirror_pages import send_checkpoint, send_tile

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneConfig:
    """What `prime-coordinator explorer` was told."""

    log: str
    """URL of a log, or a folder that holds a copy of one."""
    folder: Path
    """Where the index is kept, and the copy if the log is a URL."""
    host: str = "127.0.0.1"
    port: int = 0
    key: str | None = None
    """The log's verifier key, as its operator published it."""
    objects: str | None = None
    """URL under which files that the log names are found, as /objects/<digest>."""
    models: tuple[Model, ...] = ()

    @property
    def is_remote(self) -> bool:
        return self.log.startswith(("http://", "https://"))

    @property
    def mirror(self) -> Path:
        return self.folder / "mirror" if self.is_remote else Path(self.log)


class RemoteObjects:
    """Files by digest from a coordinator, each checked against its name."""

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


async def read_bounded(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(2**16):
        data += chunk
        if len(data) > bytes_max:
            return None
    return bytes(data)


async def serve_alone(config: AloneConfig, on_ready: asyncio.Future[str], until: asyncio.Event) -> None:
    """Until told to stop; `on_ready` is given the address."""
    async with AsyncExitStack() as stack:
        objects: Objects = NoObjects()
        if config.objects:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            objects = RemoteObjects(config.objects, session)
        explorer = Explorer(
            mirror=config.mirror,
            folder=config.folder,
            live=NothingLive(),
            objects=objects,
            clock=SystemClock(),
            models=config.models,
            source=config.log if config.is_remote else None,
            key=config.key,
            is_live=False,
        )
        stack.callback(explorer.close)
        app = web.Application()
        explorer.add_routes(app)
        _add_files(app, config)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        on_ready.set_result(await _listen(runner, config))
        explorer.begin()
        work = asyncio.create_task(explorer.run())
        try:
            await until.wait()
        finally:
            explorer.end_streams()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def _listen(runner: web.AppRunner, config: AloneConfig) -> str:
    site = web.TCPSite(runner, config.host, config.port)
    try:
        await site.start()
    except OSError as error:
        raise LocalError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}; choose another --port"
        ) from None
    host, port = runner.addresses[0][:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _add_files(app: web.Application, config: AloneConfig) -> None:
    async def get_checkpoint(request: web.Request) -> web.StreamResponse:
        return await send_checkpoint(config.mirror)

    async def get_tile(request: web.Request) -> web.StreamResponse:
        return await send_tile(config.mirror, request.match_info["path"])

    async def get_object(request: web.Request) -> web.StreamResponse:
        try:
            digest = Digest.parse(request.match_info["digest"])
        except RemoteError as error:
            return web.Response(status=404, text=f"{error}\n")
        if config.objects is None:
            text = (
                "This explorer has only the log. Start it with --objects URL to be led to files that the log names.\n"
            )
            return web.Response(status=404, text=text)
        return web.Response(status=302, headers={"Location": f"{config.objects.rstrip('/')}/objects/{digest}"})

    app.router.add_get("/log/checkpoint", get_checkpoint)
    app.router.add_get("/log/tile/{path:.+}", get_tile)
    app.router.add_get("/objects/{digest}", get_object)
