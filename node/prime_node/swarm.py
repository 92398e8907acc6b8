"""A node's place among the others: what it hears and says, what it fetches and serves, which tree heads it compares.

Wiring of parts that each may die and begin again; the daemon supervises them. Nothing here decides.
"""

import logging
from random import Random

from prime_node.config import NodeConfig, NodeRole
from prime_node.day_file import DayFile
from prime_node.head_keeper import HeadKeeper
from prime_node.home import Home
from prime_node.shardcast.following import Following
from prime_node.shardcast.limits import FetchLimits
from prime_node.shardcast.weights import WeightsFetcher
from prime_protocol.gossip import Gossip, HeadSeen
from prime_protocol.gossip_guard import GossipGuard
from prime_protocol.ids import NodeId, RunId
from prime_protocol.note import VerifierKey
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip_half import GossipHalf
from prime_runtime.gossip_voice import Voice
from prime_runtime.http_client import HttpClient
from prime_runtime.http_server import HttpServer
from prime_runtime.records_client import RecordsClient
from prime_runtime.sequence import Sequence
from prime_runtime.shardcast.crier import Crier, leave
from prime_runtime.shardcast.directory import Directory
from prime_runtime.shardcast.serve import ShardServer
from prime_runtime.shardcast.slots import UploadSlots
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.urls import with_ports
from prime_runtime.supervision import Part

log = logging.getLogger(__name__)

LOOK_MS = 10_000
"""Between two looks for servers that have not been heard of for too long."""


class Swarm:
    """One node's."""

    def __init__(
        self, config: NodeConfig, key: WalletKey, client: HttpClient, trainer: NodeId, *, clock: Clock, dice: Random
    ) -> None:
        self._config = config
        self._clock = clock
        self._run = config.run_id
        network = config.network_id
        self.trainer = trainer
        self.directory = Directory()
        self.guard = GossipGuard(network, is_trainer=lambda run, node: node == trainer)
        self.half = GossipHalf(key, network, config.p2p, clock=clock, guard=self.guard)
        self.records = RecordsClient(
            client, config.server, network=network, run=self._run, clock=clock, guard=self.guard, hear=self.hear
        )
        ways = (self.records.share, self.half.pass_on)
        self._voice = Voice(key, network, self.guard, clock=clock, sequence=Sequence.shared(), ways=ways)
        self._open_weights(key, dice)
        self._http = HttpServer(key, network, clock=clock, limits=config.limits)
        self.server.add_routes(self._http)
        self.heads = self._open_heads(client)
        self._crier = Crier(
            self.server,
            self._voice,
            run=self._run,
            clock=clock,
            list_urls=lambda: self.urls,
            count_nodes=lambda: self.records.nodes,
        )
        self.urls: tuple[str, ...] = ()
        """Where others fetch from this node; none: it serves nobody."""

    def _open_weights(self, key: WalletKey, dice: Random) -> None:
        config, weights = self._config, self._config.weights
        folder = weights.folder or Home(config.folder).weights
        self.store = ShardStore(folder, network=config.network_id, run=self._run, trainer=self.trainer)
        self._day = DayFile(Home(config.folder).sent, self._clock)
        self.slots = UploadSlots(config.upload.limits(), sent_bytes=self._day.load(), now_ms=self._clock.now_ms())
        proxies = config.limits.trusted_proxies
        self.server = ShardServer(
            self.store, self.slots, clock=self._clock, trusted_proxies=proxies, directory=self.directory
        )
        self.fetcher = WeightsFetcher(
            self.store,
            self.directory,
            node=key.node,
            clock=self._clock,
            dice=dice,
            limits=FetchLimits(transfers_max=weights.transfers_at_once),
            allow_private=config.fetches_private,
            is_relay=config.role is NodeRole.RELAY and not weights.build,
            keeps_way=config.role is NodeRole.RELAY,
            versions=weights.keep,
            disk_bytes_max=weights.disk_bytes_max or None,
            bytes_per_s=weights.bytes_per_s or None,
        )

    def _open_heads(self, client: HttpClient) -> HeadKeeper:
        config = self._config
        return HeadKeeper(
            client,
            config.server,
            config.network_id,
            Home(config.folder).heads,
            log_key=VerifierKey.parse(config.log_key) if config.log_key else None,
            clock=self._clock,
            say=lambda seen: self._voice.say(self._run, seen, known_nodes=self.records.nodes),
            count_nodes=lambda: self.records.nodes,
        )

    def parts(self) -> list[Part]:
        return [
            Part("records", self.records.run),
            Part("gossip", self._run_gossip),
            Part("weights", self._run_weights),
            Part("serving", self._crier.run),
            Part("heads", self.heads.run),
            Part("day", self._run_day),
        ]

    async def start(self) -> None:
        """LocalError: the port is taken."""
        if not self._config.announce:
            log.info("outbound only: announce is empty, so this node serves nobody")
            return
        port = await self._http.start(self._config.listen)
        self.urls = with_ports(self._config.announce, port)
        log.info("serving under %s", ", ".join(self.urls))

    async def stop(self) -> None:
        """Others are told first, then those who are being served are let finish."""
        if self.urls:
            await leave(self._crier)
            self.server.close()
            await self._http.stop()
        await self.fetcher.close()
        self._day.write(self.slots.sent_today(self._clock.now_ms()))

    def hear(self, gossip: Gossip) -> None:
        """What the guard let through, whichever way it came."""
        if isinstance(gossip.message, HeadSeen):
            self.heads.hear(gossip.message)
        else:
            self.fetcher.tell(gossip)

    # --- Parts ------------------------------------------------------------------------------------------------------

    async def _run_gossip(self) -> None:
        if self._config.p2p.enabled:
            self.half.add_bootstrap((await self.records.ask()).peers)
        await self.half.run(self.hear, self._list_runs)

    def _list_runs(self) -> list[RunId]:
        return [self._run]

    async def _run_day(self) -> None:
        """The day's upload outlasts the process."""
        while True:
            await self._clock.sleep_ms(LOOK_MS)
            self._day.keep(self.slots.sent_today(self._clock.now_ms()))

    async def _run_weights(self) -> None:
        """What is on disk is checked first. A relay then fetches whatever is announced, so that it can serve it."""
        lost = await self.fetcher.look()
        if lost:
            log.warning("%d shards or checkpoints on disk were damaged and are fetched again", lost)
        if self._config.role is NodeRole.RELAY:
            await Following(self.fetcher, self._clock).run()
        while True:
            self.directory.expire(self._clock.now_ms())
            await self._clock.sleep_ms(LOOK_MS)
