"""The log at work: entries go to disk in batches, heads are signed over what is on disk, the mirror follows.

Whoever waits for an entry is answered when it is on disk, and nobody is ever shown a head over anything that is not. If
a write fails, this process is ahead of the disk and must end; a new one starts from the disk.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.config import BooksConfig
from prime_coordinator.mirroring import extend_mirror, mend_mirror
from prime_coordinator.store import LogStore, StoredHead
from prime_protocol import merkle
from prime_protocol.catalogue import make_card
from prime_protocol.ids import NetworkId
from prime_protocol.merkle import Proof, Tree, leaf_hash
from prime_protocol.treehead import ORIGIN_PREFIX, TreeHead, sign_tree_head
from prime_runtime.clock import Clock

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
        tree: Tree,
        *,
        clock: Clock,
        config: BooksConfig,
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

    async def reached(self, size: int) -> None:
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
            await self._store.append(self.size, batch, [make_card(leaf) for leaf in batch])
            self.tree.append_many([leaf_hash(leaf) for leaf in batch])
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
            note = await self._keep_head(size)
            await asyncio.to_thread(
                extend_mirror, self._mirror, self.tree, self._store.read_now, note, old_size=old_size, new_size=size
            )
            self._show(note, size)

    async def mend(self) -> int:
        """At start: sign the head over all that is on disk and make the whole mirror match; how many files did not."""
        size = self.size
        note = await self._keep_head(size)
        mended = await asyncio.to_thread(mend_mirror, self._mirror, self.tree, self._store.read_now, note, size)
        self._show(note, size)
        return mended

    async def _keep_head(self, size: int) -> bytes:
        root = merkle.root_of(size, self.tree.get_node)
        note = sign_tree_head(TreeHead(self._origin, size, root), self._key)
        await self._store.add_head(StoredHead(size, self._clock.now_ms(), note))
        return note

    def _show(self, note: bytes, size: int) -> None:
        self.head_size = size
        self._on_head(note, size)

    # --- Proofs -----------------------------------------------------------------------------------------------------

    def inclusion_proof(self, index: int, size: int) -> Proof:
        assert index < size <= self.size
        return merkle.inclusion_proof(index, size, self.tree.get_node)

    def consistency_proof(self, old_size: int, new_size: int) -> Proof:
        assert old_size <= new_size <= self.size
        return merkle.consistency_proof(old_size, new_size, self.tree.get_node)
