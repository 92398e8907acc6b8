"""How others reach this node's weights: at its URLs, by lanes that it keeps to public nodes, or not at all.

Wires gateway and dialer to the node's HTTP server. The decisions are in lane_table.py and gateway_plan.py.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random

from prime_node.config import NodeConfig
from prime_node.reverse.dial_back import DialBackClient
from prime_node.reverse.dialer import ReverseDialer
from prime_node.reverse.gateway import ReverseGateway
from prime_node.reverse.gateway_plan import OfferedWeights
from prime_node.reverse.lane_table import LaneLimits
from prime_node.reverse.port_mapping import PortMapper
from prime_node.reverse.reachability import Reachability
from prime_node.weights.connection import ConnectionPool
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient
from prime_runtime.http.dial_back import DialBackServer
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
        client: HttpClient,
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
        self._announced: tuple[str, ...] = ()
        self._port = 0
        self._mapper = PortMapper(clock, allow_private=config.allows_private_addresses)
        limits = LaneLimits(nodes_max=config.reach.nodes_max)
        self.gateway = ReverseGateway(key.node, connections.make_connection, clock=clock, rng=rng, limits=limits)
        connections.lanes = self.gateway
        if config.reach.nodes_max:
            self.gateway.add_routes(http)
        self.dialer = self._open_dialer(key, rng, read_offered)
        self.dial_back = DialBackClient(
            client,
            http,
            config.server,
            clock=clock,
            rng=rng,
            allow_private=config.allows_private_addresses,
            trusted_proxies=config.limits.trusted_proxies,
            list_servers=list_public,
            get_url=lambda: next(iter(self._candidates), ""),
        )
        DialBackServer(clock, allow_private=config.allows_private_addresses).add_to(http)

    def _open_dialer(self, key: WalletKey, rng: Random, read_offered: Callable[[], OfferedWeights]) -> ReverseDialer:
        return ReverseDialer(
            key,
            self._config.network_id,
            self._http,
            clock=self._clock,
            rng=rng,
            sequence=SequenceCounter.shared(),
            allow_private=self._config.allows_private_addresses,
            list_gateways=self._list_gateways,
            read_offered=read_offered,
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """Where others fetch weights from this node; empty: they cannot connect to it."""
        return () if self.dial_back.state is Reachability.CLOSED else self._candidates

    @property
    def _candidates(self) -> tuple[str, ...]:
        """Where others may be able to connect: what the owner says, else what the router forwards."""
        return self._announced or self._mapper.urls

    @property
    def serves(self) -> bool:
        """Others can fetch weights from this node, one way or the other."""
        return bool(self.urls) or self._config.reach.lanes

    async def start(self) -> None:
        """LocalError: the port is taken."""
        if self._config.announce or self._config.reach.map_port:
            port = self._port = await self._http.start(self._config.listen)
        if self._config.announce:
            self._announced = with_ports(self._config.announce, port)
            log.info("serving weights at %s", ", ".join(self._announced))
        elif not self._config.reach.map_port:
            await self._http.start_without_port()
            how = "by connections to public nodes" if self.serves else "no weights: announce is empty, reach.lanes off"
            log.info("outbound only: serving %s", how)
        upload = self._config.upload
        if self._config.reach.lanes and not (self._config.announce or upload.bytes_per_s or upload.bytes_per_day):
            log.warning(
                "other nodes fetch weights from this one without limit, also behind a router; set upload.bytes_per_s"
                " or upload.bytes_per_day, or reach.lanes = false to serve nothing without an open port"
            )
        self._is_started = True

    async def run(self) -> None:
        """Ask others whether they can connect; keep lanes open while they cannot; introduce nodes to each other."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self.dialer, self.gateway, self.dial_back):
                tasks.create_task(part.run())
            if self._config.reach.map_port and not self._announced:
                tasks.create_task(self._mapper.run(self._port))

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
            is_tested = self.dial_back.state is Reachability.OPEN
            return f"{', '.join(self.urls)}, {'tested by others' if is_tested else 'not tested yet'}{helped}"
        advice = "open a port and set announce to let all nodes connect"
        if self._mapper.problem:
            advice = f"the router forwards no port ({self._mapper.problem}); {advice}"
        if self._candidates:
            url = self._candidates[0]
            port = url.rpartition(":")[2]
            advice = f"others cannot connect to {url}: {self.dial_back.problem}; "
            advice += f"forward TCP port {port} in the router, and open it in the firewall"
        if not self._config.reach.lanes:
            return f"outbound only: it serves no weights; set reach.lanes, or {advice}"
        gateways = len(self.dialer.gateways)
        if not gateways:
            return f"outbound only, and no public node is found yet to serve through; {advice}"
        met = f", and over {self.dialer.met} connections through two routers" if self.dialer.met else ""
        return f"outbound only: it serves weights through {gateways} public nodes{met}; {advice}"
