"""The node's connection to other nodes: gossip, the weights of each run, comparing tree heads.

This module wires parts that may each fail and restart; the daemon supervises them. Nothing here decides.
"""

import logging
from collections.abc import Mapping
from random import Random

from prime_node.config import NodeConfig
from prime_node.log.accusations import AccusationKeeper
from prime_node.log.ledger_follower import LedgerFollower
from prime_node.log.log_sources import LogSource
from prime_node.log.tree_heads import HeadMonitor
from prime_node.policy.usage import DailyCounterFile
from prime_node.reverse.gateway_plan import OfferedWeights
from prime_node.reverse.reach import Reach
from prime_node.run_weights import RunWeights, ShardRoutes
from prime_node.storage.node_folder import NodeFolder
from prime_node.weights.connection import ConnectionPool
from prime_protocol.gossip.accusation import Accusation
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import HeadSeen, ReceivedGossip
from prime_protocol.log.tree_head import VerifierKey
from prime_protocol.wire.ids import NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.libp2p_transport import Libp2pTransport
from prime_runtime.gossip.transport import GossipPublisher
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.server import HttpServer
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.announcer import Announcer, announce_stop_within_deadline
from prime_runtime.shardcast.server import ShardResponse
from prime_runtime.shardcast.upload_slots import UploadSlots
from prime_runtime.supervisor import SupervisedTask

log = logging.getLogger(__name__)

POLL_MS = 10_000
"""Between two removals of servers that have been silent for too long."""


