"""From "this is the checkpoint" to a folder with it: finds the way, fetches what is missing, builds it, proves it.

The way is the cheapest chain of manifests from what is here: a delta where its base is held, else several, else a
keyframe. A checkpoint appears under its name only after every tensor had the digest its trainer signed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from prime_node.shardcast.assemble import Assembler
from prime_node.shardcast.events import Progress
from prime_node.shardcast.fetch import Fetcher
from prime_node.shardcast.limits import FetchLimits
from prime_node.shardcast.link import LinkBroken
from prime_node.shardcast.links import Links
from prime_node.shardcast.parents import Parents
from prime_protocol.constants import FRAME_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip import Gossip, GossipKind, open_gossip, topic
from prime_protocol.ids import Digest, NodeId
from prime_protocol.manifest_path import Link, make_link, plan_path
from prime_protocol.signed_manifest import SignedManifest
from prime_runtime.clock import Clock
from prime_runtime.shardcast.directory import Directory, Server
from prime_runtime.shardcast.retention import VERSIONS_KEPT, choose_removable
from prime_runtime.shardcast.stock import Stock
from prime_runtime.shardcast.store import ShardStore

log = logging.getLogger(__name__)

MANIFEST_MS = 20_000
"""Time for one server to send a manifest."""
HEDGE_MS = 1_000
"""How long one server is waited for alone."""
RETRY_MS = 1_000
"""Between two looks for a way that was not there."""
THREADS = 4


@dataclass(frozen=True, slots=True)
class Transfer:
    """One manifest on its way, for status pages."""

    manifest: Digest
    step: int
    kind: str
    progress: Progress
    held: bytes
    coming: bytes
    corrupt: int


class WeightsFetcher:
    """Keeps one store supplied. `is_relay`: every version is fetched and none is built."""

    def __init__(
        self,
        store: ShardStore,
        directory: Directory,
        *,
        node: NodeId,
        clock: Clock,
        dice: Random,
        limits: FetchLimits,
        allow_private: bool = False,
        is_relay: bool = False,
        versions: int = VERSIONS_KEPT,
        disk_bytes_max: int | None = None,
    ) -> None:
        self.store = store
        self.directory = directory
        self._node = node
        self._clock = clock
        self._dice = dice
        self._limits = limits
        self._is_relay = is_relay
        self._versions = versions
        self._disk_bytes_max = disk_bytes_max
        self._links = Links(allow_private=allow_private)
        self._parents = Parents()
        self._pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="digest")
        self.assembler = Assembler(store, threads=THREADS)
        self._news = asyncio.Event()
        self._busy: dict[Digest, asyncio.Lock] = {}
        self._running: dict[Digest, Fetcher] = {}
        self._background: asyncio.Task[None] | None = None
        self.corrupt = 0

    # --- What comes in ----------------------------------------------------------------------------------------------

    def tell(self, gossip: Gossip) -> None:
        """A message that the gossip guard let through."""
        self.directory.learn(gossip)
        self._news.set()

    def hear(self, frame: bytes) -> None:
        """A serving record that came with a refusal. Whatever is wrong with it, it is just not learnt."""
        name = topic(self.store.network, self.store.run, GossipKind.SERVING)
        try:
            gossip = open_gossip(
                name, frame, network=self.store.network, run=self.store.run, now_ms=self._clock.now_ms()
            )
        except RemoteError as error:
            log.debug("a child's record is refused: %s", error)
            return
        self.directory.learn(gossip)

    def transfers(self) -> list[Transfer]:
        """What is arriving just now."""
        found = []
        for digest, fetcher in self._running.items():
            stock = self.store.stocks[digest]
            manifest, (held, coming) = stock.manifest, stock.bitmaps()
            found.append(
                Transfer(digest, manifest.step, manifest.kind, fetcher.progress(), held, coming, fetcher.corrupt)
            )
        return found

    async def recheck(self) -> int:
        """After a start: compare everything that is said to be here with its digest; the number of shards lost."""
        lost = sum([await stock.recheck(self._pool) for stock in self.store.newest_first()])
        return lost + await asyncio.to_thread(self.assembler.recheck)

    async def close(self) -> None:
        await self._links.close()
        if self._background is not None:
            await self._background
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- Getting there ----------------------------------------------------------------------------------------------

    async def obtain(self, root: Digest, manifest: Digest | None = None) -> None:
        """Until the checkpoint is here: built, or on a relay all of its shards. Tries for ever; LocalError: no room.

        `manifest` is one that leads there, where the caller knows it; others are known from announcements.
        """
        while not self.has(root):
            self._news.clear()
            path = await self._find_path(root, manifest)
            if path is None:
                await self._wait_for_news()
                continue
            for signed in path:
                await self.fetch(signed)
            if not self._is_relay:
                await self._build(path)
        self._retire()
        if not self._is_relay:
            self._background = asyncio.create_task(asyncio.to_thread(self.assembler.prepare))

    def _relayed(self) -> set[Digest]:
        """Where the manifests lead whose shards are all here."""
        return {stock.signed.root for stock in self.store.stocks.values() if stock.is_complete}

    def has(self, root: Digest) -> bool:
        if self._is_relay:
            return root in self._relayed()
        return self.store.checkpoint_path(root).exists()

    async def fetch_announced(self) -> None:
        """On a relay: everything that was announced and is not here, oldest step last."""
        for announced in self.directory.announced():
            stock = self.store.stocks.get(announced.manifest)
            if stock is None or not stock.is_complete:
                signed = await self._get_manifest(announced.manifest)
                if signed is not None and signed.digest not in choose_removable(
                    [*self._all(), signed], versions=self._versions
                ):
                    await self.fetch(signed)
        self._retire()

    async def fetch(self, signed: SignedManifest) -> Stock:
        """Every shard of one manifest."""
        async with self._alone(signed.digest):
            self._check_room(signed)
            stock = self.store.add(signed)
            if stock.is_complete:
                return stock
            fetcher = Fetcher(
                stock,
                self.directory,
                self._links,
                self._parents,
                node=self._node,
                clock=self._clock,
                dice=self._dice,
                limits=self._limits,
                pool=self._pool,
                hear=self.hear,
            )
            with self._shown(signed.digest, fetcher):
                await fetcher.run()
            return stock

    async def _build(self, path: list[SignedManifest]) -> None:
        try:
            await asyncio.to_thread(self.assembler.build, path)
        except RemoteError as error:
            # The base was not what it said, or the trainer erred. Without the base the next path starts elsewhere.
            log.warning("step %d cannot be built, looking for another way: %s", path[-1].manifest.step, error)
            await asyncio.to_thread(self.assembler.discard, path)
            await self._clock.sleep_ms(RETRY_MS)

    # --- Finding the way --------------------------------------------------------------------------------------------

    async def _find_path(self, root: Digest, manifest: Digest | None) -> list[SignedManifest] | None:
        """The manifests to apply in order, from what is here; None while no way is known."""
        if manifest is not None and manifest not in self.store.stocks:
            signed = await self._get_manifest(manifest)
            extra = [make_link(signed.manifest)] if signed is not None else []
        else:
            signed, extra = None, []
        held = self._relayed() if self._is_relay else set(self.store.checkpoints())
        links = plan_path(root, held, [*self.directory.links(), *self.store.links(), *extra])
        if links is None:
            return None
        if self._is_relay:
            links = links[-1:]
        path = [await self._resolve(link, signed) for link in links]
        return [each for each in path if each is not None] if all(path) else None

    async def _resolve(self, link: Link, extra: SignedManifest | None) -> SignedManifest | None:
        """The manifest behind a link; checked to be what was announced."""
        here = [stock.signed for stock in self.store.stocks.values()] + ([extra] if extra else [])
        for signed in here:
            if make_link(signed.manifest) == link:
                return signed
        announced = self.directory.manifest_of(link)
        found = await self._get_manifest(announced.manifest) if announced is not None else None
        if found is not None and make_link(found.manifest) != link:
            log.warning("the manifest %s is not what was announced", found.digest)
            return None
        return found

    async def _get_manifest(self, digest: Digest) -> SignedManifest | None:
        """From here, or from whoever serves it; signed by the trainer, or it is not taken.

        One server is asked after the other, the next as soon as one fails or takes long: a frozen one costs a second.
        """
        if digest in self.store.stocks:
            return self.store.stocks[digest].signed
        servers = list(self.directory.servers(digest))
        self._dice.shuffle(servers)
        asking: set[asyncio.Task[SignedManifest | None]] = set()
        try:
            while servers or asking:
                if servers:
                    asking.add(asyncio.create_task(self._ask_manifest(digest, servers.pop())))
                done, asking = await asyncio.wait(
                    asking, timeout=HEDGE_MS / 1000 if servers else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    if (signed := task.result()) is not None:
                        return signed
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return None

    async def _ask_manifest(self, digest: Digest, server: Server) -> SignedManifest | None:
        try:
            async with asyncio.timeout(MANIFEST_MS / 1000), self._links.borrow(server.serving.urls) as link:
                answer = await link.get(f"/manifests/{digest}", {}, body_bytes_max=FRAME_BYTES_MAX)
            if answer.status != 200:
                raise RemoteError("manifest", f"is answered with HTTP {answer.status}")
            if sha256(answer.body).digest() != digest:
                raise RemoteError("manifest", "does not have the digest it was asked for by")
            return self.store.open_frame(answer.body)
        except (LinkBroken, TimeoutError, RemoteError) as error:
            log.info("no manifest from %s: %s", server.node, str(error) or type(error).__name__)
            return None

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(RETRY_MS / 1000):
                await self._news.wait()
        except TimeoutError:
            pass

    # --- Room -------------------------------------------------------------------------------------------------------

    def _all(self) -> list[SignedManifest]:
        return [stock.signed for stock in self.store.stocks.values()]

    def _retire(self) -> None:
        """Versions that nobody needs, and checkpoints older than the kept ones."""
        for digest in choose_removable(self._all(), versions=self._versions):
            if digest not in self._running:
                self.store.remove(digest)
        self.assembler.retire()

    def _check_room(self, signed: SignedManifest) -> None:
        if self._disk_bytes_max is None or signed.digest in self.store.stocks:
            return
        used = sum(stock.manifest.transport_bytes for stock in self.store.stocks.values())
        need = signed.manifest.transport_bytes
        if used + need > self._disk_bytes_max:
            raise LocalError(
                f"weights of {need} bytes do not fit: {used} of disk_bytes_max = {self._disk_bytes_max} are used; "
                "raise it, or keep fewer versions"
            )

    @asynccontextmanager
    async def _alone(self, digest: Digest) -> AsyncIterator[None]:
        """One fetch of a manifest at a time; whoever comes second finds it done."""
        lock = self._busy.setdefault(digest, asyncio.Lock())
        async with lock:
            yield
        if not lock.locked():
            self._busy.pop(digest, None)

    @contextmanager
    def _shown(self, digest: Digest, fetcher: Fetcher) -> Iterator[None]:
        self._running[digest] = fetcher
        try:
            yield
        finally:
            del self._running[digest]
            self.corrupt += fetcher.corrupt
