"""The coordinator in gossip: bootstrap peer, bridge between libp2p and HTTP, publisher of heads, origin of weights.

Messages from libp2p go to the HTTP relay, messages posted over HTTP go to libp2p. One guard checks both transports and
drops repeats, so nothing loops. All of this may fail without stopping the coordinator.
"""

import logging
import random

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.core import Core
from prime_coordinator.gossip.bootstrap import BootstrapNodes
from prime_coordinator.gossip.gossip_http import GossipHttp, GossipMembers
from prime_coordinator.gossip.relay import GossipRelay
from prime_coordinator.home import CoordinatorHome
from prime_protocol.constants import ADDRESSES_MAX, HEAD_REPEAT_MS
from prime_protocol.errors import LocalError
from prime_protocol.gossip.accusation import Accusation
from prime_protocol.gossip.messages import HeadSeen, ReceivedGossip
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.libp2p_transport import Libp2pTransport
from prime_runtime.gossip.transport import GossipPublisher
from prime_runtime.http.dial_back import DialBackServer
from prime_runtime.http.server import HttpServer
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.announcer import Announcer
from prime_runtime.shardcast.config import with_ports
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.server import ShardServer
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.upload_slots import UploadLimits, UploadSlots
from prime_runtime.supervisor import SupervisedTask, Supervisor

log = logging.getLogger(__name__)

HEAD_POLL_MS = 500
ACCUSERS_LOGGED_MAX = 1_000


class CoordinatorGossip:
    """Owns the relay and everything that writes to it."""

    def __init__(self, config: CoordinatorConfig, core: Core, key: WalletKey, http: HttpServer, clock: Clock) -> None:
        network = config.network_id
        members = GossipMembers(core, key.node)
        guard = members.make_guard(network)
        self._config = config
        self._core = core
        self._clock = clock
        self._urls: tuple[str, ...] = ()
        self.relay = GossipRelay(random.Random(), now_ms=clock.now_ms())
        self.gossip_http = GossipHttp(
            members,
            self.relay,
            guard,
            BootstrapNodes(random.Random(), allows_private=config.gossip.dials_private),
            network=network,
            clock=clock,
            handle_ms=config.limits.handle_ms,
        )
        self._origin_run: RunId | None = None
        self._directory = ServerDirectory()
        """Other servers, for clients that our origin has no upload slot for."""
        self._libp2p = Libp2pTransport(
            key,
            network,
            config.gossip,
            clock=clock,
            guard=guard,
            peers_file=CoordinatorHome(config.folder).peers,
            is_seed=True,
        )
        self._publisher = GossipPublisher(
            key, network, guard, clock=clock, sequence=SequenceCounter(), transports=(self._store, self._libp2p.send)
        )
        self.gossip_http.pass_on = self._forward
        self.gossip_http.list_peers = lambda: self._libp2p.addresses[:ADDRESSES_MAX]
        self._announcer = self._open_origin(http)
        self._accused: dict[NodeId, Digest] = {}
        """The last entry that each node accused."""
        self._head_due_ms = 0
        self.gossip_http.add_routes(http)
        DialBackServer(clock, allow_private=config.gossip.dials_private).add_to(http)

    async def run(self, port: int) -> None:
        """Run until cancelled; `port` is the port of the HTTP server."""
        self._urls = with_ports(self._config.origin.urls, port)
        parts = [SupervisedTask("gossip", self._gossip), SupervisedTask("tree heads", self._publish_heads)]
        if self._announcer is not None:
            parts.append(SupervisedTask("origin", self._announcer.run))
        await Supervisor(parts, self._clock).run()

    def _open_origin(self, http: HttpServer) -> Announcer | None:
        """Serve the shards that a trainer publishes into a folder of this machine, if one is set."""
        config, origin = self._config, self._config.origin
        if origin.folder is None:
            return None
        run = self._origin_run = RunId(origin.run)
        if run not in self._core.state.runs:
            raise LocalError(f"origin.run is {run}, which does not exist; create it, then set origin.folder")
        trainer = self._core.state.runs[run].terms.trainer
        store = ShardStore(origin.folder, network=config.network_id, run=run, trainer=trainer)
        slots = UploadSlots(UploadLimits(slots=origin.slots, address_slots=origin.address_slots))
        proxies = config.limits.trusted_proxies
        server = ShardServer(store, slots, clock=self._clock, trusted_proxies=proxies, directory=self._directory)
        server.add_routes(http)
        return Announcer(
            server,
            self._publisher,
            run=run,
            clock=self._clock,
            list_urls=lambda: self._urls,
            count_nodes=lambda: self.relay.count_nodes(run),
            rescans=True,
        )

    def close(self) -> None:
        """Answer every waiting request."""
        self.gossip_http.close()
        if self._announcer is not None:
            self._announcer.server.close()

    def list_runs(self) -> list[RunId]:
        return list(self._core.state.runs)

    async def _gossip(self) -> None:
        await self._libp2p.run(self._receive, self.list_runs)

    def _receive(self, gossip: ReceivedGossip) -> None:
        assert gossip.payload.run is not None, "topics are of runs"
        self.gossip_http.put(gossip.payload.run, gossip)
        self._learn(gossip.payload.run, gossip)

    async def _forward(self, run: RunId, gossip: ReceivedGossip) -> None:
        """Forward a message that was posted over HTTP, if it is in the sample; the relay already has it."""
        self._learn(run, gossip)
        try:
            await self._libp2p.send(run, gossip, known_nodes=self.relay.count_nodes(run))
        except LocalError as error:
            log.debug("message not forwarded to libp2p: %s", error)

    def _learn(self, run: RunId, gossip: ReceivedGossip) -> None:
        if isinstance(gossip.message, Accusation):
            self._log_accusation(gossip.payload.sender, gossip.message)
        if run == self._origin_run:
            self._directory.expire(self._clock.now_ms())
            self._directory.learn(gossip)

    def _log_accusation(self, accuser: NodeId, accusation: Accusation) -> None:
        """Once for each node, however often it repeats it. The operator decides who is right."""
        if self._accused.get(accuser) != accusation.leaf_hash and len(self._accused) < ACCUSERS_LOGGED_MAX:
            self._accused[accuser] = accusation.leaf_hash
            log.error(
                "%s ACCUSES THIS LOG: entry %d breaks a rule (%s): %s; check it with `prime-coordinator log verify`",
                accuser,
                accusation.index,
                accusation.rule,
                accusation.problem,
            )

    async def _store(self, run: RunId, gossip: ReceivedGossip) -> None:
        self.gossip_http.put(run, gossip)

    async def _publish_heads(self) -> None:
        """Publish the newest head now and then: nodes compare it with theirs, and some join later."""
        while True:
            await self._clock.sleep_ms(HEAD_POLL_MS)
            note, now_ms = self._core.head, self._clock.monotonic_ms()
            if not note or now_ms < self._head_due_ms:
                continue
            self._head_due_ms = now_ms + HEAD_REPEAT_MS
            for run in self.list_runs():
                await self._publisher.publish(run, HeadSeen(note=note))
