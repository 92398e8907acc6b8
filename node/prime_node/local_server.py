"""The door for this machine, on loopback: orders and status for other commands, the page and the metrics for people.

Orders need the token, which stands in the lock file that only its owner can read. The page shows no secrets and takes
no orders, so it needs none; but a name that a stranger's web page points at this machine is not let in.
"""

import errno
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from prime_node.config import PageConfig
from prime_protocol.errors import LocalError

TOKEN_BYTES = 24
HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
PAGE_PORT = 8470
BODY_BYTES_MAX = 4096

Report = Callable[[], dict[str, Any]]
Order = Callable[[dict[str, str]], str]
"""What was given with it to what was done, in words; LocalError where it cannot be."""
Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LocalServer:
    """One running door."""

    def __init__(
        self, report: Report, orders: Mapping[str, Order], page: PageConfig, pages: Mapping[str, Page] | None = None
    ) -> None:
        self._report = report
        self._config = page
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        app = web.Application(middlewares=[_check_name], client_max_size=BODY_BYTES_MAX)
        app.router.add_get("/status", self._tell_status)
        for name, order in orders.items():
            app.router.add_post(f"/{name}", self._take(order))
        if page.enabled:
            for path, show in (pages or {}).items():
                app.router.add_get(path, show)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.5)

    async def start(self) -> str:
        """Its URL. LocalError: the port that was asked for is taken."""
        await self._runner.setup()
        config = self._config
        try:
            await self._listen(config.port or (PAGE_PORT if config.enabled else 0))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or config.port:
                await self._runner.cleanup()
                problem = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror
                raise LocalError(
                    f"cannot listen on {HOST} port {config.port}: {problem}; choose another --page-port"
                ) from None
            await self._listen(0)
        return f"http://{HOST}:{self._runner.addresses[0][1]}"

    async def _listen(self, port: int) -> None:
        await web.TCPSite(self._runner, HOST, port).start()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _tell_status(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response(self._report())

    def _take(self, order: Order) -> Page:
        async def take(request: web.Request) -> web.Response:
            self._check(request)
            try:
                return web.json_response({"text": order(await _read_given(request))})
            except LocalError as error:
                raise web.HTTPConflict(text=f"{error}\n") from None

        return take

    def _check(self, request: web.Request) -> None:
        """Not even a web page on this machine may ask: it cannot know the token."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise web.HTTPForbidden(text="the token is in the node's lock file\n")


@web.middleware
async def _check_name(request: web.Request, handler: Page) -> web.StreamResponse:
    """A foreign name that resolves to 127.0.0.1 would give a foreign page this page's origin."""
    if request.host.rpartition(":")[0] not in NAMES:
        raise web.HTTPMisdirectedRequest(text=f"ask for {HOST} by that name\n")
    return await handler(request)


async def _read_given(request: web.Request) -> dict[str, str]:
    raw = await request.read()
    if not raw:
        return {}
    try:
        given = json.loads(raw)
    except ValueError:
        raise web.HTTPBadRequest(text="the body is not JSON\n") from None
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise web.HTTPBadRequest(text="the body is not an object of texts\n")
    return given
