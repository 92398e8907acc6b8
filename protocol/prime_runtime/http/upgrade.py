"""Connections that change their protocol: an HTTP request asks for it, and after answer 101 the roles may turn round.

A node behind a router uses it to serve: it opens the connection, and from the answer on the other side sends the
requests. Both sides are here: the server that gives a connection away, and the client that asks.
"""

import asyncio
import base64
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

from prime_protocol.errors import RemoteError
from prime_runtime.http.messages import ENVELOPE_HEADER

UPGRADE_TOKEN = "prime-shards"
HEAD_BYTES_MAX = 16 * 2**10
STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9])(?: [^\r\n]*)?")
KEEPALIVE_S, KEEPALIVE_TRIES = 20, 3
"""The kernel probes an idle connection this often. Routers forget an idle connection after a few minutes, and neither
side would notice."""

TakeOver = Callable[[], asyncio.BaseProtocol]
"""Makes the protocol that a connection continues with."""


class UpgradeRefused(RemoteError):
    """The server answered the request, and with something else than 101."""

    def __init__(self, status: int, retry_after_ms: int) -> None:
        super().__init__("reply", f"is HTTP {status} instead of 101", retry_after_ms=retry_after_ms)
        self.status = status


class AdoptedHandler(RequestHandler):
    """Serves a connection that this program opened. Idle is its normal state: the kernel notices if it is dead."""

    __slots__ = ("on_lost",)

    def __init__(self, server: Server, *, loop: asyncio.AbstractEventLoop, **settings: Any) -> None:
        super().__init__(server, loop=loop, **{**settings, "keepalive_timeout": 10**9})
        self.on_lost: Callable[[], None] = lambda: None

    def end(self) -> None:
        """Close the connection, also in the midst of an answer: a file that is being sent would not notice `close`."""
        found = self.transport.get_extra_info("socket") if self.transport is not None else None
        try:
            if found is not None:
                found.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was first

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        on_lost, self.on_lost = self.on_lost, lambda: None
        on_lost()


class UpgradedResponse:
    """Answer 101 with a signed reply; then the connection belongs to another protocol. It implements what aiohttp calls
    on a response."""

    __slots__ = ("_frame", "_take_over", "keep_alive")
    status = 101

    def __init__(self, frame: bytes, take_over: TakeOver) -> None:
        self._frame = frame
        self._take_over = take_over
        self.keep_alive: bool | None = False

    async def prepare(self, request: web.BaseRequest) -> None:
        handler, transport = request.protocol, request.transport
        if transport is None:
            return
        head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
        head += f"Upgrade: {UPGRADE_TOKEN}\r\n{ENVELOPE_HEADER}: {base64.b64encode(self._frame).decode()}\r\n\r\n"
        transport.write(head.encode())
        # aiohttp's handler is told that its connection is gone, and would close a transport that it still has.
        handler.transport = None
        handler.connection_lost(None)
        keep_alive(transport)
        protocol = self._take_over()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    async def write_eof(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class UpgradedConnection:
    """A connection after answer 101."""

    transport: asyncio.Transport
    reply: bytes
    """Frame of the signed reply."""
    rest: bytes
    """What the server has sent since."""


class _UpgradeRequest(asyncio.Protocol):
    """Sends the request, and reads the head of the answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._head = b""
        self.done: asyncio.Future[UpgradedConnection] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if self.done.done():
            return
        if not end:
            if len(self._head) > HEAD_BYTES_MAX:
                self.fail(RemoteError("reply", "has too long a head"))
            return
        try:
            reply = parse_upgrade(head)
        except RemoteError as error:
            self.fail(error)
            return
        self._transport.pause_reading()
        self.done.set_result(UpgradedConnection(self._transport, reply, rest))

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(RemoteError("reply", "did not come: the connection was closed"))

    def fail(self, error: RemoteError) -> None:
        self._transport.abort()
        if not self.done.done():
            self.done.set_exception(error)


def parse_upgrade(head: bytes) -> bytes:
    """The frame in an answer 101. UpgradeRefused: another answer."""
    first, *lines = head.split(b"\r\n")
    status = STATUS_LINE.fullmatch(first)
    if status is None:
        raise RemoteError("reply", "is not HTTP/1.1")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if status[1] != b"101":
        retry = headers.get(b"retry-after", b"")
        raise UpgradeRefused(int(status[1]), int(retry) * 1000 if re.fullmatch(rb"[0-9]{1,6}", retry) else 0)
    if headers.get(b"upgrade", b"").lower() != UPGRADE_TOKEN.encode():
        raise RemoteError("reply", "changes to another protocol")
    try:
        return base64.b64decode(headers.get(ENVELOPE_HEADER.lower().encode(), b""), validate=True)
    except ValueError:
        raise RemoteError("reply", "has an envelope that is not base64") from None


async def request_upgrade(
    host: str,
    port: int,
    path: str,
    frame: bytes,
    *,
    tls_name: str | None = None,
    connected: socket.socket | None = None,
) -> UpgradedConnection:
    """Connect, and ask for the other protocol. RemoteError: the server answered otherwise; OSError: no connection.

    Reading is paused; the protocol that takes over resumes it. `connected`: a socket to use instead.
    """
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: Upgrade", f"Upgrade: {UPGRADE_TOKEN}"]
    lines.append(f"{ENVELOPE_HEADER}: {base64.b64encode(frame).decode()}")
    request = ("\r\n".join(lines) + "\r\n\r\n").encode()
    tls: dict[str, Any] = {"ssl": True, "server_hostname": tls_name} if tls_name else {}
    place: dict[str, Any] = {"sock": connected} if connected is not None else {"host": host, "port": port}
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(lambda: _UpgradeRequest(request), **place, **tls)
    try:
        upgraded = await protocol.done
    finally:
        if protocol.done.cancelled():
            transport.abort()
    keep_alive(upgraded.transport)
    return upgraded


def keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel probe an idle connection."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is None:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S // 2)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TRIES)
