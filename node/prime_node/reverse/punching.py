"""Connecting through two routers: a gateway tells both nodes at once, and each connects to the other's outer address.

A connection goes out from the local port of the lane on which the order came, because the router has already given that
port its outer address. The connection becomes a lane: one side serves on it, the other asks. The order of a gateway can
make a node send a few packets to an address of its choice and nothing else, so orders are rare and the address public.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from random import Random

from aiohttp import web

from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import NodeId
from prime_runtime.clock import Clock
from prime_runtime.http.server import HttpServer
from prime_runtime.rate_limits import RateLimit, TokenBuckets

log = logging.getLogger(__name__)

MEET_PATH = "/meet"
ORDER = re.compile(r"(serve|take)-([0-9a-f.:]{2,45})-([0-9]{4,5})")
PORT_MIN = 1024
"""Routers choose outer ports above it, and services of strangers are below it."""
ORDER_RATE = RateLimit(per_second=0.5, burst=32)
"""Orders of one gateway: four for each node that it introduces."""
GATEWAYS_TRACKED_MAX = 64
AT_ONCE_MAX = 16
OFFER_MS = 10_000
"""A peer that was met sends its offer within this time."""
TRIES = 3
TRY_MS = 1_500
"""Both sides try at about the same time. Linux repeats the first packet after a second."""
PAUSE_MS = 100


@dataclass(frozen=True, slots=True)
class MeetOrder:
    """What a gateway asks for."""

    peer: NodeId
    serves: bool
    """This node answers requests on the connection; otherwise it sends them."""
    address: str
    port: int


def format_order(order: MeetOrder) -> str:
    """The path of the request."""
    return f"{MEET_PATH}/{order.peer}/{'serve' if order.serves else 'take'}-{order.address}-{order.port}"


def parse_order(peer: str, how: str, *, allow_private: bool) -> MeetOrder:
    """RemoteError: malformed, or leads where no node can be."""
    match = ORDER.fullmatch(how)
    if match is None:
        raise RemoteError("meet", "must be serve or take, an address and a port")
    try:
        address = ip_address(match[2])
    except ValueError:
        raise RemoteError("meet", "has a malformed address") from None
    port = int(match[3])
    if not (allow_private or address.is_global) or address.is_multicast or not PORT_MIN <= port < 2**16:
        raise RemoteError("meet", "leads to an address at which no other node can be")
    return MeetOrder(NodeId.parse(peer), match[1] == "serve", str(address), port)


Serve = Callable[[NodeId, NodeId, socket.socket], Awaitable[None]]
"""Opens a lane to the second node, which the first introduced, on a connected socket, and serves it."""


class HolePuncher:
    """Carries out the orders of this node's gateways."""

    def __init__(
        self,
        http: HttpServer,
        serve: Serve,
        *,
        find_gateway: Callable[[web.BaseRequest], NodeId | None],
        allow_private: bool,
        clock: Clock,
        rng: Random,
    ) -> None:
        """`find_gateway`: the gateway that sent a request by its lane; None for any other client."""
        self._http = http
        self._serve = serve
        self._find_gateway = find_gateway
        self._allow_private = allow_private
        self._clock = clock
        self._rng = rng
        self._orders = TokenBuckets(ORDER_RATE, keys_max=GATEWAYS_TRACKED_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self.tried = 0
        self.connected = 0
        http.add_page(MEET_PATH + "/{peer}/{how}", self.meet)

    async def meet(self, request: web.Request) -> web.StreamResponse:
        """The order of a gateway; 404 for anyone else."""
        gateway = self._find_gateway(request)
        if gateway is None or request.transport is None:
            return web.Response(status=404, text="only a gateway may ask for that\n")
        try:
            order = parse_order(
                request.match_info["peer"], request.match_info["how"], allow_private=self._allow_private
            )
        except RemoteError as error:
            return web.Response(status=400, text=f"{error}\n")
        if self._orders.take(gateway, self._clock.monotonic_ms()) or len(self._tasks) >= AT_ONCE_MAX:
            return web.Response(status=503, text="too many introductions\n")
        local = request.transport.get_extra_info("sockname")
        task = asyncio.create_task(self._connect(gateway, order, (str(local[0]), int(local[1]))))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.Response(text="")

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, gateway: NodeId, order: MeetOrder, local: tuple[str, int]) -> None:
        self.tried += 1
        try:
            found = await self._punch(local, (order.address, order.port))
        except OSError as error:
            log.debug("no connection to %s through the routers: %s", order.peer, error)
            return
        self.connected += 1
        if order.serves:
            await self._serve(gateway, order.peer, found)
            return
        await self._await_offer(found)

    async def _await_offer(self, found: socket.socket) -> None:
        """The peer serves, so it sends its offer first, as to a gateway. The connection ends if it does not."""
        ended = asyncio.Event()
        handler = self._http.make_handler()
        handler.on_lost = ended.set
        await asyncio.get_running_loop().connect_accepted_socket(lambda: handler, found)
        try:
            async with asyncio.timeout(OFFER_MS / 1000):
                await ended.wait()
        except TimeoutError:
            log.debug("no offer came on a connection through the routers")
        finally:
            # Another protocol has taken the transport over, if the offer was accepted.
            if handler.transport is not None:
                handler.transport.abort()

    async def _punch(self, local: tuple[str, int], remote: tuple[str, int]) -> socket.socket:
        problem = OSError("not tried")
        for _ in range(TRIES):
            attempt = open_reusable(local)
            try:
                async with asyncio.timeout(TRY_MS / 1000):
                    await asyncio.get_running_loop().sock_connect(attempt, remote)
                return attempt
            except OSError as error:
                attempt.close()
                problem = error
            finally:
                if attempt.fileno() >= 0 and not _is_connected(attempt):
                    attempt.close()
            await self._clock.sleep_ms(round(PAUSE_MS * self._rng.uniform(0.5, 1.5)))
        raise problem


def _is_connected(found: socket.socket) -> bool:
    try:
        found.getpeername()
    except OSError:
        return False
    return True


def open_reusable(local: tuple[str, int]) -> socket.socket:
    """A socket at a local address that several connections may share, because their other ends differ."""
    found = socket.socket(socket.AF_INET6 if ":" in local[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.setblocking(False)
        found.bind(local)
    except OSError:
        found.close()
        raise
    return found
