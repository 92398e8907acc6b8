"""The node's connection to other nodes: gossip, fetching and serving weights, comparing tree heads.

This module wires parts that may each fail and restart; the daemon supervises them. Nothing here decides.
"""

import logging
from random import Random

from prime_node.config import NodeConfig, NodeRole
from prime_node.log.accusations import AccusationKeeper
from prime_node.log.ledger_follower import LedgerFollower
from prime_node.log.log_sources import LogSource
from prime_node.log.tree_heads import HeadMonitor
from prime_node.policy.usage import DailyCounterFile
from prime_node.storage.node_folder import NodeFolder
from prime_node.weights.checkpoints import CheckpointFetcher
from prime_node.weights.events import FetchLimits
from prime_node.weights.relay import RelayFollower
from prime_protocol.gossip.accusation import Accusation
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import HeadSeen, ReceivedGossip
from prime_protocol.log.tree_head import VerifierKey
from prime_protocol.wire.ids import NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.transport import GossipHttpClient, GossipPublisher, Libp2pTransport
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.server import HttpServer
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.announcer import Announcer, announce_stop_within_deadline
from prime_runtime.shardcast.config import with_ports
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.server import ShardServer
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.upload_slots import UploadSlots
from prime_runtime.supervisor import SupervisedTask

log = logging.getLogger(__name__)

POLL_MS = 10_000
"""Between two removals of servers that have been silent for too long."""


