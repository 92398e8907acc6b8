"""The listening socket of a server: TLS, a limit on connections, and a fast path for frequent requests.

Heartbeats and lease requests arrive thousands of times a second. For each request aiohttp creates a URL, a header
table, a stream, a request, a writer and a task, and passes three times through the event loop; together that costs as
much as verifying a signature. The fast path answers a request in `data_received` if it arrives complete, in one piece,
and in the plain form that nodes send. Any other request goes to aiohttp, and so does the rest of its connection,
because aiohttp's parser may hold the beginning of the next request.
"""

import asyncio
import errno
import re
import ssl
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

from prime_protocol.errors import LocalError
from prime_runtime.http.config import ListenConfig

FastPathAnswer = Callable[[str, bytes], bytes | Awaitable[bytes]]
"""Takes address and body, and returns the complete response, now or later."""
HEAD_BYTES_MAX = 1024
HEADS_CACHED = 1024
"""Parsed heads that are remembered: a node sends the same head with every heartbeat."""

START = re.compile(rb"POST (/api/[A-Za-z.]{1,64}) HTTP/1\.1")
HEADER = re.compile(rb"([A-Za-z-]{1,40}): ([\x20-\x7e]{1,200})")
PLAIN_HEADERS = frozenset({b"host", b"accept", b"accept-encoding", b"content-type", b"user-agent", b"content-length"})
"""A request with any other header goes to aiohttp: it may ask for something that only aiohttp implements."""
LENGTH = re.compile(rb"0|[1-9][0-9]{0,8}")

AIOHTTP_PRIVATE_NAMES = (
    *("_loop", "_waiter", "_messages", "_close", "_force_close", "_paused", "_process_keepalive"),
    *("_keepalive", "_keepalive_handle", "_keepalive_timeout", "_next_keepalive_close_time"),
)
IS_AIOHTTP_SUPPORTED = all(hasattr(RequestHandler, name) for name in AIOHTTP_PRIVATE_NAMES)
"""This release of aiohttp has the private attributes that the fast path uses. Without them it is off."""


class FastPath:
    """The paths that the fast path answers, and their handlers."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._answers: dict[str, FastPathAnswer] = {}

    def add(self, path: str, answer: FastPathAnswer) -> None:
        self._answers[path] = answer

    def find(self, path: str, body: bytes) -> FastPathAnswer | None:
        return self._answers.get(path) if len(body) <= self._bytes_max else None


class FastPathHandler(RequestHandler):
    """A connection."""

    __slots__ = ("_address", "_fast_path", "_is_plain", "_later")

    def __init__(
        self, server: Server, fast_path: FastPath, *, loop: asyncio.AbstractEventLoop, **settings: Any
    ) -> None:
        super().__init__(server, loop=loop, **settings)
        self._fast_path = fast_path
        self._address = "unknown"
        self._is_plain = IS_AIOHTTP_SUPPORTED
        """All requests so far were complete and plain."""
        self._later: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else "unknown"

    def data_received(self, data: bytes) -> None:
        if not (self._is_plain and self._is_answered(data)):
            super().data_received(data)

    def _is_answered(self, data: bytes) -> bool:
        found = parse_plain_request(data)
        if found is None:
            self._is_plain = False
            return False
        answer = self._fast_path.find(*found)
        # Only while aiohttp waits for a request, and only while the peer reads what it is sent.
        is_idle = self._waiter is not None and not self._waiter.done() and not self._messages
        if answer is None or not is_idle or self._paused or self._close or self._force_close:
            return False
        self._stay_alive()
        reply, transport = answer(self._address, found[1]), cast(asyncio.Transport, self.transport)
        if isinstance(reply, bytes):
            transport.write(reply)
        else:
            transport.pause_reading()  # answers must leave in the order of their requests
            self._later = self._loop.create_task(self._write_later(reply))
        return True

    async def _write_later(self, reply: Awaitable[bytes]) -> None:
        data = await reply
        if self.transport is not None:
            self._stay_alive()
            self.transport.write(data)
            self.transport.resume_reading()

    def _stay_alive(self) -> None:
        """Restart the keep-alive timer, as aiohttp does after each answer."""
        self._keepalive = True
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)


def parse_plain_request(data: bytes) -> tuple[str, bytes] | None:
    """Path and body if the data is exactly one plain POST, else None."""
    end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    head = parse_plain_head(data[:end]) if end >= 0 else None
    if head is None or len(data) != end + 4 + head[1]:
        return None
    return head[0], data[end + 4 :]


@lru_cache(maxsize=HEADS_CACHED)
def parse_plain_head(head: bytes) -> tuple[str, int] | None:
    """Path and body length. Strict: one accepted form per line, each header at most once."""
    first, *lines = head.split(b"\r\n")
    start = START.fullmatch(first)
    headers: dict[bytes, bytes] = {}
    for line in lines:
        found = HEADER.fullmatch(line)
        name = found[1].lower() if found else b""
        if found is None or name not in PLAIN_HEADERS or name in headers:
            return None
        headers[name] = found[2]
    if start is None or b"host" not in headers or not LENGTH.fullmatch(headers.get(b"content-length", b"")):
        return None
    return start[1].decode(), int(headers[b"content-length"])


class HttpListener(web.BaseSite):
    """A listening socket that closes new connections beyond `connections_max`."""

    def __init__(
        self, runner: web.AppRunner, config: ListenConfig, fast_path: FastPath, *, connections_max: int
    ) -> None:
        super().__init__(runner, ssl_context=_tls_context(config))
        self._config = config
        self._fast_path = fast_path
        self._connections_max = connections_max

    @property
    def name(self) -> str:
        port = self.port if self._server else self._config.port
        return f"{'https' if self._ssl_context else 'http'}://{self._config.host}:{port}"

    @property
    def port(self) -> int:
        """The bound port, also if port 0 was requested."""
        server = cast(asyncio.Server, self._server)
        return int(server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        await super().start()
        server = self._runner.server
        assert server is not None, "the runner is set up before its listener"

        loop = asyncio.get_running_loop()

        def accept() -> asyncio.BaseProtocol:
            if len(server.connections) >= self._connections_max:
                return _RejectConnection()
            return FastPathHandler(server, self._fast_path, loop=loop, **server._kwargs)

        try:
            self._server = await loop.create_server(
                accept, self._config.host, self._config.port, ssl=self._ssl_context, backlog=self._backlog
            )
        except OSError as error:
            raise LocalError(f"cannot listen on {self.name}: {_advice(error)}") from None


class _RejectConnection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


def _tls_context(config: ListenConfig) -> ssl.SSLContext | None:
    if config.tls_certificate is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise LocalError(
            f"cannot use the TLS certificate {config.tls_certificate} with the key {config.tls_key}: {error}"
        ) from None
    return context


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; is another copy running? Choose another port"
    if error.errno == errno.EACCES:
        return "this user may not bind that port; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    return str(error.strerror or error)
