"""Keeps the mirror folder at the newest signed head, file by file, and mends it at start.

The database is the truth. A file of the mirror is written whole, and the head last, so a reader never sees a head whose
files are missing. How the folder is laid out and read is in mirror.py.

The log at work: entries go to disk in batches, heads are signed over what is on disk, the mirror follows.

Whoever waits for an entry is answered when it is on disk, and nobody is ever shown a head over anything that is not. If
a write fails, this process is ahead of the disk and must end; a new one starts from the disk.
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
from prime_runtime.log_files import write_atomic

ReadLeaves = Callable[[int, int], Sequence[bytes]]
"""Leaves from one index up to another."""


def extend_mirror(
    folder: Path, tree: MerkleTree, read: ReadLeaves, note: bytes, *, old_size: int, new_size: int
) -> None:
    """From the head of old_size to the signed head `note` of new_size."""
    assert tree.size >= new_size
    for path, data in _list_mirror_files(tree, read, old_size, new_size):
        write_atomic(folder / path, data)
    write_atomic(folder / CHECKPOINT_PATH, note)
    _drop_partials(folder, old_size, new_size)


def repair_mirror(folder: Path, tree: MerkleTree, read: ReadLeaves, note: bytes, size: int) -> int:
    """Compare every file with the log and write those that differ; how many did."""
    mended = 0
    for path, data in _list_mirror_files(tree, read, 0, size):
        mended += _write_if_different(folder / path, data)
    return mended + _write_if_different(folder / CHECKPOINT_PATH, note)


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
        pass  # missing or unreadable: written anew below
    write_atomic(path, data)
    return True


def _drop_partials(folder: Path, old_size: int, new_size: int) -> None:
    """Partial files of all but the newest full tile: who still reads by an older head finds the full one."""
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
    """Full, and not the first."""
    return part.width == TILE_HASHES and part.index > 0


OnHead = Callable[[bytes, int], None]
"""Told of each new signed head, and the number of entries under it."""


class LogWriter:
    """Appends what it is given, in order, and signs heads."""

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
        """Over the entries that are on disk."""
        self._clock = clock
        self._signing = asyncio.Lock()
        """The last head of a clean stop may be asked for while the loop still writes the one before."""
        self._config = config
        self._on_head = on_head
        self._queue: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.failure: Exception | None = None
        self._many = asyncio.Event()
        self.head_size = 0

    @property
    def size(self) -> int:
        """Entries on disk."""
        return self.tree.size

    def put(self, leaves: list[bytes]) -> None:
        """The next entries; `reached` tells when they are on disk."""
        self._queue.extend(leaves)
        self._filled.set()

    async def wait_for_size(self, size: int) -> None:
        """Return when so many entries are on disk; raise when that can no longer be."""
        if self.size >= size:
            return
        if self.failure is not None:
            raise self.failure
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((size, waiter))
        await waiter

    async def write_batches(self) -> None:
        """Runs as long as the coordinator; raises LocalError when the disk refuses."""
        try:
            while True:
                await self._filled.wait()
                if self._config.batch_ms and len(self._queue) < self._config.batch_entries_max:
                    await self._clock.sleep_ms(self._config.batch_ms)
                await self.flush()
        except BaseException as error:  # boundary: whoever waits must hear of the end, whatever caused it
            self._fail(error)
            raise

    async def flush(self) -> None:
        """Write what waits now."""
        self._filled.clear()
        while self._queue:
            count = min(len(self._queue), self._config.batch_entries_max)
            batch = [self._queue.popleft() for _ in range(count)]
            await self._store.append(self.size, batch, [compute_entry_keys(leaf) for leaf in batch])
            self.tree.append_many([compute_leaf_hash(leaf) for leaf in batch])
            self._wake()
            if self.size - self.head_size >= self._config.head_entries_max:
                self._many.set()

    def _wake(self) -> None:
        # Callers wait in the order of the entries, since all of them are put on the one loop.
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
        """Runs as long as the coordinator: a head now and then, sooner when many entries wait for one."""
        while True:
            try:
                async with asyncio.timeout(self._config.head_ms / 1000):
                    await self._many.wait()
            except TimeoutError:
                pass
            self._many.clear()
            if self.size > self.head_size:
                await self.sign_head()

    async def sign_head(self) -> None:
        """Sign the head over all that is on disk, keep it, publish it. One at a time: each extends the mirror."""
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
            self._show(note, size)

    async def repair_mirror(self) -> int:
        """At start: sign the head over all that is on disk and make the whole mirror match; how many files did not."""
        size = self.size
        note = await self._store_head(size)
        mended = await asyncio.to_thread(repair_mirror, self._mirror, self.tree, self._store.read_blocking, note, size)
        self._show(note, size)
        return mended

    async def _store_head(self, size: int) -> bytes:
        root = merkle.compute_root(size, self.tree.get_node)
        note = sign_tree_head(TreeHead(self._origin, size, root), self._key)
        await self._store.add_head(StoredHead(size, self._clock.now_ms(), note))
        return note

    def _show(self, note: bytes, size: int) -> None:
        self.head_size = size
        self._on_head(note, size)

    # --- Proofs -----------------------------------------------------------------------------------------------------

    def inclusion_proof(self, index: int, size: int) -> MerkleProof:
        assert index < size <= self.size
        return merkle.build_inclusion_proof(index, size, self.tree.get_node)

    def consistency_proof(self, old_size: int, new_size: int) -> MerkleProof:
        assert old_size <= new_size <= self.size
        return merkle.build_consistency_proof(old_size, new_size, self.tree.get_node)
