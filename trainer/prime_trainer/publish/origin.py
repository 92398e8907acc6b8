"""The origin server of a run: serves the shards of the store over HTTP and announces them to the run.

It rescans the store, because `publish` writes it from another process. It runs until SIGTERM; a part that fails is
restarted.
"""

import asyncio
import logging
import signal
from contextlib import AsyncExitStack

from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import ReceivedGossip
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.gossip.libp2p_transport import Libp2pTransport
from prime_runtime.gossip.transport import GossipHttpClient, GossipPublisher
from prime_runtime.http.client import HttpClient
from prime_runtime.http.server import HttpServer
from prime_runtime.keys import SequenceCounter
from prime_runtime.lock import hold_process_lock
from prime_runtime.shardcast.announcer import Announcer, announce_stop_within_deadline
from prime_runtime.shardcast.config import with_ports
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.server import ShardServer
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.upload_slots import UploadSlots
from prime_runtime.supervisor import SupervisedTask, Supervisor
from prime_trainer.config import OriginServerConfig

log = logging.getLogger(__name__)

ORIGIN_LOCK_NAME = "origin.lock"
PEERS_NAME = "origin.peers.json"


class OriginServer:
    """One running origin."""

    def __init__(self, config: OriginServerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._key = config.load_key()
        trainer, network = self._key.node, config.network_id
        store = ShardStore(config.store, network=network, run=config.run_id, trainer=trainer)
        proxies = config.limits.trusted_proxies
        self._directory = ServerDirectory()
        self._server = ShardServer(
            store, UploadSlots(config.upload.limits()), clock=clock, trusted_proxies=proxies, directory=self._directory
        )
        self._http = HttpServer(self._key, network, clock=clock, limits=config.limits)
        self._server.add_routes(self._http)
        self._guard = GossipGuard(network, is_trainer=lambda run, node: node == trainer)
        self._libp2p = Libp2pTransport(
            self._key,
            network,
            config.p2p,
            clock=clock,
            guard=self._guard,
            peers_file=config.store / PEERS_NAME,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until told to stop. LocalError if the port is taken, or another origin runs on this store."""
        config = self._config
        async with AsyncExitStack() as stack:
            lock = stack.enter_context(
                hold_process_lock(config.store / ORIGIN_LOCK_NAME, "origin", advice="give --store a folder")
            )
            client = await stack.enter_async_context(config.open_client(self._key, self._clock))
            port = await self._http.start(config.listen)
            stack.push_async_callback(self._http.stop)
            urls = with_ports(config.urls, port)
            lock.write_url(urls[0])
            manifests = len(self._server.store.shard_sets)
            log.info("the origin of %s serves %d manifests at %s", config.run, manifests, ", ".join(urls))
            relay, announcer = self._make_announcer(client, urls)
            try:
                await Supervisor(self._parts(relay, announcer), self._clock).run_until(stop.wait())
            finally:
                await announce_stop_within_deadline(announcer)
                self._server.close()
        log.info("the origin has stopped; %d shards were sent", self._server.sent_shards)

    def _on_gossip(self, gossip: ReceivedGossip) -> None:
        """An origin needs no weights. It learns who else serves them, to redirect nodes when its slots are full."""
        self._directory.expire(self._clock.now_ms())
        self._directory.learn(gossip)

    def _make_announcer(self, client: HttpClient, urls: tuple[str, ...]) -> tuple[GossipHttpClient, Announcer]:
        config, network = self._config, self._config.network_id
        relay = GossipHttpClient(
            client,
            config.server,
            network=network,
            run=config.run_id,
            clock=self._clock,
            guard=self._guard,
            deliver=self._on_gossip,
        )
        relay.wants_peers, relay.get_record = self._libp2p.wants_peers, lambda: self._libp2p.record
        relay.on_peers = lambda peers: self._libp2p.add_peers(peers, seed=config.server.node)
        self._libp2p.count_nodes = lambda run: relay.nodes
        transports = (relay.send, self._libp2p.send)
        publisher = GossipPublisher(
            self._key, network, self._guard, clock=self._clock, sequence=SequenceCounter.shared(), transports=transports
        )
        announcer = Announcer(
            self._server,
            publisher,
            run=config.run_id,
            clock=self._clock,
            list_urls=lambda: urls,
            count_nodes=lambda: relay.nodes,
            announces=True,
            rescans=True,
        )
        return relay, announcer

    def _parts(self, relay: GossipHttpClient, announcer: Announcer) -> list[SupervisedTask]:
        async def gossip() -> None:
            await self._libp2p.run(self._on_gossip, lambda: [self._config.run_id])

        return [
            SupervisedTask("announcer", announcer.run),
            SupervisedTask("gossip relay", relay.run),
            SupervisedTask("libp2p", gossip),
        ]


async def run_origin(config: OriginServerConfig) -> int:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await OriginServer(config, SystemClock()).run(stop)
    return 0
