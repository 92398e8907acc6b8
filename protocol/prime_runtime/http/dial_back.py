"""The server's side of dial-back: connects to the address of a client that asks whether others can reach it."""

import asyncio
from hashlib import sha256
from ipaddress import ip_address
from typing import Any

from prime_protocol.errors import RemoteError
from prime_protocol.gossip.dial_back import DIAL_BACK, REACHED_PATH, SECRET_BYTES, DialBack, DialBackReply
from prime_protocol.wire.addresses import ServerUrl
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.clock import Clock
from prime_runtime.http.messages import RefusalError
from prime_runtime.http.server import Caller, HttpServer
from prime_runtime.rate_limits import ConcurrencyLimit, RateLimit, TokenBuckets, address_group

ADDRESS_RATE = RateLimit(per_second=1 / 60, burst=4)
"""Of one address. A node asks again after a quarter of an hour."""
ADDRESSES_MAX = 10_000
AT_ONCE_MAX = 8
CONNECT_MS = 4_000
ANSWER_BYTES_MAX = 2_048


class DialBackServer:
    """Answers DIAL_BACK."""

    def __init__(self, clock: Clock, *, allow_private: bool) -> None:
        """`allow_private`: connect to private addresses too. Behind a proxy that it does not know, a server takes its
        own machine for the caller of everybody."""
        self._clock = clock
        self._allow_private = allow_private
        self._addresses = TokenBuckets(ADDRESS_RATE, keys_max=ADDRESSES_MAX)
        self._gate = ConcurrencyLimit(total_max=AT_ONCE_MAX, key_max=1)

    def add_to(self, http: HttpServer) -> None:
        http.add(DIAL_BACK, self.answer)

    async def answer(self, caller: Caller, message: DialBack) -> DialBackReply:
        if not (self._allow_private or is_global(caller.address)):
            raise RefusalError(RefusalCode.FORBIDDEN, "", "your address is private, so nothing would follow from it")
        group = address_group(caller.address)
        if wait_ms := self._addresses.take(group, self._clock.monotonic_ms()):
            raise RefusalError(RefusalCode.RATE_LIMITED, "", "asked too often", retry_after_ms=wait_ms)
        if not self._gate.enter(group):
            raise RefusalError(RefusalCode.OVERLOADED, "", "too many others ask", retry_after_ms=10_000)
        try:
            problem = await self._try(caller.address, message)
        finally:
            self._gate.leave(group)
        return DialBackReply(address=caller.address, is_reached=not problem, problem=problem)

    async def _try(self, address: str, message: DialBack) -> str:
        """Why the node was not reached; empty if it was. RefusalError: that cannot be tested from here."""
        url = ServerUrl.parse(message.url)
        try:
            async with asyncio.timeout(CONNECT_MS / 1000):
                if not await _is_at(url, address):
                    # As for a node that asks by another way than the one that it announces: nothing follows from it.
                    problem = "is not at the address from which you ask"
                    raise RefusalError(RefusalCode.FORBIDDEN, "DialBack.url", problem)
                answer = await _get(url, address, f"{REACHED_PATH}/{message.proof}")
        except TimeoutError:
            return "no connection within 4 s: a router or firewall drops it"
        except RefusalError:
            raise
        except (OSError, ValueError, RemoteError) as error:
            return f"no connection: {getattr(error, 'strerror', None) or type(error).__name__}"[:200]
        secret = answer.partition(b"\r\n\r\n")[2][:SECRET_BYTES]
        return "" if sha256(secret).digest() == message.proof else "another program answers there"


def is_global(address: str) -> bool:
    """Whether the address is one of the Internet."""
    try:
        return ip_address(address.partition("%")[0]).is_global
    except ValueError:
        return False


async def _is_at(url: ServerUrl, address: str) -> bool:
    """A name must lead to the caller's own address, or a server could be made to connect to strangers."""
    found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=1)
    return ip_address(address.partition("%")[0]) in {ip_address(str(each[4][0]).partition("%")[0]) for each in found}


async def _get(url: ServerUrl, address: str, path: str) -> bytes:
    tls: dict[str, Any] = {"ssl": True, "server_hostname": url.host} if url.scheme == "https" else {}
    reader, writer = await asyncio.open_connection(address, url.port, limit=ANSWER_BYTES_MAX, **tls)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nConnection: close\r\n\r\n".encode())
        return await _read(reader)
    finally:
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Until the end, and no more than expected."""
    raw = bytearray()
    while len(raw) < ANSWER_BYTES_MAX and (piece := await reader.read(ANSWER_BYTES_MAX)):
        raw += piece
    return bytes(raw)
