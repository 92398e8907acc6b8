"""Which manifests lead from what is here to the weights that are wanted, and where to get those manifests."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection
from hashlib import sha256
from random import Random

from prime_node.weights.connection import ConnectionBroken, ConnectionPool
from prime_protocol.constants import FRAME_BYTES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.weights.manifest import SignedManifest
from prime_protocol.weights.transfer import ManifestLink, make_manifest_link, plan_manifest_path
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.shardcast.directory import ServerDirectory, ServerRecord
from prime_runtime.shardcast.store import ShardStore

log = logging.getLogger(__name__)

MANIFEST_MS = 20_000
"""Time for one server to send a manifest."""
HEDGE_MS = 1_000
"""How long one server is waited for alone."""

DISCOVERED_AT_ONCE_MAX = 8
"""Manifests asked for in one look at what servers have, when no announced way leads to the weights."""
DISCOVERED_MAX = 32
"""Such manifests kept in memory, up to 4 MiB each."""
FAILURES_MAX = 256
"""Servers whose last failure is remembered."""


class ManifestResolver:
    """Asks the directory for links, and servers for the manifests behind them."""

    def __init__(self, store: ShardStore, directory: ServerDirectory, connections: ConnectionPool, rng: Random) -> None:
        self._store = store
        self._directory = directory
        self._connections = connections
        self._rng = rng
        self._found: OrderedDict[Digest, SignedManifest] = OrderedDict()
        """Manifests that nobody announced to us, and that servers have."""
        self._failed: OrderedDict[NodeId, str] = OrderedDict()
        """Why each server gave none when it was last asked: told once, however often it is asked."""
        self.problem = ""
        """Why no server gave the manifest that was last asked for; empty where one did."""

    async def find(
        self, root: Digest, held: Collection[Digest], manifest: Digest | None
    ) -> list[SignedManifest] | None:
        """The manifests to apply in order, from what is here; None while no way is known."""
        if manifest is not None and manifest not in self._store.shard_sets:
            signed = await self.get_manifest(manifest)
            extra = [make_manifest_link(signed.manifest)] if signed is not None else []
        else:
            signed, extra = None, []
        found = [make_manifest_link(each.manifest) for each in self._found.values()]
        known = [*self._directory.links(), *self._store.links(), *extra, *found]
        links = plan_manifest_path(root, held, known)
        if links is None:
            links = plan_manifest_path(root, held, [*known, *await self._discover_manifests()])
        if links is None:
            return None
        path = [await self._resolve(link, signed) for link in links]
        return [each for each in path if each is not None] if all(path) else None

    async def _discover_manifests(self) -> list[ManifestLink]:
        """What servers have and nobody announced to us: announcements die out while their trainer is away."""
        announced = {each.manifest for each in self._directory.announced()}
        known = {*announced, *self._store.shard_sets, *self._found}
        unknown = [digest for digest in self._directory.served() if digest not in known][:DISCOVERED_AT_ONCE_MAX]
        for signed in [await self.get_manifest(digest) for digest in unknown]:
            if signed is not None:
                self._found[signed.digest] = signed
        while len(self._found) > DISCOVERED_MAX:
            self._found.popitem(last=False)
        return [make_manifest_link(each.manifest) for each in self._found.values()]

    async def _resolve(self, link: ManifestLink, extra: SignedManifest | None) -> SignedManifest | None:
        """The manifest behind a link; checked to be what was announced."""
        here = [shard_set.signed for shard_set in self._store.shard_sets.values()] + ([extra] if extra else [])
        here += self._found.values()
        for signed in here:
            if make_manifest_link(signed.manifest) == link:
                return signed
        announced = self._directory.find_announcement(link)
        found = await self.get_manifest(announced.manifest) if announced is not None else None
        if found is not None and make_manifest_link(found.manifest) != link:
            log.warning("the manifest %s is not what was announced", found.digest)
            return None
        return found

    async def get_manifest(self, digest: Digest) -> SignedManifest | None:
        """From here, or from whoever serves it; signed by the trainer, or it is not taken.

        One server is asked after the other, the next as soon as one fails or takes long: a frozen one costs a second.
        """
        if digest in self._store.shard_sets:
            return self._store.shard_sets[digest].signed
        servers = list(self._directory.servers(digest))
        self._rng.shuffle(servers)
        count, reason = len(servers), ""
        asking: set[asyncio.Task[SignedManifest | str]] = set()
        try:
            while servers or asking:
                if servers:
                    asking.add(asyncio.create_task(self._ask_manifest(digest, servers.pop())))
                done, asking = await asyncio.wait(
                    asking, timeout=HEDGE_MS / 1000 if servers else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    answer = task.result()
                    if isinstance(answer, SignedManifest):
                        self.problem = ""
                        return answer
                    reason = answer
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if count:
            self.problem = f"none of {count} nodes that serve them gives them: {reason}"
        return None

    async def _ask_manifest(self, digest: Digest, server: ServerRecord) -> SignedManifest | str:
        """What one server gives; why it gives none."""
        try:
            async with asyncio.timeout(MANIFEST_MS / 1000), self._connections.borrow(server.serving.urls) as connection:
                answer = await connection.get(f"/manifests/{digest}", {}, body_bytes_max=FRAME_BYTES_MAX)
            if answer.status != 200:
                raise RemoteError("manifest", f"is answered with HTTP {answer.status}")
            if sha256(answer.body).digest() != digest:
                raise RemoteError("manifest", "does not have the digest it was asked for by")
            signed = self._store.open_frame(answer.body)
        except (ConnectionBroken, TimeoutError, RemoteError) as error:
            return self._record_failure(server.node, str(error) or type(error).__name__)
        self._failed.pop(server.node, None)
        return signed

    def _record_failure(self, node: NodeId, reason: str) -> str:
        if self._failed.get(node) != reason:
            log.info("no manifest from %s: %s", node, reason)
        self._failed[node] = reason
        self._failed.move_to_end(node)
        if len(self._failed) > FAILURES_MAX:
            self._failed.popitem(last=False)
        return reason
