"""A program's door for its own machine, on loopback: orders and status for other commands, pages for people.

Orders and status need the token, which stands in the lock file that only its owner can read. Pages show no secrets and
take no orders, so they need none; but a name that a stranger's web page points at this machine is not let in.
"""

import asyncio
import errno
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from prime_protocol.errors import LocalError
from prime_runtime.lock import is_held, read_lock_info

TOKEN_BYTES = 24
HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
BODY_BYTES_MAX = 4096
CALL_S = 10.0
POLL_S = 0.05

StatusReport = Callable[[], dict[str, Any]]
ControlCommand = Callable[[dict[str, str]], str]
"""What was given with it to what was done, in words; LocalError where it cannot be."""
ControlPage = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProgramNotRunning(LocalError):
    """No process runs in the folder, or it does not answer."""


class ControlServer:
    """The side of the running program."""

    def __init__(
        self, report: StatusReport, orders: Mapping[str, ControlCommand], pages: Mapping[str, ControlPage]
    ) -> None:
        self._report = report
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        app = web.Application(middlewares=[_check_host_name], client_max_size=BODY_BYTES_MAX)
        app.router.add_get("/status", self._tell_status)
        for name, order in orders.items():
            app.router.add_post(f"/{name}", self._take(order))
        for path, show in pages.items():
            app.router.add_get(path, show)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.5)

    async def open(self, port: int, *, advice: str, is_firm: bool = True) -> str:
        """Its URL; port 0 takes a free one. Without `is_firm` so does a port that is taken."""
        await self._runner.setup()
        try:
            await self._listen(port)
        except OSError as error:
            if is_firm or error.errno != errno.EADDRINUSE:
                await self._runner.cleanup()
                problem = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror
                raise LocalError(f"cannot listen on {HOST} port {port}: {problem}; {advice}") from None
            await self._listen(0)
        return f"http://{HOST}:{self._runner.addresses[0][1]}"

    async def _listen(self, port: int) -> None:
        await web.TCPSite(self._runner, HOST, port).start()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _tell_status(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response(self._report())

    def _take(self, order: ControlCommand) -> ControlPage:
        async def take(request: web.Request) -> web.Response:
            self._check(request)
            try:
                return web.json_response({"text": order(await _read_arguments(request))})
            except LocalError as error:
                raise web.HTTPConflict(text=f"{error}\n") from None

        return take

    def _check(self, request: web.Request) -> None:
        """Not even a web page on this machine may ask: it cannot know the token."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise web.HTTPForbidden(text="the token is in the lock file\n")


@web.middleware
async def _check_host_name(request: web.Request, handler: ControlPage) -> web.StreamResponse:
    """A foreign name that resolves to 127.0.0.1 would give a foreign page this page's origin."""
    if request.host.rpartition(":")[0] not in HOST_NAMES:
        raise web.HTTPMisdirectedRequest(text=f"ask for {HOST} by that name\n")
    return await handler(request)


async def _read_arguments(request: web.Request) -> dict[str, str]:
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


# --- The side of other commands ---------------------------------------------------------------------------------------


async def call_control_api(
    lock: Path, who: str, method: str, path: str, *, start: str, given: dict[str, str] | None = None
) -> dict[str, Any]:
    """One question or order to the program whose lock file that is. `who` is what people call it, `start` starts it."""
    facts = read_lock_info(lock) if is_held(lock) else {}
    if "url" not in facts:
        if facts:
            raise ProgramNotRunning(
                f"the {who} in {lock.parent}, process {facts.get('pid')}, is just starting; try again"
            )
        raise ProgramNotRunning(f"the {who} in {lock.parent} is not running; start it with: {start}")
    headers = {"Authorization": f"Bearer {facts['token']}"}
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.request(method, f"{facts['url']}{path}", headers=headers, json=given) as response,
        ):
            if response.status == 409:
                raise LocalError((await response.text()).strip())
            if response.status != 200:
                raise ProgramNotRunning(f"the {who} answers HTTP {response.status}: {(await response.text()).strip()}")
            report: dict[str, Any] = await response.json()
            return report
    except (aiohttp.ClientError, OSError) as error:
        problem = str(error) or type(error).__name__
        raise ProgramNotRunning(f"the {who}, process {facts.get('pid')}, does not answer: {problem}") from None


async def wait_until_stopped(lock: Path, who: str, wait_ms: int) -> None:
    """Until no process holds the lock."""
    try:
        async with asyncio.timeout(wait_ms / 1000):
            while is_held(lock):
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise ProgramNotRunning(
            f"the {who} in {lock.parent} was told to stop, and has not after {wait_ms} ms"
        ) from None
