"""HTTP connections to shard servers: GET requests, with the body passed on piece by piece; and a pool of them.

The client side of HTTP/1.1, as far as shards need it: an answer must declare its length, heads are short, bodies are
never longer than requested. A server that sends anything else loses the connection.
"""

import asyncio
import re
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Any, Protocol, cast

from prime_protocol.errors import RemoteError
from prime_protocol.wire.addresses import ServerUrl
from prime_protocol.wire.ids import NodeId
from prime_runtime.rate_limits import BandwidthLimit

HEAD_BYTES_MAX = 8 * 2**10
SMALL_BYTES_MAX = 64 * 2**10
"""Longest body of any answer but the requested shard or manifest: refusals, bitmaps."""
CONNECT_MS = 5_000
GATHER_S = 0.1
GATHER_BYTES_MAX = 512 * 2**10
"""The kernel collects this much, or what arrives in this time, before it wakes us: far fewer wake-ups on a slow line.
It is also the size of one receive, small enough to stay in the CPU cache until it is hashed and written."""
PIECE_BYTES_MIN = 16 * 2**10
"""Least that is received at once where the owner has set a rate limit."""
STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9])(?: [^\r\n]*)?")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*")


class ConnectionBroken(Exception):
    """The connection was lost, or the server broke the protocol. It cannot be used again."""


class LaneBusy(ConnectionBroken):
    """The node is connected, and every connection of it is in use."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The head of an answer."""

    status: int
    length: int
    is_last: bool
    """The server closes the connection after this answer."""


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """A complete answer. `body` is empty if the bytes went to a target."""

    status: int
    body: bytes
    filled_bytes: int


class BodyTarget(Protocol):
    """Receives a body of a known length, piece by piece. The next piece reuses the memory of this one."""

    length: int

    def take(self, piece: memoryview) -> None:
        """OSError ends the request."""


