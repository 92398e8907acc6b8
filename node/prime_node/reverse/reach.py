"""How others reach this node's weights: at its URLs, by lanes that it keeps to public nodes, or not at all.

Wires gateway and dialer to the node's HTTP server. The decisions are in lane_table.py and gateway_plan.py.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random

from prime_node.config import NodeConfig
from prime_node.reverse.dialer import ReverseDialer
from prime_node.reverse.gateway import ReverseGateway
from prime_node.reverse.gateway_plan import OfferedWeights
from prime_node.reverse.lane_table import LaneLimits
from prime_node.weights.connection import ConnectionPool
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http.server import HttpServer
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.config import with_ports

log = logging.getLogger(__name__)


class Reach:
    """One node's side of it."""

    def __init__(
        self,
        config: NodeConfig,
        key: WalletKey,
        http: HttpServer,
        connections: ConnectionPool,
        *,
        clock: Clock,
        rng: Random,
        list_public: Callable[[], Mapping[NodeId, tuple[str, ...]]],
        read_offered: Callable[[], OfferedWeights],
    ) -> None:
        """`list_public`: the servers of weights that others can connect to."""
        self._config = config
        self._http = http
        self._clock = clock
        self._list_public = list_public
        self._is_started = False
        self.urls: tuple[str, ...] = ()
        """Where others fetch weights from this node; empty: they cannot connect to it."""
        limits = LaneLimits(nodes_max=config.reach.nodes_max)
        self.gateway = ReverseGateway(key.node, connections.make_connection, clock=clock, rng=rng, limits=limits)
        connections.lanes = self.gateway
        if config.reach.nodes_max:
            self.gateway.add_routes(http)
        self.dialer = ReverseDialer(
            key,
            config.network_id,
            http,
            clock=clock,
            rng=rng,
            sequence=SequenceCounter.shared(),
            allow_private=config.allows_private_addresses,
            list_gateways=self._list_gateways,
            read_offered=read_offered,
        )

    @property
    def serves(self) -> bool:
        """Others can fetch weights from this node, one way or the other."""
        return bool(self.urls) or self._config.reach.lanes

    async def start(self) -> None:
        """LocalError: the port is taken."""
        if self._config.announce:
            port = await self._http.start(self._config.listen)
            self.urls = with_ports(self._config.announce, port)
            log.info("serving weights at %s", ", ".join(self.urls))
        else:
            await self._http.start_without_port()
            how = "by connections to public nodes" if self.serves else "no weights: announce is empty, reach.lanes off"
            log.info("outbound only: serving %s", how)
        self._is_started = True

    async def run(self) -> None:
        """Keep lanes open while others cannot connect, and introduce those that keep lanes to this node."""
        await asyncio.gather(self.dialer.run(), self.gateway.run())

    async def stop(self) -> None:
        self.gateway.close()
        await self.dialer.close()
        if self._is_started:
            await self._http.stop()

    def _list_gateways(self) -> Mapping[NodeId, tuple[str, ...]]:
        return self._list_public() if self._config.reach.lanes and not self.urls else {}

    def describe(self) -> str:
        """One line for the owner: whether others can reach this node, and what would change that."""
        linked = self.gateway.nodes()
        helped = f"; {len(linked)} nodes behind routers serve through it" if linked else ""
        if self.urls:
            return f"others connect to {', '.join(self.urls)}{helped}"
        advice = "open a port and set announce to let all nodes connect"
        if not self._config.reach.lanes:
            return f"outbound only: it serves no weights; set reach.lanes, or {advice}"
        gateways = len(self.dialer.gateways)
        if not gateways:
            return f"outbound only, and no public node is found yet to serve through; {advice}"
        met = f", and over {self.dialer.met} connections through two routers" if self.dialer.met else ""
        return f"outbound only: it serves weights through {gateways} public nodes{met}; {advice}"
