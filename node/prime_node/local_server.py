"""The door for other commands of this machine: status and stop, on loopback, for whoever may read the node's folder.

The token stands in the lock file, which only its owner can read.
"""

import hmac
import secrets
from collections.abc import Callable
from typing import Any

from aiohttp import web

from prime_protocol.errors import LocalError

TOKEN_BYTES = 24
HOST = "127.0.0.1"


class LocalServer:
    """One running door."""

    def __init__(self, report: Callable[[], dict[str, Any]], stop: Callable[[], None]) -> None:
        self._report = report
        self._stop = stop
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        app = web.Application()
        app.router.add_get("/status", self._tell_status)
        app.router.add_post("/stop", self._take_stop)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.5)

    async def start(self) -> str:
        """Its URL."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        try:
            await site.start()
        except OSError as error:
            raise LocalError(f"cannot listen on {HOST}: {error.strerror}") from None
        return f"http://{HOST}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _tell_status(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response(self._report())

    async def _take_stop(self, request: web.Request) -> web.Response:
        self._check(request)
        self._stop()
        return web.json_response({"ok": True})

    def _check(self, request: web.Request) -> None:
        """Not even a web page on this machine may ask: it cannot know the token."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise web.HTTPForbidden(text="the token is in the node's lock file\n")
