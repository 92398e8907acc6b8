"""Writes the log: entries go to the database in batches, heads are signed over what is on disk, the mirror follows.

Two rules hold throughout. A caller is answered only after its entries are on disk, and no signed head covers an entry
that is not. If a write fails, this process is ahead of the disk and must end; the next one starts from the disk.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.config import LogWriterConfig
from prime_coordinator.log.mirror import extend_mirror, repair_partials, scrub_mirror
from prime_coordinator.log.store import LogStore, StoredHead
from prime_coordinator.log.tree import LogTree
from prime_coordinator.retention.schedule import FileChange
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import HeadNoted
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.log import merkle
from prime_protocol.log.merkle import MerkleProof, compute_leaf_hash
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, sign_tree_head
from prime_protocol.wire.ids import NetworkId
from prime_runtime.clock import Clock

SCRUB_PAUSE_S = 0.01
"""Between two pieces of 256 entries: comparing takes a tenth of a core, and a million entries a minute."""

OnHead = Callable[[bytes, int], None]
"""Called with each new signed head and its number of entries."""


class LogWriter:
    """Appends entries in the order given, and signs heads."""

    def __init__(
        self,
        store: LogStore,
        mirror: Path,
        key: Ed25519PrivateKey,
        network: NetworkId,
        tree: LogTree,
        *,
        clock: Clock,
        config: LogWriterConfig,
        on_head: OnHead,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._key = key
        self._origin = ORIGIN_PREFIX + network
        self.tree = tree
        """Of the entries on disk."""
        self._clock = clock
        self._appending = asyncio.Lock()
        """Held while the database has entries that the tree does not have yet."""
        self._signing = asyncio.Lock()
        """A clean stop may ask for the last head while the loop still writes the previous one."""
        self._config = config
        self._on_head = on_head
        self._queue: deque[bytes] = deque()
        self._changes: deque[FileChange] = deque()
        """What queued entries change about files, written with them."""
        self._queued = asyncio.Event()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.failure: Exception | None = None
        self._head_due = asyncio.Event()
        self._noted: deque[int] = deque()
        """Sizes that noted heads have and that are not signed yet: witnesses cosign exactly these heads."""
        self.head_size = 0

    @property
    def size(self) -> int:
        """Entries on disk."""
        return self.tree.size

    def enqueue(self, leaves: list[bytes], changes: Sequence[FileChange] = ()) -> None:
        """Queue the next entries, with what they change about files; `wait_for_size` returns when they are on disk."""
        self._queue.extend(leaves)
        self._changes.extend(changes)
        self._queued.set()

    async def wait_for_size(self, size: int) -> None:
        """Return when this many entries are on disk; raise if that can no longer happen."""
        if self.size >= size:
            return
        if self.failure is not None:
            raise self.failure
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((size, waiter))
        await waiter

    async def write_batches(self) -> None:
        """Runs as long as the coordinator; raises LocalError if the database refuses a write."""
        try:
            while True:
                await self._queued.wait()
                if self._config.batch_ms and len(self._queue) < self._config.batch_entries_max:
                    await self._clock.sleep_ms(self._config.batch_ms)
                await self.flush()
        except BaseException as error:  # boundary: every waiter must learn of the end, whatever caused it
            self._fail(error)
            raise

    async def flush(self) -> None:
        """Write what is queued now."""
        self._queued.clear()
        while self._queue:
            count = min(len(self._queue), self._config.batch_entries_max)
            batch = [self._queue.popleft() for _ in range(count)]
            keys = [compute_entry_keys(leaf) for leaf in batch]
            first, changes = self.size, self._take_changes(self.size + count)
            async with self._appending:
                await self._store.append(first, batch, keys, changes)
                self.tree.append_many([compute_leaf_hash(leaf) for leaf in batch])
            self._noted += [first + place for place, key in enumerate(keys) if key.kind == HeadNoted.__name__]
            self._wake()
            if self._noted or self.size - self.head_size >= self._config.head_entries_max:
                self._head_due.set()

    def _take_changes(self, size: int) -> list[FileChange]:
        """Those of the entries up to this size."""
        taken = []
        while self._changes and self._changes[0].size <= size:
            taken.append(self._changes.popleft())
        return taken

    async def check_is_only_writer(self) -> None:
        """LocalError if another process has written to the database: what this one answers is out of date."""
        async with self._appending:
            size = await self._store.size()
            if size != self.size:
                problem = f"the database has {size} entries where this process has {self.size}"
                self._fail(LocalError(f"{problem}: is another coordinator using it?"))
                assert self.failure is not None
                raise self.failure

    def _wake(self) -> None:
        # Waiters are in the order of the entries: one event loop queues all of them.
        while self._waiting and self._waiting[0][0] <= self.size:
            _, waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self.failure = error if isinstance(error, Exception) else ConnectionAbortedError("the coordinator is stopping")
        while self._waiting:
            _, waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(self.failure)

    # --- Heads ------------------------------------------------------------------------------------------------------

    async def sign_heads(self) -> None:
        """Runs as long as the coordinator: a head every head_ms, sooner if many entries wait for one."""
        while True:
            try:
                async with asyncio.timeout(self._config.head_ms / 1000):
                    await self._head_due.wait()
            except TimeoutError:
                pass
            self._head_due.clear()
            while self._noted:
                await self.sign_head()
            if self.size > self.head_size:
                await self.sign_head()

    async def sign_head(self) -> None:
        """Sign the next noted head, or one over everything on disk; store and publish it.

        One at a time, because each extends the mirror.
        """
        async with self._signing:
            size = self._noted.popleft() if self._noted else self.size
            if size <= self.head_size:
                return
            await self._extend_mirror(await self._store_head(size), size)

    async def open_mirror(self) -> int:
        """At start: sign a head over all entries on disk, bring the mirror there; how many partial files were wrong."""
        self.head_size = self.tree.mirrored
        read, size = self._store.read_blocking, self.size
        note = await self._store_head(size)
        await self._extend_mirror(note, size)
        return await asyncio.to_thread(repair_partials, self._mirror, self.tree, read, size)

    async def scrub(self) -> int:
        """Compare the database with the tree and the mirror with the database, slowly; how many files were wrong."""
        await self._store.check_integrity()
        pieces = scrub_mirror(self._mirror, self.tree, self._store.read_blocking, self.head_size)
        repaired = 0
        while (found := await asyncio.to_thread(next, pieces, None)) is not None:
            repaired += found
            await asyncio.sleep(SCRUB_PAUSE_S)
        return repaired

    async def _store_head(self, size: int) -> bytes:
        root = merkle.compute_root(size, self.tree.get_node)
        note = sign_tree_head(TreeHead(self._origin, size, root), self._key)
        await self._store.add_head(StoredHead(size, self._clock.now_ms(), note))
        return note

    async def _extend_mirror(self, note: bytes, size: int) -> None:
        read, old_size = self._store.read_blocking, self.head_size
        await asyncio.to_thread(extend_mirror, self._mirror, self.tree, read, note, old_size=old_size, new_size=size)
        self.tree.forget(size)
        self.head_size = size
        self._on_head(note, size)

    # --- Proofs -----------------------------------------------------------------------------------------------------

    def inclusion_proof(self, index: int, size: int) -> MerkleProof:
        assert index < size <= self.size
        return merkle.build_inclusion_proof(index, size, self.tree.get_node)

    def consistency_proof(self, old_size: int, new_size: int) -> MerkleProof:
        assert old_size <= new_size <= self.size
        return merkle.build_consistency_proof(old_size, new_size, self.tree.get_node)