class Swarm:
    """The connections of one node."""

    def __init__(
        self, config: NodeConfig, key: WalletKey, client: HttpClient, trainer: NodeId, *, clock: Clock, rng: Random
    ) -> None:
        self._config = config
        self._clock = clock
        self._run = config.run_id
        network = config.network_id
        self.trainer = trainer
        self.directory = ServerDirectory()
        self.guard = GossipGuard(network, is_trainer=lambda run, node: node == trainer)
        self.libp2p = Libp2pTransport(key, network, config.p2p, clock=clock, guard=self.guard)
        self.relay_client = GossipHttpClient(
            client,
            config.server,
            network=network,
            run=self._run,
            clock=clock,
            guard=self.guard,
            deliver=self.handle_gossip,
        )
        transports = (self.relay_client.send, self.libp2p.send)
        self._publisher = GossipPublisher(
            key, network, self.guard, clock=clock, sequence=SequenceCounter.shared(), transports=transports
        )
        self._open_weights(key, rng)
        self._http = HttpServer(key, network, clock=clock, limits=config.limits)
        self.server.add_routes(self._http)
        self.head_monitor = self._open_head_monitor(client, key)
        self.accusations = self._open_accusations(key)
        self.ledger_follower = self._open_ledger_follower(client) if config.replays_log else None
        """Replays the ledger's rules; None where this node does not."""
        self._announcer = Announcer(
            self.server,
            self._publisher,
            run=self._run,
            clock=clock,
            list_urls=lambda: self.urls,
            count_nodes=lambda: self.relay_client.nodes,
        )
        self.urls: tuple[str, ...] = ()
        """Where others fetch weights from this node; empty: it serves none."""

    def _open_weights(self, key: WalletKey, rng: Random) -> None:
        config, weights = self._config, self._config.weights
        folder = weights.folder or NodeFolder(config.folder).weights
        self.store = ShardStore(folder, network=config.network_id, run=self._run, trainer=self.trainer)
        self._daily_upload = DailyCounterFile(NodeFolder(config.folder).daily_upload, self._clock)
        self.slots = UploadSlots(
            config.upload.limits(), sent_bytes=self._daily_upload.load(), now_ms=self._clock.now_ms()
        )
        proxies = config.limits.trusted_proxies
        self.server = ShardServer(
            self.store, self.slots, clock=self._clock, trusted_proxies=proxies, directory=self.directory
        )
        self.fetcher = CheckpointFetcher(
            self.store,
            self.directory,
            node=key.node,
            clock=self._clock,
            rng=rng,
            limits=FetchLimits(transfers_max=weights.transfers_at_once),
            allow_private=config.allows_private_addresses,
            is_relay=config.role is NodeRole.RELAY and not weights.build,
            keeps_chain=config.role is NodeRole.RELAY,
            versions=weights.keep,
            disk_bytes_max=weights.disk_bytes_max or None,
            bytes_per_s=weights.bytes_per_s or None,
        )

    def _open_head_monitor(self, client: HttpClient, key: WalletKey) -> HeadMonitor:
        config = self._config
        return HeadMonitor(
            client,
            config.server,
            config.network_id,
            NodeFolder(config.folder).heads,
            log_key=VerifierKey.parse(config.log_key) if config.log_key else None,
            clock=self._clock,
            publish=lambda seen: self._publisher.publish(self._run, seen, known_nodes=self.relay_client.nodes),
            count_nodes=lambda: self.relay_client.nodes,
            witness=key,
        )

    def _open_accusations(self, key: WalletKey) -> AccusationKeeper:
        config = self._config
        keeper = AccusationKeeper(
            NodeFolder(config.folder).accusations,
            key,
            network=config.network_id,
            run=self._run,
            coordinator=config.server.node,
            publish=lambda accusation: self._publisher.publish(self._run, accusation),
            clock=self._clock,
        )
        self.head_monitor.on_log_key = keeper.set_log_key
        self.head_monitor.may_cosign = lambda: not keeper.is_stopped
        return keeper

    def _open_ledger_follower(self, client: HttpClient) -> LedgerFollower:
        config = self._config
        mirrors = [LogSource(client, ServerAddress(url, config.server.node)) for url in config.replay.mirrors]
        follower = LedgerFollower(
            [*mirrors, LogSource(client, config.server, "/log")],
            config.replay,
            network=config.network_id,
            coordinator=config.server.node,
            snapshot=NodeFolder(config.folder).replay,
            get_head=lambda: self.head_monitor.latest,
            accusations=self.accusations,
            clock=self._clock,
        )
        self.head_monitor.on_sighting = follower.add_sighting
        return follower

    def parts(self) -> list[SupervisedTask]:
        follower = self.ledger_follower
        return [
            *([SupervisedTask("replay", follower.run)] if follower else []),
            SupervisedTask("accusations", self.accusations.run),
            SupervisedTask("gossip relay", self.relay_client.run),
            SupervisedTask("gossip", self._run_gossip),
            SupervisedTask("weights", self._run_weights),
            SupervisedTask("serving", self._announcer.run),
            SupervisedTask("heads", self.head_monitor.run),
            SupervisedTask("day", self._run_daily_upload),
        ]

    async def start(self) -> None:
        """LocalError: the port is taken."""
        if not self._config.announce:
            log.info("outbound only: announce is empty, so this node serves no weights")
            return
        port = await self._http.start(self._config.listen)
        self.urls = with_ports(self._config.announce, port)
        log.info("serving weights at %s", ", ".join(self.urls))

    async def stop(self) -> None:
        """Announces the stop first, then lets running transfers finish."""
        if self.urls:
            await announce_stop_within_deadline(self._announcer)
            self.server.close()
            await self._http.stop()
        await self.fetcher.close()
        self._daily_upload.save(self.slots.sent_today(self._clock.now_ms()))

    def handle_gossip(self, gossip: ReceivedGossip) -> None:
        """A message that passed the guard, by whichever transport it came."""
        if isinstance(gossip.message, HeadSeen):
            self.head_monitor.add_peer_head(gossip.message)
        elif isinstance(gossip.message, Accusation):
            self.accusations.add_received(gossip)
        else:
            self.fetcher.handle_gossip(gossip)

    # --- Parts ------------------------------------------------------------------------------------------------------

    async def _run_gossip(self) -> None:
        if self._config.p2p.enabled:
            self.libp2p.add_bootstrap((await self.relay_client.poll()).peers)
        await self.libp2p.run(self.handle_gossip, self._list_runs)

    def _list_runs(self) -> list[RunId]:
        return [self._run]

    async def _run_daily_upload(self) -> None:
        """Saves the bytes uploaded today, so that a restart does not reset the limit."""
        while True:
            await self._clock.sleep_ms(POLL_MS)
            self._daily_upload.save_if_due(self.slots.sent_today(self._clock.now_ms()))

    async def _run_weights(self) -> None:
        """Verifies the weights on disk first. A relay then fetches everything that is announced, to serve it."""
        lost = await self.fetcher.verify_store_once()
        if lost:
            log.warning("%d shards or checkpoints on disk are damaged; fetching them again", lost)
        if self._config.role is NodeRole.RELAY:
            await RelayFollower(self.fetcher, self._clock).run()
        while True:
            self.directory.expire(self._clock.now_ms())
            await self._clock.sleep_ms(POLL_MS)
