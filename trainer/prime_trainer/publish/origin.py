"""The origin of a run's weights: serves the store's shards over HTTP and tells the run what is there.

It notices what `publish`, another process, puts into the store. It runs until SIGTERM; each part of it may fail and
begins again.
"""

import asyncio
import logging
import signal
from contextlib import AsyncExitStack

from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import ReceivedGossip
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.gossip.transport import GossipHttpClient, GossipPublisher, Libp2pTransport
from prime_runtime.http.client import HttpClient, open_client
from prime_runtime.http.server import HttpServer
from prime_runtime.keys import SequenceCounter
from prime_runtime.lock import hold_process_lock
from prime_runtime.shardcast.announcer import Announcer, announce_stop_within_deadline
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.server import ShardServer
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.upload_slots import UploadSlots, with_ports
from prime_runtime.supervisor import SupervisedTask, Supervisor
from prime_trainer.config import OriginServerConfig

log = logging.getLogger(__name__)

ORIGIN_LOCK_NAME = "origin.lock"


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
        self._libp2p = Libp2pTransport(self._key, network, config.p2p, clock=clock, guard=self._guard)

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop. LocalError: the port is taken, or another origin runs here."""
        config = self._config
        async with AsyncExitStack() as stack:
            lock = stack.enter_context(
                hold_process_lock(config.store / ORIGIN_LOCK_NAME, "origin", advice="give --store a folder")
            )
            client = await stack.enter_async_context(
                open_client(
                    key=self._key,
                    network=config.network_id,
                    clock=self._clock,
                    limits=config.client,
                    authority=config.authority,
                )
            )
            port = await self._http.start(config.listen)
            stack.push_async_callback(self._http.stop)
            urls = with_ports(config.urls, port)
            lock.write_url(urls[0])
            held = len(self._server.store.shard_sets)
            log.info("the origin of %s serves %d manifests under %s", config.run, held, ", ".join(urls))
            records, crier = self._make_announcer(client, urls)
            try:
                await Supervisor(self._parts(records, crier), self._clock).run_until(stop.wait())
            finally:
                await announce_stop_within_deadline(crier)
                self._server.close()
        log.info("the origin has stopped; %d shards were sent", self._server.sent_shards)

    def _on_gossip(self, gossip: ReceivedGossip) -> None:
        """An origin has everything already; it only learns to whom it can send those it has no slot for."""
        self._directory.expire(self._clock.now_ms())
        self._directory.learn(gossip)

    def _make_announcer(self, client: HttpClient, urls: tuple[str, ...]) -> tuple[GossipHttpClient, Announcer]:
        config, network = self._config, self._config.network_id
        records = GossipHttpClient(
            client,
            config.server,
            network=network,
            run=config.run_id,
            clock=self._clock,
            guard=self._guard,
            hear=self._on_gossip,
        )
        ways = (records.send, self._libp2p.send)
        voice = GossipPublisher(
            self._key, network, self._guard, clock=self._clock, sequence=SequenceCounter.shared(), ways=ways
        )
        crier = Announcer(
            self._server,
            voice,
            run=config.run_id,
            clock=self._clock,
            list_urls=lambda: urls,
            count_nodes=lambda: records.nodes,
            announces=True,
            rescans=True,
        )
        return records, crier

    def _parts(self, records: GossipHttpClient, crier: Announcer) -> list[SupervisedTask]:
        async def gossip() -> None:
            if self._config.p2p.enabled:
                self._libp2p.add_bootstrap((await records.poll()).peers)
            await self._libp2p.run(self._on_gossip, lambda: [self._config.run_id])

        return [
            SupervisedTask("crier", crier.run),
            SupervisedTask("records", records.run),
            SupervisedTask("gossip", gossip),
        ]


async def run_origin(config: OriginServerConfig) -> int:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await OriginServer(config, SystemClock()).run(stop)
    return 0