class ConnectionState(Enum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    CLOSED = "closed"


def parse_head(raw: bytes) -> ResponseHead:
    """Parse a head without its last empty line. Raises ConnectionBroken."""
    first, *lines = raw.split(b"\r\n")
    status = STATUS_LINE.fullmatch(first)
    if status is None:
        raise ConnectionBroken("the answer is not HTTP/1.1")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        header = HEADER.fullmatch(line)
        if header is None:
            raise ConnectionBroken("the answer has a malformed header")
        name = header[1].lower()
        if name in headers and name in (b"content-length", b"transfer-encoding"):
            raise ConnectionBroken("the answer declares its length twice")
        headers[name] = header[2]
    length = headers.get(b"content-length", b"")
    if b"transfer-encoding" in headers or not re.fullmatch(rb"[0-9]{1,12}", length):
        raise ConnectionBroken("the answer does not declare its length")
    return ResponseHead(int(status[1]), int(length), headers.get(b"connection", b"").lower() == b"close")


class ShardConnection(asyncio.BufferedProtocol):
    """A kept-alive connection for one request at a time."""

    def __init__(
        self,
        host: str,
        limit: BandwidthLimit | None = None,
        buffer: memoryview | None = None,
        on_closed: "Callable[[ShardConnection], None] | None" = None,
    ) -> None:
        self._host = host.encode()
        self._receive_buffer = memoryview(bytearray(GATHER_BYTES_MAX)) if buffer is None else buffer
        """Bytes are consumed before the loop serves another connection, so several connections may share one buffer."""
        self._limit = limit
        self._piece_bytes = max(PIECE_BYTES_MIN, limit.bytes_per_s // 10) if limit is not None else None
        self._state = ConnectionState.IDLE
        self._transport: asyncio.Transport | None = None
        self._head_buffer = memoryview(bytearray(HEAD_BYTES_MAX))
        self._head_bytes = 0
        self._head: ResponseHead | None = None
        self._target: BodyTarget | None = None
        self._body = bytearray()
        self._body_bytes = 0
        self._sink: BodyTarget | None = None
        """The target, if this body goes there; a refusal's body does not."""
        self._body_bytes_max = SMALL_BYTES_MAX
        self._body_s = 0.0
        self._mark = 1
        self._on_bytes: Callable[[int], None] | None = None
        self._done: asyncio.Future[FetchResponse] | None = None
        self._on_closed = on_closed
        self.received_bytes = 0
        """Of all shards."""

    @property
    def is_idle(self) -> bool:
        return self._state is ConnectionState.IDLE

    @property
    def remote(self) -> tuple[str, int]:
        """Address and port of the other end, as this side sees them."""
        assert self._transport is not None, "a closed connection has no other end"
        found = self._transport.get_extra_info("peername")
        return str(found[0]), int(found[1])

    async def get(
        self,
        path: str,
        headers: dict[str, str],
        *,
        target: BodyTarget | None = None,
        on_bytes: Callable[[int], None] | None = None,
        body_bytes_max: int = SMALL_BYTES_MAX,
    ) -> FetchResponse:
        """Send one request. With a target, a 200 or 206 must have exactly its length, and goes there.

        Raises ConnectionBroken; OSError if the target cannot store the bytes.
        """
        if self._state is not ConnectionState.IDLE or self._transport is None:
            raise ConnectionBroken("the connection was closed")
        lines = [f"GET {path} HTTP/1.1".encode(), b"Host: " + self._host]
        lines += [f"{name}: {value}".encode() for name, value in headers.items()]
        self._state, self._head_bytes, self._target, self._on_bytes = ConnectionState.HEAD, 0, target, on_bytes
        self._body_bytes_max = body_bytes_max
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(b"\r\n".join(lines) + b"\r\n\r\n")
        try:
            return await self._done
        finally:
            self._target, self._on_bytes = None, None
            if not self.is_idle:
                self.close()

    def close(self) -> None:
        """Close at once; no further byte is received."""
        self._state = ConnectionState.CLOSED
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            if self._on_closed is not None:
                self._on_closed(self)

    # --- Callbacks of the event loop --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._state is ConnectionState.BODY:
            left = self._length() - self._body_bytes
            return self._receive_buffer[: left if self._piece_bytes is None else min(left, self._piece_bytes)]
        return self._head_buffer[self._head_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._state is ConnectionState.BODY:
                self._take_body(self._receive_buffer[:nbytes])
            elif self._state is ConnectionState.HEAD:
                self._take_head(nbytes)
            else:
                raise ConnectionBroken("the server sent bytes without a request")
        except (ConnectionBroken, OSError) as error:
            self._fail(error)

    def eof_received(self) -> None:
        self._fail(ConnectionBroken("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionBroken(f"the connection was lost: {exc}"))

    # --- Receiving --------------------------------------------------------------------------------------------------

    def _take_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        raw = bytes(self._head_buffer[: self._head_bytes])
        head, end, rest = raw.partition(b"\r\n\r\n")
        if not end:
            if self._head_bytes == HEAD_BYTES_MAX:
                raise ConnectionBroken("the answer's head is too long")
            return
        self._head = parse_head(head)
        self._sink = self._choose_sink(self._head)
        if len(rest) > self._head.length:
            raise ConnectionBroken("the server sent more than it declared")
        self._body, self._body_bytes = bytearray(), 0
        self._state = ConnectionState.BODY
        self._body_s = time.monotonic()
        self._take_body(memoryview(rest))

    def _choose_sink(self, head: ResponseHead) -> BodyTarget | None:
        sink = self._target if head.status in (200, 206) else None
        if sink is not None and head.length != sink.length:
            raise ConnectionBroken(f"the answer is {head.length} bytes long, expected were {sink.length}")
        if sink is None and head.length > self._body_bytes_max:
            raise ConnectionBroken(f"the answer is {head.length} bytes long")
        return sink

    def _length(self) -> int:
        assert self._head is not None, "a body comes after its head"
        return self._head.length

    def _take_body(self, piece: memoryview) -> None:
        self._body_bytes += len(piece)
        if self._sink is not None:
            self.received_bytes += len(piece)
            self._sink.take(piece)
        else:
            self._body += piece
        self._set_low_watermark()
        self._throttle(len(piece))
        if self._on_bytes is not None and len(piece) and self._sink is not None:
            self._on_bytes(self._body_bytes)
        if self._body_bytes == self._length():
            self._end()

    def _set_low_watermark(self) -> None:
        """Set SO_RCVLOWAT to what arrives in GATHER_S at the current rate, and never to more than is still expected."""
        if self._transport is None or self._sink is None:
            return
        rate = self._body_bytes / max(time.monotonic() - self._body_s, GATHER_S)
        piece = self._piece_bytes or GATHER_BYTES_MAX
        wanted = min(int(rate * GATHER_S), GATHER_BYTES_MAX, piece, self._length() - self._body_bytes)
        # Powers of two, so that the socket option changes rarely.
        mark = 1 << max(0, wanted.bit_length() - 1)
        if mark != self._mark:
            self._mark = mark
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)

    def _throttle(self, nbytes: int) -> None:
        """Apply the owner's rate limit: stop reading, the kernel's buffer fills up, and the sender waits."""
        wait_ms = self._limit.take(nbytes, time.monotonic_ns() // 1_000_000) if self._limit is not None else 0
        if wait_ms and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(wait_ms / 1000, self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def _end(self) -> None:
        head, done = self._head, self._done
        assert head is not None
        assert done is not None
        answer = FetchResponse(head.status, bytes(self._body), self._body_bytes if self._sink is not None else 0)
        self._body, self._sink = bytearray(), None
        self._state = ConnectionState.IDLE
        self._head_bytes = 0
        if head.is_last:
            self.close()
        if not done.done():
            done.set_result(answer)

    def _fail(self, error: ConnectionBroken | OSError) -> None:
        self.close()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


async def open_connection(
    url: ServerUrl, *, allow_private: bool, limit: BandwidthLimit | None = None, buffer: memoryview | None = None
) -> ShardConnection:
    """Connect to an untrusted server. ConnectionBroken if it cannot be reached, or has a private address."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_MS / 1000):
            found = await loop.getaddrinfo(url.host, url.port, type=1)
            address = choose_address([str(each[4][0]) for each in found], allow_private=allow_private)
            kwargs: dict[str, Any] = {"ssl": True, "server_hostname": url.host} if url.scheme == "https" else {}
            _, connection = await loop.create_connection(
                lambda: ShardConnection(str(url).partition("//")[2], limit, buffer), address, url.port, **kwargs
            )
    except (OSError, TimeoutError, RemoteError) as error:
        raise ConnectionBroken(f"cannot connect to {url}: {error or type(error).__name__}") from None
    return connection


def choose_address(addresses: list[str], *, allow_private: bool) -> str:
    """The first address that a peer may direct us to. Checked after name resolution, since a public name can point
    into our private network."""
    for address in addresses:
        if allow_private or ip_address(address.partition("%")[0]).is_global:
            return address
    raise RemoteError("urls", "lead into a private network; --weights-allow-private lets them, if it is yours")


class LaneSource(Protocol):
    """Connections that other nodes opened to this one, because this one cannot connect to them."""

    def nodes(self) -> Collection[NodeId]: ...

    def borrow(self, node: NodeId) -> AbstractAsyncContextManager[ShardConnection]: ...


IDLE_MAX = 32
"""Idle connections kept; the least recently used is closed first."""


class ConnectionPool:
    """Keeps idle connections to parents for reuse."""

    def __init__(self, *, allow_private: bool, bytes_per_s: int | None = None) -> None:
        self.allow_private = allow_private
        self._limit = BandwidthLimit(bytes_per_s) if bytes_per_s else None
        self._receive_buffer = memoryview(bytearray(GATHER_BYTES_MAX))
        """The rate limit and the buffer are shared by all connections."""
        self.lanes: LaneSource | None = None
        self._idle: OrderedDict[tuple[str, int], ShardConnection] = OrderedDict()
        self._numbers = 0

    def make_connection(self, host: str, on_closed: Callable[[ShardConnection], None] | None) -> ShardConnection:
        """A connection of this pool that is not open yet."""
        return ShardConnection(host, self._limit, self._receive_buffer, on_closed)

    def linked_nodes(self) -> Collection[NodeId]:
        """Nodes that can be asked without an address of theirs."""
        return self.lanes.nodes() if self.lanes is not None else ()

    @asynccontextmanager
    async def borrow(self, urls: Sequence[str], node: NodeId | None = None) -> AsyncIterator[ShardConnection]:
        """A connection that the node opened to us, or one to the first of these URLs that answers. Raises
        ConnectionBroken."""
        if node is not None and self.lanes is not None and node in self.lanes.nodes():
            async with self.lanes.borrow(node) as connection:
                yield connection
            return
        url, connection = await self._get_connection(urls)
        try:
            yield connection
        finally:
            if connection.is_idle:
                self._numbers += 1
                self._idle[url, self._numbers] = connection
                while len(self._idle) > IDLE_MAX:
                    self._idle.popitem(last=False)[1].close()
            else:
                connection.close()

    async def _get_connection(self, urls: Sequence[str]) -> tuple[str, ShardConnection]:
        for url in urls:
            for place in [place for place in self._idle if place[0] == url]:
                connection = self._idle.pop(place)
                if connection.is_idle:
                    return url, connection
        problem = ConnectionBroken("the node has published no address")
        for url in urls:
            try:
                server = ServerUrl.parse(url)
                return url, await open_connection(
                    server, allow_private=self.allow_private, limit=self._limit, buffer=self._receive_buffer
                )
            except ConnectionBroken as error:
                problem = error
        raise problem

    async def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].close()
        await asyncio.sleep(0)
