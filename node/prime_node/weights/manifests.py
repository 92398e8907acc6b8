"""Finds the chain of manifests from the checkpoints on disk to a wanted one, and fetches those manifests."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection
from hashlib import sha256
from random import Random

from prime_node.weights.connection import ConnectionBroken, ConnectionPool
from prime_protocol.constants import MANIFEST_BYTES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.weights.manifest import SignedManifest
from prime_protocol.weights.transfer import ManifestLink, make_manifest_link, plan_manifest_path
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.store import ShardStore

log = logging.getLogger(__name__)

MANIFEST_MS = 20_000
"""Time for one server to send a manifest."""
HEDGE_MS = 1_000
"""After this time without an answer, the next server is asked as well."""

DISCOVERED_AT_ONCE_MAX = 8
"""Unannounced manifests requested at once, when no announced chain leads to the checkpoint."""
DISCOVERED_MAX = 32
"""Such manifests kept in memory, up to 4 MiB each."""
FAILURES_MAX = 256
"""Servers whose last failure is remembered."""


class ManifestResolver:
    """Plans a path over the links of known manifests, and fetches the manifests of that path from servers."""

    def __init__(self, store: ShardStore, directory: ServerDirectory, connections: ConnectionPool, rng: Random) -> None:
        self._store = store
        self._directory = directory
        self._connections = connections
        self._rng = rng
        self._found: OrderedDict[Digest, SignedManifest] = OrderedDict()
        """Manifests that servers have and no announcement named."""
        self._failed: OrderedDict[NodeId, str] = OrderedDict()
        """The last failure of each server, so that a repeated one is logged once."""
        self.problem = ""
        """Why no server sent the last manifest; empty if one did."""

    async def find(
        self, root: Digest, held: Collection[Digest], manifest: Digest | None
    ) -> list[SignedManifest] | None:
        """The manifests to apply, in order; None while no path is known."""
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
        """Links of manifests that servers have and no announcement names: those expire while the trainer is away."""
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
        """The manifest of a link, verified to be the one announced."""
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
        """From disk, or from a server; accepted only with the trainer's signature.

        Servers are asked in random order, the next one when one fails or after HEDGE_MS, so a frozen server costs
        a second.
        """
        if digest in self._store.shard_sets:
            return self._store.shard_sets[digest].signed
        servers = [(each.node, each.serving.urls) for each in self._directory.servers(digest)]
        named = {node for node, _ in servers}
        servers += [(node, ()) for node in sorted(self._connections.linked_nodes()) if node not in named]
        self._rng.shuffle(servers)
        count, reason = len(servers), ""
        asking: set[asyncio.Task[SignedManifest | str]] = set()
        try:
            while servers or asking:
                if servers:
                    asking.add(asyncio.create_task(self._ask_manifest(digest, *servers.pop())))
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
            self.problem = f"none of the {count} nodes that serve the weights sent the manifest: {reason}"
        return None

    async def _ask_manifest(self, digest: Digest, node: NodeId, urls: tuple[str, ...]) -> SignedManifest | str:
        """The manifest from one server, or the reason why it sent none."""
        try:
            async with asyncio.timeout(MANIFEST_MS / 1000), self._connections.borrow(urls, node) as connection:
                answer = await connection.get(f"/manifests/{digest}", {}, body_bytes_max=MANIFEST_BYTES_MAX)
            if answer.status != 200:
                raise RemoteError("manifest", f"was answered with HTTP {answer.status}")
            if sha256(answer.body).digest() != digest:
                raise RemoteError("manifest", "does not have the requested digest")
            signed = self._store.open_frame(answer.body)
        except (ConnectionBroken, TimeoutError, RemoteError) as error:
            return self._record_failure(node, str(error) or type(error).__name__)
        self._failed.pop(node, None)
        return signed

    def _record_failure(self, node: NodeId, reason: str) -> str:
        if self._failed.get(node) != reason:
            log.info("no manifest from %s: %s", node, reason)
        self._failed[node] = reason
        self._failed.move_to_end(node)
        if len(self._failed) > FAILURES_MAX:
            self._failed.popitem(last=False)
        return reason
