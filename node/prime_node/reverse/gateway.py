"""The public side of lanes: accepts connections of nodes behind routers, and lends them to downloads.

The table in lane_table.py decides who may have one. A node proves its key with a signed offer that names this gateway;
after that it is treated like any server of shards: bounded answers, digests, scores, bans.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from random import Random

from prime_node.reverse.lane_table import LaneLimits, LaneRefused, LaneTable
from prime_node.reverse.matchmaker import Introduction, Matchmaker
from prime_node.reverse.punching import MeetOrder, format_order
from prime_node.weights.connection import ConnectionBroken, LaneBusy, ShardConnection
from prime_protocol.errors import RemoteError
from prime_protocol.weights.transfer import REVERSE, ReverseAccepted, ReverseOffer
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.clock import Clock
from prime_runtime.http.messages import RefusalError
from prime_runtime.http.server import Caller, HttpServer
from prime_runtime.http.upgrade import TakeOver
from prime_runtime.rate_limits import network_group

log = logging.getLogger(__name__)

REVERSE_PATH = "/reverse"
BORROW_MS = 5_000
"""How long a download waits for a lane that others use."""
INTRODUCE_MS = 1_000
LANES_MET = 2
"""Lanes of each of two nodes that are introduced: their outer addresses become ends of new lanes."""
MakeConnection = Callable[[str, Callable[[ShardConnection], None]], ShardConnection]


class ReverseGateway:
    """The lanes of all private nodes to this gateway."""

    def __init__(
        self,
        node: NodeId,
        make_connection: MakeConnection,
        *,
        clock: Clock,
        rng: Random,
        limits: LaneLimits | None = None,
    ) -> None:
        self._node = node
        self._make_connection = make_connection
        self._clock = clock
        self._table = LaneTable(limits or LaneLimits())
        self._lanes: dict[NodeId, set[ShardConnection]] = {}
        self._idle: dict[NodeId, deque[ShardConnection]] = {}
        self._waiting: dict[NodeId, deque[asyncio.Future[ShardConnection]]] = {}
        self._matchmaker = Matchmaker(rng)
        self._is_closed = False
        self.refused = 0
        self.received_bytes = 0
        """Bytes of shards that came by lanes."""

    def add_routes(self, http: HttpServer) -> None:
        http.add_upgrade(REVERSE_PATH, REVERSE, self.accept)

    def nodes(self) -> Collection[NodeId]:
        """Nodes that can be asked."""
        return self._lanes.keys()

    def accept(self, caller: Caller, offer: ReverseOffer) -> tuple[ReverseAccepted, TakeOver]:
        """Admit a lane, or refuse it with a RefusalError."""
        if offer.gateway != self._node:
            raise RemoteError("ReverseOffer.gateway", f"is {offer.gateway}, this is {self._node}")
        if caller.sender == self._node or self._is_closed:
            raise RefusalError(RefusalCode.FORBIDDEN, "", "no connection to ask is needed here")
        decision = self._table.admit(caller.sender, network_group(caller.address), self._clock.monotonic_ms())
        if isinstance(decision, LaneRefused):
            self.refused += 1
            raise RefusalError(RefusalCode.OVERLOADED, "", decision.reason, retry_after_ms=decision.retry_ms)
        if decision.evicted is not None:
            self._close_all(decision.evicted)
        return ReverseAccepted(address=caller.address), lambda: self._take_over(caller.sender)

    def _take_over(self, node: NodeId) -> ShardConnection:
        lane = self._make_connection("lane", lambda closed: self._lose(node, closed))
        self._lanes.setdefault(node, set()).add(lane)
        self._release(node, lane)
        return lane

    @asynccontextmanager
    async def borrow(self, node: NodeId) -> AsyncIterator[ShardConnection]:
        """A lane of this node. ConnectionBroken: none became free in time."""
        lane = await self._get_lane(node)
        before = lane.received_bytes
        try:
            yield lane
        finally:
            received = lane.received_bytes - before
            self.received_bytes += received
            self._table.count_bytes(node, received, self._clock.monotonic_ms())
            if lane.is_idle:
                self._release(node, lane)
            else:
                lane.close()

    async def _get_lane(self, node: NodeId) -> ShardConnection:
        if node not in self._lanes:
            raise ConnectionBroken("the node has no connection to this one")
        idle = self._idle.get(node, ())
        while idle:
            lane = idle.popleft()
            if lane.is_idle:
                return lane
        waiting: asyncio.Future[ShardConnection] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, deque()).append(waiting)
        found: ShardConnection | None = None
        try:
            async with asyncio.timeout(BORROW_MS / 1000):
                found = await waiting
            return found
        except TimeoutError:
            raise LaneBusy("the node has no free connection to this one") from None
        finally:
            # Cancelled in the turn in which the lane was handed over: nobody else would ever get it.
            if found is None and waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._release(node, waiting.result())

    def _release(self, node: NodeId, lane: ShardConnection) -> None:
        """Give a free lane to the download that waits longest."""
        waiting = self._waiting.get(node, deque())
        while waiting:
            first = waiting.popleft()
            if not first.done():
                first.set_result(lane)
                return
        self._waiting.pop(node, None)
        if lane in self._lanes.get(node, ()):
            self._idle.setdefault(node, deque()).append(lane)

    def _lose(self, node: NodeId, lane: ShardConnection) -> None:
        lanes = self._lanes.get(node, set())
        if lane not in lanes:
            return
        lanes.discard(lane)
        self._table.end_lane(node)
        idle = self._idle.get(node)
        if idle is not None and lane in idle:
            idle.remove(lane)
        if not lanes:
            self._forget(node)

    def _forget(self, node: NodeId) -> None:
        self._lanes.pop(node, None)
        self._idle.pop(node, None)
        for waiting in self._waiting.pop(node, ()):
            if not waiting.done():
                waiting.set_exception(ConnectionBroken("the node has closed its connections"))

    def _close_all(self, node: NodeId) -> None:
        for lane in list(self._lanes.get(node, ())):
            lane.close()

    # --- Introductions ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Introduce nodes behind routers to each other, until cancelled."""
        while True:
            await self._clock.sleep_ms(INTRODUCE_MS)
            told = {node: lanes[0].remote[0] for node in self._lanes if (lanes := self._list_idle(node)) is not None}
            for each in self._matchmaker.plan(told, self._clock.monotonic_ms(), known=self._lanes.keys()):
                await self._introduce(each)

    def _list_idle(self, node: NodeId) -> list[ShardConnection] | None:
        """Two idle lanes, or None."""
        idle = [lane for lane in self._idle.get(node, ()) if lane.is_idle]
        return idle[:LANES_MET] if len(idle) >= LANES_MET else None

    async def _introduce(self, pair: Introduction) -> None:
        """Every lane of one with every lane of the other: two connections in each direction."""
        first, second = self._list_idle(pair.first), self._list_idle(pair.second)
        if first is None or second is None:
            return
        for lane, node in [*((lane, pair.first) for lane in first), *((lane, pair.second) for lane in second)]:
            self._idle[node].remove(lane)
        orders: list[tuple[ShardConnection, MeetOrder]] = []
        for row, ours in enumerate(first):
            for column, theirs in enumerate(second):
                serves = (row + column) % 2 == 0
                orders.append((ours, MeetOrder(pair.second, serves, *theirs.remote)))
                orders.append((theirs, MeetOrder(pair.first, not serves, *ours.remote)))
        by_lane = {id(lane): [order for told, order in orders if told is lane] for lane, _ in orders}
        try:
            await asyncio.gather(
                *(self._tell(lane, by_lane[id(lane)]) for lane in (*first, *second)), return_exceptions=True
            )
        finally:
            for node, lanes in ((pair.first, first), (pair.second, second)):
                for lane in lanes:
                    if lane.is_idle:
                        self._release(node, lane)
                    else:
                        lane.close()

    async def _tell(self, lane: ShardConnection, orders: list[MeetOrder]) -> None:
        async with asyncio.timeout(BORROW_MS / 1000):
            for order in orders:
                await lane.get(format_order(order), {})

    def close(self) -> None:
        """Close all lanes, so that the server can stop at once."""
        self._is_closed = True
        for node in list(self._lanes):
            self._close_all(node)
