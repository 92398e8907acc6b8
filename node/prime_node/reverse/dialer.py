"""The private side of lanes: opens connections to gateways and serves what they ask for on them.

The plan in gateway_plan.py decides to whom. Only the routes of the node's own HTTP server can be reached by a lane, and
its upload slots, rate and daily limit apply as to any other client.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random

from aiohttp import web

from prime_node.reverse.gateway import REVERSE_PATH
from prime_node.reverse.gateway_plan import GATEWAYS_MAX, GREED_FACTOR, REFUSED_MS, GatewayPlan, OfferedWeights
from prime_node.reverse.punching import HolePuncher, open_reusable
from prime_node.weights.connection import CONNECT_MS, choose_address
from prime_protocol.errors import RemoteError
from prime_protocol.weights.transfer import REVERSE, ReverseAccepted, ReverseOffer
from prime_protocol.wire.addresses import ServerUrl
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import NetworkId, NodeId, hash_bytes
from prime_protocol.wire.rpc import REPLY_SUFFIX, open_reply
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http.server import HttpServer
from prime_runtime.http.upgrade import AdoptedHandler, UpgradedConnection, UpgradeRefused, request_upgrade
from prime_runtime.keys import SequenceCounter

log = logging.getLogger(__name__)

UPDATE_MS = 1_000
OFFER_LIFE_MS = 60_000
MET_MAX = 32
MET_OF_GATEWAY_MAX = MET_MAX // GATEWAYS_MAX
"""Lanes through two routers: two for each node that four gateways introduce, four each."""


@dataclass(slots=True)
class MetLane:
    """A lane through two routers."""

    gateway: NodeId
    """Who introduced the node at its other end."""
    sent_bytes: int = 0


class ReverseDialer:
    """Keeps the lanes of one private node."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        http: HttpServer,
        *,
        clock: Clock,
        rng: Random,
        sequence: SequenceCounter,
        allow_private: bool,
        list_gateways: Callable[[], Mapping[NodeId, tuple[str, ...]]],
        read_offered: Callable[[], OfferedWeights],
    ) -> None:
        """`list_gateways`: public nodes and the URLs of each; empty where none is needed."""
        self._key = key
        self._network = network
        self._http = http
        self._clock = clock
        self._sequence = sequence
        self._allow_private = allow_private
        self._list_gateways = list_gateways
        self._read_offered = read_offered
        self._plan = GatewayPlan(rng)
        self._lanes: dict[AdoptedHandler, NodeId] = {}
        self._met: dict[AdoptedHandler, MetLane] = {}
        self._meeting: Counter[NodeId] = Counter()
        """Offers under way, by the gateway that introduced the other node."""
        self.puncher = HolePuncher(
            http, self.serve_met, find_gateway=self._find_gateway, allow_private=allow_private, clock=clock, rng=rng
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen_address = ""
        """`ip:port` from which the last lane came, as its gateway said."""

    @property
    def gateways(self) -> list[NodeId]:
        """The nodes that can ask this one for shards."""
        return sorted(set(self._lanes.values()))

    @property
    def met(self) -> int:
        """Lanes through two routers."""
        return len(self._met)

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    async def run(self) -> None:
        """Keep lanes open until cancelled."""
        try:
            while True:
                self._update()
                await self._clock.sleep_ms(UPDATE_MS)
        finally:
            await self.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.puncher.close()
        self._close_lanes([*self._lanes, *self._met])

    def note_sent(self, request: web.BaseRequest, count: int) -> None:
        """The shard server sent this much in answer to a request, of a lane or another client."""
        lane = request.protocol
        if not isinstance(lane, AdoptedHandler):
            return
        if lane in self._lanes:
            self._plan.count_sent(self._lanes[lane], count)
        elif lane in self._met:
            met, offered = self._met[lane], self._read_offered()
            met.sent_bytes += count
            self._plan.count_sent(met.gateway, count, is_met=True)
            is_greedy = met.sent_bytes > GREED_FACTOR * (offered.held_bytes + offered.fetched_bytes)
            if is_greedy or self._plan.is_greedy(met.gateway, offered):
                lane.end()

    def _find_gateway(self, request: web.BaseRequest) -> NodeId | None:
        lane = request.protocol
        return self._lanes.get(lane) if isinstance(lane, AdoptedHandler) else None

    def may_meet(self, gateway: NodeId, node: NodeId) -> bool:
        """An offer is worth something to whoever has it, so a gateway gets none in the name of one that it is not."""
        used = self._meeting[gateway] + sum(met.gateway == gateway for met in self._met.values())
        return used < MET_OF_GATEWAY_MAX and node != self._key.node and node not in self._lanes.values()

    async def serve_met(self, gateway: NodeId, node: NodeId, found: socket.socket) -> None:
        """Serve a node with which a gateway connected this one through both routers."""
        if not self.may_meet(gateway, node):
            found.close()
            return
        self._meeting[gateway] += 1
        try:
            await self._offer_met(gateway, node, found)
        finally:
            self._meeting -= Counter([gateway])

    async def _offer_met(self, gateway: NodeId, node: NodeId, found: socket.socket) -> None:
        frame = self._seal_offer(node)
        try:
            host, port = found.getpeername()[:2]
            async with asyncio.timeout(CONNECT_MS / 1000):
                upgraded = await request_upgrade(host, port, REVERSE_PATH, frame, connected=found)
        except (OSError, TimeoutError, RemoteError) as error:
            log.debug("%s refused the connection through the routers: %s", node, error)
            return
        try:
            self._open_reply(node, upgraded, frame)
        except RemoteError:
            upgraded.transport.abort()
            return
        lane = self._http.adopt(upgraded.transport, upgraded.rest)
        self._met[lane] = MetLane(gateway)
        lane.on_lost = lambda: self._forget_met(lane)
        upgraded.transport.resume_reading()

    def _forget_met(self, lane: AdoptedHandler) -> None:
        del self._met[lane]

    def _update(self) -> None:
        gateways = self._list_gateways()
        plan = self._plan.update(gateways.keys() - {self._key.node}, self._read_offered(), self._clock.monotonic_ms())
        self._close_lanes(lane for lane, node in list(self._lanes.items()) if node in plan.close)
        for node in plan.open:
            task = asyncio.create_task(self._open_lane(node, gateways[node]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _close_lanes(self, lanes: Iterable[AdoptedHandler]) -> None:
        for lane in lanes:
            lane.end()

    async def _open_lane(self, node: NodeId, urls: tuple[str, ...]) -> None:
        pause_ms = 0
        try:
            async with asyncio.timeout(2 * CONNECT_MS / 1000):
                upgraded, accepted = await self._request_lane(node, urls)
        except UpgradeRefused as error:
            pause_ms = error.retry_after_ms if error.status == 503 else REFUSED_MS
            problem: Exception = error
        except (OSError, TimeoutError, RemoteError) as error:
            problem = error
        else:
            self._serve(node, upgraded)
            self.seen_address = accepted.address
            return
        log.debug("no connection to the gateway %s: %s", node, problem or type(problem).__name__)
        self._plan.mark_ended(node, self._clock.monotonic_ms(), pause_ms=pause_ms)

    async def _request_lane(self, node: NodeId, urls: tuple[str, ...]) -> tuple[UpgradedConnection, ReverseAccepted]:
        problem: Exception = RemoteError("urls", "name no address")
        for url in urls:
            try:
                upgraded, frame = await self._dial(node, ServerUrl.parse(url))
            except (OSError, RemoteError) as error:
                problem = error
                continue
            try:
                return upgraded, self._open_reply(node, upgraded, frame)
            except RemoteError as error:
                upgraded.transport.abort()
                problem = error
        raise problem

    async def _dial(self, node: NodeId, url: ServerUrl) -> tuple[UpgradedConnection, bytes]:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=1)
        address = choose_address([str(each[4][0]) for each in found], allow_private=self._allow_private)
        frame = self._seal_offer(node)
        tls_name = url.host if url.scheme == "https" else None
        # The port stays free for connections through the router to other nodes.
        connected = open_reusable(("::" if ":" in address else "0.0.0.0", 0))
        try:
            await asyncio.get_running_loop().sock_connect(connected, (address, url.port))
        except BaseException:  # boundary: the socket must not outlive a cancelled attempt either
            connected.close()
            raise
        upgraded = await request_upgrade(address, url.port, REVERSE_PATH, frame, tls_name=tls_name, connected=connected)
        return upgraded, frame

    def _seal_offer(self, node: NodeId) -> bytes:
        now_ms = self._clock.now_ms()
        return seal_envelope(
            self._key,
            kind=REVERSE.kind,
            body=encode(ReverseOffer(gateway=node)),
            network=self._network,
            run=None,
            sequence=self._sequence.next(now_ms),
            issued_at_ms=now_ms,
            life_ms=OFFER_LIFE_MS,
        )

    def _open_reply(self, node: NodeId, upgraded: UpgradedConnection, frame: bytes) -> ReverseAccepted:
        kind, request = REVERSE.kind + REPLY_SUFFIX, hash_bytes(frame)
        body = open_reply(upgraded.reply, kind=kind, request=request, server=node, network=self._network)
        return decode(ReverseAccepted, body)

    def _serve(self, node: NodeId, upgraded: UpgradedConnection) -> None:
        lane = self._http.adopt(upgraded.transport, upgraded.rest)
        self._lanes[lane] = node
        lane.on_lost = lambda: self._lose(lane)
        upgraded.transport.resume_reading()
        self._plan.mark_open(node)

    def _lose(self, lane: AdoptedHandler) -> None:
        node = self._lanes.pop(lane)
        self._plan.mark_ended(node, self._clock.monotonic_ms())
