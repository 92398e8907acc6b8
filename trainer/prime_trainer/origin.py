"""The origin of a run's weights: serves the store's shards over HTTP and tells the run what is there.

It notices what `publish`, another process, puts into the store. It runs until SIGTERM; each part of it may fail and
begins again.
"""

import asyncio
import logging
import random
import signal
from contextlib import AsyncExitStack

from prime_protocol.gossip import Gossip
from prime_protocol.gossip_guard import GossipGuard
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.gossip_half import GossipHalf
from prime_runtime.gossip_voice import Voice
from prime_runtime.http_client import HttpClient, open_client
from prime_runtime.http_server import HttpServer
from prime_runtime.lock import lock_file
from prime_runtime.records_client import RecordsClient
from prime_runtime.sequence import Sequence
from prime_runtime.shardcast.crier import Crier, leave
from prime_runtime.shardcast.directory import Directory
from prime_runtime.shardcast.serve import ShardServer
from prime_runtime.shardcast.slots import UploadSlots
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.urls import with_ports
from prime_runtime.supervision import Part, Supervisor
from prime_trainer.config import OriginConfig

log = logging.getLogger(__name__)

LOCK_NAME = "origin.lock"


class Origin:
    """One running origin."""

    def __init__(self, config: OriginConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._key = config.load_key()
        trainer, network = self._key.node, config.network_id
        store = ShardStore(config.store, network=network, run=config.run_id, trainer=trainer)
        proxies = config.limits.trusted_proxies
        self._directory = Directory()
        self._server = ShardServer(
            store, UploadSlots(config.upload.limits()), clock=clock, trusted_proxies=proxies, directory=self._directory
        )
        self._http = HttpServer(self._key, network, clock=clock, limits=config.limits)
        self._server.add_routes(self._http)
        self._guard = GossipGuard(network, is_trainer=lambda run, node: node == trainer)
        self._half = GossipHalf(self._key, network, config.p2p, clock=clock, guard=self._guard)

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop. LocalError: the port is taken, or another origin runs here."""
        config = self._config
        async with AsyncExitStack() as stack:
            lock = stack.enter_context(lock_file(config.store / LOCK_NAME, "origin", advice="give --store a folder"))
            client = await stack.enter_async_context(
                open_client(
                    key=self._key,
                    network=config.network_id,
                    clock=self._clock,
                    dice=random.Random(),
                    limits=config.client,
                    authority=config.authority,
                )
            )
            port = await self._http.start(config.listen)
            stack.push_async_callback(self._http.stop)
            urls = with_ports(config.urls, port)
            lock.note_url(urls[0])
            held = len(self._server.store.stocks)
            log.info("the origin of %s serves %d manifests under %s", config.run, held, ", ".join(urls))
            records, crier = self._open_voice(client, urls)
            try:
                await Supervisor(self._parts(records, crier), self._clock).run_until(stop.wait())
            finally:
                await leave(crier)
                self._server.close()
        log.info("the origin has stopped; %d shards were sent", self._server.sent_shards)

    def _hear(self, gossip: Gossip) -> None:
        """An origin has everything already; it only learns to whom it can send those it has no slot for."""
        self._directory.expire(self._clock.now_ms())
        self._directory.learn(gossip)

    def _open_voice(self, client: HttpClient, urls: tuple[str, ...]) -> tuple[RecordsClient, Crier]:
        config, network = self._config, self._config.network_id
        records = RecordsClient(
            client,
            config.server,
            network=network,
            run=config.run_id,
            clock=self._clock,
            guard=self._guard,
            hear=self._hear,
        )
        ways = (records.share, self._half.pass_on)
        voice = Voice(self._key, network, self._guard, clock=self._clock, sequence=Sequence.shared(), ways=ways)
        crier = Crier(
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

    def _parts(self, records: RecordsClient, crier: Crier) -> list[Part]:
        async def gossip() -> None:
            if self._config.p2p.enabled:
                self._half.add_bootstrap((await records.ask()).peers)
            await self._half.run(self._hear, lambda: [self._config.run_id])

        return [Part("crier", crier.run), Part("records", records.run), Part("gossip", gossip)]


async def run(config: OriginConfig) -> int:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Origin(config, SystemClock()).run(stop)
    return 0
