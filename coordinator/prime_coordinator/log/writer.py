"""Writes the log: entries go to the database in batches, heads are signed over what is on disk, the mirror follows.

Two rules hold throughout. A caller is answered only after its entries are on disk, and no signed head covers an entry
that is not. If a write fails, this process is ahead of the disk and must end; the next one starts from the disk.

The database is the authority. A file of the mirror is replaced atomically and the head is written last, so a reader
never sees a head whose files are missing. Its layout is in prime_runtime.log_files.
"""

import asyncio
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.config import LogWriterConfig
from prime_coordinator.log.store import LogStore, StoredHead
from prime_protocol.constants import TILE_HASHES
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.log import merkle
from prime_protocol.log.merkle import MerkleProof, MerkleTree, compute_leaf_hash
from prime_protocol.log.tiles import (
    CHECKPOINT_PATH,
    EntryBundle,
    Tile,
    encode_bundle,
    encode_tile,
    list_new_bundles,
    list_new_tiles,
)
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, sign_tree_head
from prime_protocol.wire.ids import NetworkId
from prime_runtime.clock import Clock
from prime_runtime.files import write_atomic

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
        tree: MerkleTree,
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
        self._signing = asyncio.Lock()
        """A clean stop may ask for the last head while the loop still writes the previous one."""
        self._config = config
        self._on_head = on_head
        self._queue: deque[bytes] = deque()
        self._queued = asyncio.Event()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.failure: Exception | None = None
        self._head_due = asyncio.Event()
        self.head_size = 0

    @property
    def size(self) -> int:
        """Entries on disk."""
        return self.tree.size

    def enqueue(self, leaves: list[bytes]) -> None:
        """Queue the next entries; `wait_for_size` returns when they are on disk."""
        self._queue.extend(leaves)
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
            await self._store.append(self.size, batch, [compute_entry_keys(leaf) for leaf in batch])
            self.tree.append_many([compute_leaf_hash(leaf) for leaf in batch])
            self._wake()
            if self.size - self.head_size >= self._config.head_entries_max:
                self._head_due.set()

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
            if self.size > self.head_size:
                await self.sign_head()

    async def sign_head(self) -> None:
        """Sign a head over everything on disk, store it, publish it. One at a time, because each extends the mirror."""
        async with self._signing:
            size, old_size = self.size, self.head_size
            if size == old_size:
                return
            note = await self._store_head(size)
            await asyncio.to_thread(
                extend_mirror,
                self._mirror,
                self.tree,
                self._store.read_blocking,
                note,
                old_size=old_size,
                new_size=size,
            )
            self._publish(note, size)

    async def repair_mirror(self) -> int:
        """At start: sign a head over everything on disk and repair the mirror; returns how many files changed."""
        size = self.size
        note = await self._store_head(size)
        read = self._store.read_blocking
        repaired = await asyncio.to_thread(repair_mirror, self._mirror, self.tree, read, note, size)
        self._publish(note, size)
        return repaired

    async def _store_head(self, size: int) -> bytes:
        root = merkle.compute_root(size, self.tree.get_node)
        note = sign_tree_head(TreeHead(self._origin, size, root), self._key)
        await self._store.add_head(StoredHead(size, self._clock.now_ms(), note))
        return note

    def _publish(self, note: bytes, size: int) -> None:
        self.head_size = size
        self._on_head(note, size)

    # --- Proofs -----------------------------------------------------------------------------------------------------

    def inclusion_proof(self, index: int, size: int) -> MerkleProof:
        assert index < size <= self.size
        return merkle.build_inclusion_proof(index, size, self.tree.get_node)

    def consistency_proof(self, old_size: int, new_size: int) -> MerkleProof:
        assert old_size <= new_size <= self.size
        return merkle.build_consistency_proof(old_size, new_size, self.tree.get_node)


# --- The mirror -------------------------------------------------------------------------------------------------------

ReadLeaves = Callable[[int, int], Sequence[bytes]]
"""Leaves from one index up to another."""
ENTRIES_PER_READ = 4_096


def build_tree(read: ReadLeaves, size: int) -> MerkleTree:
    """The Merkle tree over the first entries of a log, read in chunks."""
    tree = MerkleTree()
    for start in range(0, size, ENTRIES_PER_READ):
        tree.append_many(compute_leaf_hash(leaf) for leaf in read(start, min(size, start + ENTRIES_PER_READ)))
    return tree


def extend_mirror(
    folder: Path, tree: MerkleTree, read: ReadLeaves, note: bytes, *, old_size: int, new_size: int
) -> None:
    """Extend the files from old_size to new_size; `note` is the signed head of new_size."""
    assert tree.size >= new_size
    for path, data in _list_mirror_files(tree, read, old_size, new_size):
        write_atomic(folder / path, data)
    write_atomic(folder / CHECKPOINT_PATH, note)
    _drop_partials(folder, old_size, new_size)


def repair_mirror(folder: Path, tree: MerkleTree, read: ReadLeaves, note: bytes, size: int) -> int:
    """Compare every file with the log and rewrite those that differ; returns how many."""
    repaired = 0
    for path, data in _list_mirror_files(tree, read, 0, size):
        repaired += _write_if_different(folder / path, data)
    return repaired + _write_if_different(folder / CHECKPOINT_PATH, note)


def _list_mirror_files(tree: MerkleTree, read: ReadLeaves, old_size: int, new_size: int) -> Iterator[tuple[str, bytes]]:
    for bundle in list_new_bundles(old_size, new_size):
        start = bundle.index * TILE_HASHES
        yield bundle.path, encode_bundle(read(start, start + bundle.width))
    for tile in list_new_tiles(old_size, new_size):
        yield tile.path, encode_tile(tile, tree.get_node)


def _write_if_different(path: Path, data: bytes) -> bool:
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return False
    except OSError:
        pass  # missing or unreadable: written below
    write_atomic(path, data)
    return True


def _drop_partials(folder: Path, old_size: int, new_size: int) -> None:
    """Delete partial files that a full one replaces, except the newest. Readers with an older head use the full one."""
    full: list[Tile | EntryBundle] = [
        *(EntryBundle(part.index - 1, TILE_HASHES) for part in list_new_bundles(old_size, new_size) if _is_later(part)),
        *(
            Tile(part.level, part.index - 1, TILE_HASHES)
            for part in list_new_tiles(old_size, new_size)
            if _is_later(part)
        ),
    ]
    for part in full:
        shutil.rmtree(folder / f"{part.path}.p", ignore_errors=True)


def _is_later(part: Tile | EntryBundle) -> bool:
    """Whether this file is full and not the first."""
    return part.width == TILE_HASHES and part.index > 0