class Swarm:
    """The connections of one node."""

    def __init__(
        self,
        config: NodeConfig,
        key: WalletKey,
        client: HttpClient,
        trainers: Mapping[RunId, NodeId],
        *,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._config, network = config, config.network_id
        self._clock = clock
        self._daily_upload = DailyCounterFile(NodeFolder(config.folder).daily_upload, clock)
        self.slots = UploadSlots(config.upload.limits(), sent_bytes=self._daily_upload.load(), now_ms=clock.now_ms())
        connections = ConnectionPool(
            allow_private=config.allows_private_addresses, bytes_per_s=config.weights.bytes_per_s or None
        )
        self.guard = GossipGuard(network, is_trainer=lambda run, node: trainers.get(run) == node)
        sending: dict[int, ShardResponse] = {}
        self.runs = {
            run: RunWeights(
                config,
                run,
                trainer,
                node=key.node,
                client=client,
                guard=self.guard,
                slots=self.slots,
                sending=sending,
                connections=connections,
                clock=clock,
                rng=rng,
                deliver=self.handle_gossip,
            )
            for run, trainer in trainers.items()
        }
        self.libp2p = self._open_libp2p(key)
        transports = (self._first.relay_client.send, self.libp2p.send)
        self._publisher = GossipPublisher(
            key, network, self.guard, clock=clock, sequence=SequenceCounter.shared(), transports=transports
        )
        self._http = HttpServer(key, network, clock=clock, limits=config.limits)
        ShardRoutes([each.server for each in self.runs.values()]).add_to(self._http)
        self.head_monitor = self._open_head_monitor(client, key)
        self.accusations = self._open_accusations(key)
        self.ledger_follower = self._open_ledger_follower(client) if config.replays_log else None
        """Replays the ledger's rules; None where this node does not."""
        self.reach = self._open_reach(key, client, connections, rng)
        self._announcers = {run: self._make_announcer(each) for run, each in self.runs.items()}

    @property
    def urls(self) -> tuple[str, ...]:
        """Where others fetch weights from this node; empty: they cannot connect to it."""
        return self.reach.urls

    @property
    def _first(self) -> RunWeights:
        return next(iter(self.runs.values()))

    def _open_libp2p(self, key: WalletKey) -> Libp2pTransport:
        """It starts when the coordinator's first answer has named peers, or with those of the last start."""
        config = self._config
        libp2p = Libp2pTransport(
            key,
            config.network_id,
            config.gossip,
            clock=self._clock,
            guard=self.guard,
            peers_file=NodeFolder(config.folder).peers,
        )
        libp2p.count_nodes = lambda run: self.runs[run].count_nodes()
        for weights in self.runs.values():
            relay = weights.relay_client
            relay.wants_peers, relay.get_record = libp2p.wants_peers, lambda: libp2p.record
            relay.on_peers = lambda peers: libp2p.add_peers(peers, seed=config.server.node)
        return libp2p

    def _open_reach(self, key: WalletKey, client: HttpClient, connections: ConnectionPool, rng: Random) -> Reach:
        reach = Reach(
            self._config,
            key,
            self._http,
            client,
            connections,
            clock=self._clock,
            rng=rng,
            list_public=self._list_public,
            read_offered=self._read_offered,
        )
        for weights in self.runs.values():
            weights.server.note_sent = reach.dialer.note_sent
        return reach

    def _list_public(self) -> dict[NodeId, tuple[str, ...]]:
        return {node: urls for each in self.runs.values() for node, urls in each.directory.list_urls().items()}

    def _read_offered(self) -> OfferedWeights:
        held = sum(each.store.held_bytes for each in self.runs.values())
        return OfferedWeights(held, sum(each.fetcher.received_bytes for each in self.runs.values()))

    def _make_announcer(self, weights: RunWeights) -> Announcer:
        return Announcer(
            weights.server,
            self._publisher,
            run=weights.run,
            clock=self._clock,
            list_urls=lambda: self.urls,
            count_nodes=weights.count_nodes,
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
            publish=self._publish_head,
            count_nodes=lambda: max(each.count_nodes() for each in self.runs.values()),
            witness=key,
        )

    def _open_accusations(self, key: WalletKey) -> AccusationKeeper:
        config = self._config
        keeper = AccusationKeeper(
            NodeFolder(config.folder).accusations,
            key,
            network=config.network_id,
            run=self._first.run,
            request_keys=self.head_monitor.request_keys,
            publish=lambda accusation: self._publisher.publish(self._first.run, accusation),
            clock=self._clock,
        )
        self.head_monitor.on_keys = keeper.set_keys
        self.head_monitor.may_cosign = lambda: not keeper.is_stopped
        return keeper

    def _open_ledger_follower(self, client: HttpClient) -> LedgerFollower:
        config = self._config
        mirrors = [LogSource(client, ServerAddress(url, config.server.node)) for url in config.replay.mirrors]
        follower = LedgerFollower(
            [*mirrors, LogSource(client, config.server, "/log")],
            config.replay,
            network=config.network_id,
            get_keys=lambda: self.head_monitor.keys,
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
            SupervisedTask("gossip", self._run_gossip),
            *(part for run in self.runs for part in self._list_parts(run)),
            SupervisedTask("heads", self.head_monitor.run),
            SupervisedTask("reach", self.reach.run),
            SupervisedTask("day", self._run_daily_upload),
        ]

    def _list_parts(self, run: RunId) -> list[SupervisedTask]:
        weights, announcer = self.runs[run], self._announcers[run]
        of = f" of {run}" if len(self.runs) > 1 else ""
        return [
            SupervisedTask(f"gossip relay{of}", weights.relay_client.run),
            SupervisedTask(f"weights{of}", weights.follow),
            SupervisedTask(f"serving{of}", announcer.run),
        ]

    async def start(self) -> None:
        """LocalError: the port is taken."""
        await self.reach.start()

    async def stop(self) -> None:
        """Announces the stop first, then lets running transfers finish."""
        for announcer in self._announcers.values():
            if self.urls:
                await announce_stop_within_deadline(announcer)
            announcer.server.close()
        await self.reach.stop()
        for weights in self.runs.values():
            await weights.fetcher.close()
        self._daily_upload.save(self.slots.sent_today(self._clock.now_ms()))

    def find_depth(self, node: NodeId) -> int | None:
        """Where a node says it is in the broadcast tree of any of the runs; None: it serves no weights."""
        found = (each.directory.get(node) for each in self.runs.values())
        return next((record.serving.depth for record in found if record is not None), None)

    def handle_gossip(self, gossip: ReceivedGossip) -> None:
        """A message that passed the guard, by whichever transport it came."""
        if isinstance(gossip.message, HeadSeen):
            self.head_monitor.add_peer_head(gossip.message)
        elif isinstance(gossip.message, Accusation):
            self.accusations.add_received(gossip)
        elif gossip.payload.run in self.runs:
            self.runs[gossip.payload.run].fetcher.handle_gossip(gossip)

    # --- Parts ------------------------------------------------------------------------------------------------------

    async def _run_gossip(self) -> None:
        await self.libp2p.run(self.handle_gossip, self._list_runs)

    def _list_runs(self) -> list[RunId]:
        return list(self.runs)

    async def _publish_head(self, seen: HeadSeen) -> ReceivedGossip | None:
        """To the nodes of every run: they may follow only one."""
        sent = [await self._publisher.publish(run, seen) for run in self.runs]
        return sent[0]

    async def _run_daily_upload(self) -> None:
        """Saves the bytes uploaded today, so that a restart does not reset the limit."""
        while True:
            await self._clock.sleep_ms(POLL_MS)
            self._daily_upload.save_if_due(self.slots.sent_today(self._clock.now_ms()))
