"""The control API of a running program, on loopback: status and commands for other processes, pages for people.

Status and commands require the token in the lock file, which only its owner can read. Pages show no secrets and accept
no commands, so they need no token. Requests for another host name than 127.0.0.1 or localhost are refused: a foreign
web page could make its own name resolve to this machine (DNS rebinding).
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
"""Takes arguments and returns a text that says what was done. LocalError: it cannot be done."""
ControlPage = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProgramNotRunning(LocalError):
    """No program runs in the folder, or it does not answer."""


class ControlServer:
    """The server in the running program."""

    def __init__(
        self, report: StatusReport, commands: Mapping[str, ControlCommand], pages: Mapping[str, ControlPage]
    ) -> None:
        self._report = report
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        app = web.Application(middlewares=[_check_host_name], client_max_size=BODY_BYTES_MAX)
        app.router.add_get("/status", self._get_status)
        for name, command in commands.items():
            app.router.add_post(f"/{name}", self._make_handler(command))
        for path, page in pages.items():
            app.router.add_get(path, page)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.5)

    async def open(self, port: int, *, advice: str, is_firm: bool = True) -> str:
        """Listen and return the URL. Port 0 takes a free port; without `is_firm` a port in use does so too."""
        await self._runner.setup()
        try:
            await self._listen(port)
        except OSError as error:
            if is_firm or error.errno != errno.EADDRINUSE:
                await self._runner.cleanup()
                problem = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
                raise LocalError(f"cannot listen on {HOST} port {port}: {problem}; {advice}") from None
            await self._listen(0)
        return f"http://{HOST}:{self._runner.addresses[0][1]}"

    async def _listen(self, port: int) -> None:
        await web.TCPSite(self._runner, HOST, port).start()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _get_status(self, request: web.Request) -> web.Response:
        self._check_token(request)
        return web.json_response(self._report())

    def _make_handler(self, command: ControlCommand) -> ControlPage:
        async def handle(request: web.Request) -> web.Response:
            self._check_token(request)
            try:
                return web.json_response({"text": command(await _read_arguments(request))})
            except LocalError as error:
                raise web.HTTPConflict(text=f"{error}\n") from None

        return handle

    def _check_token(self, request: web.Request) -> None:
        """Keeps out web pages in a browser on this machine, too: they cannot know the token."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise web.HTTPForbidden(text="the token is in the lock file\n")


@web.middleware
async def _check_host_name(request: web.Request, handler: ControlPage) -> web.StreamResponse:
    """A foreign name that resolves to 127.0.0.1 would give a foreign page the origin of ours."""
    if request.host.rpartition(":")[0] not in HOST_NAMES:
        raise web.HTTPMisdirectedRequest(text=f"use the host name {HOST}\n")
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
        raise web.HTTPBadRequest(text="the body is not a JSON object of strings\n")
    return given


# --- The client in other commands -------------------------------------------------------------------------------------


async def call_control_api(
    lock: Path, who: str, method: str, path: str, *, start: str, given: dict[str, str] | None = None
) -> dict[str, Any]:
    """Call the program that holds this lock file. `who` names it in errors, `start` is the command that starts it."""
    info = read_lock_info(lock) if is_held(lock) else {}
    if "url" not in info:
        if info:
            raise ProgramNotRunning(f"the {who} in {lock.parent}, process {info.get('pid')}, is starting; try again")
        raise ProgramNotRunning(f"the {who} in {lock.parent} is not running; start it with: {start}")
    headers = {"Authorization": f"Bearer {info['token']}"}
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.request(method, f"{info['url']}{path}", headers=headers, json=given) as response,
        ):
            if response.status == 409:
                raise LocalError((await response.text()).strip())
            if response.status != 200:
                raise ProgramNotRunning(f"the {who} answers HTTP {response.status}: {(await response.text()).strip()}")
            report: dict[str, Any] = await response.json()
            return report
    except (aiohttp.ClientError, OSError) as error:
        problem = str(error) or type(error).__name__
        raise ProgramNotRunning(f"the {who}, process {info.get('pid')}, does not answer: {problem}") from None


async def wait_until_stopped(lock: Path, who: str, wait_ms: int) -> None:
    """Wait until no process holds the lock."""
    try:
        async with asyncio.timeout(wait_ms / 1000):
            while is_held(lock):
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise ProgramNotRunning(
            f"the {who} in {lock.parent} was told to stop, and has not after {wait_ms} ms"
        ) from None
