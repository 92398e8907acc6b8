"""Turns a checkpoint root into a verified folder on disk: plans the path, fetches the shards, builds the checkpoint.

The path is the cheapest chain of manifests from what is on disk: a delta whose base is held, else several deltas, else
a keyframe. A checkpoint gets its final name only after every tensor has the digest that the trainer signed.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from prime_node.weights.assembler import CheckpointAssembler
from prime_node.weights.connection import ConnectionPool
from prime_node.weights.events import DownloadProgress, FetchLimits
from prime_node.weights.fetcher import ShardFetcher
from prime_node.weights.manifests import ManifestResolver
from prime_node.weights.parents import ParentScores
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.messages import CheckpointAnnounced, GossipKind, ReceivedGossip, get_topic, open_gossip
from prime_protocol.weights.manifest import ManifestKind, SignedManifest
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.clock import Clock
from prime_runtime.shardcast.checkpoint_files import count_folder_bytes
from prime_runtime.shardcast.config import VERSIONS_KEPT
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.shard_set import ShardSet
from prime_runtime.shardcast.store import ShardStore, choose_removable

log = logging.getLogger(__name__)

RETRY_MS = 1_000
"""Between two attempts to find a path; doubled after each failed build, up to a minute."""
RETRY_MS_MAX = 60_000
THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class TransferStatus:
    """One running download, for status pages."""

    manifest: Digest
    step: int
    kind: str
    progress: DownloadProgress
    held: bytes
    coming: bytes
    corrupt: int


class CheckpointFetcher:
    """Fetches weights into one store.

    `is_relay`: every version is fetched and none is built. `keeps_chain`: the manifests that lead to the kept versions
    stay, as on every relay, so that a new node can be served; other nodes continue from the checkpoint they built.
    """

    def __init__(
        self,
        store: ShardStore,
        directory: ServerDirectory,
        *,
        node: NodeId,
        clock: Clock,
        rng: Random,
        limits: FetchLimits,
        allow_private: bool = False,
        is_relay: bool = False,
        keeps_chain: bool = False,
        versions: int = VERSIONS_KEPT,
        disk_bytes_max: int | None = None,
        disk_folders: tuple[Path, ...] = (),
        bytes_per_s: int | None = None,
        connections: ConnectionPool | None = None,
    ) -> None:
        """`disk_folders`: what `disk_bytes_max` bounds; empty: this store alone. `connections`: None: its own."""
        self.store = store
        self.directory = directory
        self._node = node
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._is_relay = is_relay
        self._keeps_chain = keeps_chain or is_relay
        self._versions = versions
        self._disk_bytes_max = disk_bytes_max
        self._disk_folders = disk_folders or (store.folder,)
        self._connections = connections or ConnectionPool(allow_private=allow_private, bytes_per_s=bytes_per_s)
        self._manifests = ManifestResolver(store, directory, self._connections, rng)
        self._parents = ParentScores()
        self._pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="digest")
        self.assembler = CheckpointAssembler(store, threads=THREADS)
        self._news = asyncio.Event()
        self._busy: dict[Digest, asyncio.Lock] = {}
        self._running: dict[Digest, ShardFetcher] = {}
        self._background: asyncio.Task[None] | None = None
        self._building = asyncio.Lock()
        """One build at a time: two builds of one checkpoint would overwrite each other's draft."""
        self._verify_lock = asyncio.Lock()
        self._has_verified = False
        self._in_use: Counter[Digest] = Counter()
        """Checkpoints in use, which are kept whatever their age."""
        self._on_path: Counter[Digest] = Counter()
        """Manifests that a build needs, which are kept whatever their age."""
        self.corrupt = 0
        self._received_bytes = 0

    # --- Gossip and status ------------------------------------------------------------------------------------------

    def handle_gossip(self, gossip: ReceivedGossip) -> None:
        """Handle a message that passed the gossip guard."""
        self.directory.learn(gossip)
        self._news.set()

    def learn_serving_record(self, frame: bytes) -> None:
        """Learn a serving record that came with a refusal. An invalid one is ignored."""
        name = get_topic(self.store.network, self.store.run, GossipKind.SERVING)
        try:
            gossip = open_gossip(
                name, frame, network=self.store.network, run=self.store.run, now_ms=self._clock.now_ms()
            )
        except RemoteError as error:
            log.debug("ignored a child's serving record: %s", error)
            return
        self.directory.learn(gossip)

    @property
    def received_bytes(self) -> int:
        """Bytes of shards since the start, right or wrong."""
        return self._received_bytes + sum(fetcher.received_bytes for fetcher in self._running.values())

    def list_transfers(self) -> list[TransferStatus]:
        """The running downloads."""
        found = []
        for digest, fetcher in self._running.items():
            shard_set = self.store.shard_sets[digest]
            manifest, (held, coming) = shard_set.manifest, shard_set.bitmaps()
            found.append(
                TransferStatus(digest, manifest.step, manifest.kind, fetcher.progress(), held, coming, fetcher.corrupt)
            )
        return found

    async def verify_store_once(self) -> int:
        """Once after a start: verify all shards and checkpoints on disk; returns how many were damaged. Nothing that
        an earlier process left is used before that.
        """
        async with self._verify_lock:
            if self._has_verified:
                return 0
            lost = sum([await shard_set.recheck(self._pool) for shard_set in self.store.newest_first()])
            lost += await asyncio.to_thread(self.assembler.verify_all)
            self._has_verified = True
            return lost

    async def check(self, root: Digest) -> None:
        """LocalError if a checkpoint on disk is no longer what was signed; it is removed then."""
        async with self._verify_lock:
            is_right = await asyncio.to_thread(self.assembler.check, root)
        if not is_right:
            raise LocalError(f"the checkpoint {root} on this disk was damaged; it is fetched again")

    async def close(self) -> None:
        await self._connections.close()
        if self._background is not None:
            await self._background
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- Fetching and building --------------------------------------------------------------------------------------

    async def ensure_checkpoint(
        self, root: Digest, manifest: Digest | None = None, is_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Wait until the checkpoint is built, or on a relay until its shards are on disk. LocalError: the disk is full.

        `manifest` leads to the checkpoint, if the caller knows one; announcements name others. Without a known path it
        retries forever, or returns False once `is_wanted` does.
        """
        await self.verify_store_once()
        failures = 0
        while not self.has(root):
            self._news.clear()
            path = await self._manifests.find(root, self._held(), manifest)
            if path is None:
                if not is_wanted():
                    return False
                await self._wait_for_news()
                continue
            if not await self._fetch_and_build(path):
                await self._clock.sleep_ms(min(RETRY_MS << failures, RETRY_MS_MAX))
                failures += 1
        self._remove_old()
        if not self._is_relay and self._fits(self._count_next()):
            self._background = asyncio.create_task(asyncio.to_thread(self.assembler.preallocate_next))
        return True

    @asynccontextmanager
    async def hold_checkpoint(self, root: Digest, manifest: Digest | None = None) -> AsyncIterator[Path]:
        """The folder of a checkpoint, fetched if needed. It is not removed inside the block."""
        with _pinned(self._in_use, [root]):
            await self.ensure_checkpoint(root, manifest)
            yield self.store.checkpoint_path(root)

    def _held(self) -> set[Digest]:
        """Roots of built checkpoints, or on a relay of manifests whose shards are all on disk."""
        if self._is_relay:
            return {shard_set.signed.root for shard_set in self.store.shard_sets.values() if shard_set.is_complete}
        return set(self.store.checkpoints())

    def has(self, root: Digest) -> bool:
        return root in self._held()

    async def fetch_announced(self, announced: CheckpointAnnounced) -> None:
        """On a relay: fetch an announced version, unless the retention rule would remove it at once."""
        shard_set = self.store.shard_sets.get(announced.manifest)
        if shard_set is None or not shard_set.is_complete:
            signed = await self._manifests.get_manifest(announced.manifest)
            if signed is not None and signed.digest not in self._find_removable(signed):
                await self.fetch(signed)
        self._remove_old()

    async def fetch(self, signed: SignedManifest) -> ShardSet:
        """Fetch every shard of one manifest."""
        await self.verify_store_once()
        async with self._lock_manifest(signed.digest):
            self._check_disk_limit(signed)
            # Preallocating a large file takes a while on some disks.
            await asyncio.to_thread(self.store.preallocate, signed)
            shard_set = self.store.add(signed)
            if shard_set.is_complete:
                return shard_set
            fetcher = ShardFetcher(
                shard_set,
                self.directory,
                self._connections,
                self._parents,
                node=self._node,
                clock=self._clock,
                rng=self._rng,
                limits=self._limits,
                learn_record=self.learn_serving_record,
            )
            with self._track(signed.digest, fetcher):
                try:
                    await fetcher.run()
                except OSError as error:
                    raise LocalError(f"shards of step {signed.manifest.step} cannot be stored: {error}") from None
            return shard_set

    async def _fetch_and_build(self, path: list[SignedManifest]) -> bool:
        """Fetch the whole path and, except on a relay, build along it; False if the build failed."""
        with _pinned(self._on_path, [signed.digest for signed in path]):
            for signed in path:
                await self.fetch(signed)
            return self._is_relay or await self._build(path)

    async def _build(self, path: list[SignedManifest]) -> bool:
        try:
            async with self._building:
                for signed in path:
                    with _pinned(self._in_use, [root for root in (signed.manifest.base, signed.root) if root]):
                        await asyncio.to_thread(self.assembler.build, [signed])
                    # A long path builds many checkpoints of the same size.
                    self.assembler.remove_old({*self._in_use, signed.root})
        except OSError as error:
            raise LocalError(f"step {path[-1].manifest.step} cannot be written: {error}") from None
        except (RemoteError, LocalError) as error:
            # The base is damaged, or the trainer erred. Without the base, the next path starts elsewhere.
            log.warning("step %d cannot be built, looking for another path: %s", path[-1].manifest.step, error)
            await asyncio.to_thread(self.assembler.remove_base, path)
            return False
        return True

    # --- Waiting and disk space --------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why no server sends the manifest although some serve it."""
        return self._manifests.problem

    async def _wait_for_news(self) -> None:
        if self.problem:
            # Gossip, which may come hundreds of times a second, is no reason to retry servers that just failed.
            await self._clock.sleep_ms(RETRY_MS)
            return
        try:
            async with asyncio.timeout(RETRY_MS / 1000):
                await self._news.wait()
        except TimeoutError:
            pass

    def _find_removable(self, *more: SignedManifest) -> list[Digest]:
        known = [*(shard_set.signed for shard_set in self.store.shard_sets.values()), *more]
        return choose_removable(known, versions=self._versions, keeps_way=self._keeps_chain)

    def _remove_old(self) -> None:
        """Remove versions that the retention rule drops, and checkpoints older than the kept ones."""
        for digest in self._find_removable():
            if digest not in self._running and digest not in self._on_path:
                self.store.remove(digest)
        self.assembler.remove_old(set(self._in_use))

    def _check_disk_limit(self, signed: SignedManifest) -> None:
        """LocalError if the shards, plus a checkpoint built from a delta, would exceed the owner's disk limit."""
        if self._disk_bytes_max is None or signed.digest in self.store.shard_sets:
            return
        self._remove_old()
        need = signed.manifest.transport_bytes
        if (
            not self._is_relay
            and signed.manifest.kind is ManifestKind.DELTA
            and not self.store.preallocated_path.exists()
        ):
            need += _count_tensor_bytes(signed)
        if not self._fits(need):
            used = self._count_used()
            fewer = ", or lower weights.keep" if self._versions > 1 and self.store.shard_sets else ""
            raise LocalError(
                f"weights of {need} bytes do not fit: {used} of weights.disk_bytes_max = {self._disk_bytes_max} are "
                f"used; set it to {used + need} or more{fewer}"
            )

    def _fits(self, need: int) -> bool:
        return self._disk_bytes_max is None or self._count_used() + need <= self._disk_bytes_max

    def _count_used(self) -> int:
        return sum(map(count_folder_bytes, self._disk_folders))

    def _count_next(self) -> int:
        """Estimated bytes of the next checkpoint: those of the largest one on disk."""
        return max((_count_tensor_bytes(signed) for signed in self.store.checkpoints().values()), default=0)

    @asynccontextmanager
    async def _lock_manifest(self, digest: Digest) -> AsyncIterator[None]:
        """One fetch of a manifest at a time; the second caller finds it complete."""
        lock = self._busy.setdefault(digest, asyncio.Lock())
        async with lock:
            yield
        if not lock.locked():
            self._busy.pop(digest, None)

    @contextmanager
    def _track(self, digest: Digest, fetcher: ShardFetcher) -> Iterator[None]:
        self._running[digest] = fetcher
        try:
            yield
        finally:
            del self._running[digest]
            self.corrupt += fetcher.corrupt
            self._received_bytes += fetcher.received_bytes


@contextmanager
def _pinned(counter: Counter[Digest], digests: list[Digest]) -> Iterator[None]:
    """Inside the block the digests are counted as in use, so they are not removed."""
    counter.update(digests)
    try:
        yield
    finally:
        counter.subtract(digests)
        for digest in [digest for digest in digests if not counter[digest]]:
            del counter[digest]


def _count_tensor_bytes(signed: SignedManifest) -> int:
    return sum(tensor.size for tensor in signed.manifest.tensors)
