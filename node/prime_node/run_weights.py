"""The weights of one run on this node: gossip about them, fetching, serving, and the run's trainer.

What a node has once, whatever the number of its runs, is in swarm.py.
"""

import logging
from collections.abc import Callable, Sequence
from random import Random

from aiohttp import web

from prime_node.config import NodeConfig, NodeRole
from prime_node.storage.node_folder import RunFolder, list_weights_folders
from prime_node.weights.checkpoints import CheckpointFetcher
from prime_node.weights.connection import ConnectionPool
from prime_node.weights.events import FetchLimits
from prime_node.weights.relay import RelayFollower
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import ReceivedGossip
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_runtime.clock import Clock
from prime_runtime.gossip.transport import GossipHttpClient
from prime_runtime.http.client import HttpClient
from prime_runtime.http.server import HttpServer
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.server import ShardResponse, ShardServer
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.upload_slots import UploadSlots

log = logging.getLogger(__name__)

POLL_MS = 10_000
"""Between two removals of servers that have been silent for too long."""


class RunWeights:
    """One run's weights."""

    def __init__(
        self,
        config: NodeConfig,
        run: RunId,
        trainer: NodeId,
        *,
        node: NodeId,
        client: HttpClient,
        guard: GossipGuard,
        slots: UploadSlots,
        sending: dict[int, ShardResponse],
        connections: ConnectionPool,
        clock: Clock,
        rng: Random,
        deliver: Callable[[ReceivedGossip], None],
    ) -> None:
        self.run = run
        self.trainer = trainer
        self._config, weights = config, config.weights
        self._clock = clock
        self.directory = ServerDirectory()
        self.store = ShardStore(RunFolder(config, run).weights, network=config.network_id, run=run, trainer=trainer)
        proxies = config.limits.trusted_proxies
        self.server = ShardServer(
            self.store, slots, clock=clock, trusted_proxies=proxies, directory=self.directory, sending=sending
        )
        self.fetcher = CheckpointFetcher(
            self.store,
            self.directory,
            node=node,
            clock=clock,
            rng=rng,
            limits=FetchLimits(transfers_max=weights.transfers_at_once),
            is_relay=config.role is NodeRole.RELAY and not weights.build,
            keeps_chain=config.role is NodeRole.RELAY,
            versions=weights.keep,
            disk_bytes_max=weights.disk_bytes_max or None,
            disk_folders=list_weights_folders(config),
            connections=connections,
        )
        self.relay_client = GossipHttpClient(
            client,
            config.server,
            network=config.network_id,
            run=run,
            clock=clock,
            guard=guard,
            deliver=deliver,
        )

    def count_nodes(self) -> int:
        """About how many nodes serve in the run: as the coordinator last said, and at least those known by gossip."""
        return max(self.relay_client.nodes, len(self.directory))

    async def follow(self) -> None:
        """Verifies the weights on disk first. A relay then fetches everything that is announced, to serve it."""
        lost = await self.fetcher.verify_store_once()
        if lost:
            log.warning("%d shards or checkpoints of %s on disk are damaged; fetching them again", lost, self.run)
        if self._config.role is NodeRole.RELAY:
            await RelayFollower(self.fetcher, self._clock).run()
        while True:
            self.directory.expire(self._clock.now_ms())
            await self._clock.sleep_ms(POLL_MS)


def find_changed_tensors(stores: Sequence[ShardStore], old: Digest, new: Digest) -> frozenset[str] | None:
    """Names of the tensors that differ between two checkpoints of one run; None where they are not on this disk."""
    for store in stores:
        held = store.checkpoints()
        if old in held and new in held:
            before = {tensor.name: tensor.digest for tensor in held[old].manifest.tensors}
            return frozenset(
                tensor.name for tensor in held[new].manifest.tensors if before.get(tensor.name) != tensor.digest
            )
    return None


class ShardRoutes:
    """Serves the weights of all runs at one address: a digest leads to the server whose store knows it."""

    def __init__(self, servers: Sequence[ShardServer]) -> None:
        self._servers = servers

    def add_to(self, http: HttpServer) -> None:
        http.add_page("/shards/{digest}", lambda request: self._find(request).get_shard(request))
        http.add_page("/have/{digest}", lambda request: self._find(request).get_have(request))
        http.add_page("/manifests/{digest}", lambda request: self._find(request).get_manifest(request))

    def _find(self, request: web.Request) -> ShardServer:
        """Any server answers for a digest that none of them knows."""
        try:
            digest = Digest.parse(request.match_info["digest"])
        except RemoteError:
            return self._servers[0]
        known = (each for each in self._servers if digest in each.store.shard_sets or each.store.find(digest))
        return next(known, self._servers[0])
