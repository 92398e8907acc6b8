"""The files of one manifest on disk, which of its shards are held, and who waits for the others.

The files have their full size from the start, so that a full disk shows before the first byte. The fetcher writes
shards into them and marks those whose digest is right.
"""

import asyncio
import mmap
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import Manifest, SignedManifest, verify_shard
from prime_protocol.weights.transfer import encode_bitmap
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.shardcast.checkpoint_files import (
    MappedCheckpoint,
    link_or_copy,
    make_mapped_file,
    open_no_follow,
    preallocate_file,
)


def choose_advertised(held: int, sent: int, *, is_origin: bool) -> int:
    """The bitmap of shards to advertise to children.

    Every byte passes the origin's uplink, so the origin sends no shard twice before each has been sent once. Children
    request only advertised shards: the origin leaves out those it has sent, until all have been sent. The nodes that
    received them serve them meanwhile.
    """
    unsent = held & ~sent
    return unsent if is_origin and unsent else held


HELD_NAME = ".held"
PUBLISHED_NAME = ".published"
"""File names of a manifest cannot start with a dot, so these do not collide."""


class ShardSet:
    """The shards of one manifest. The fetcher sets `coming`."""

    def __init__(self, signed: SignedManifest, folder: Path) -> None:
        self.signed = signed
        self.folder = folder
        self.held = 0
        self.coming = 0
        self.verified = 0
        """Shards whose bytes this process has verified. Others may have been damaged on disk."""
        self.sent = 0
        """Shards that were sent from here."""
        self.depth = 0
        """Hops from the origin; 0 where the manifest was published."""
        self.parents: tuple[NodeId, ...] = ()
        """The nodes that sent most of it, most first; empty where it was published."""
        self.version = 1
        """Increases with every change that children should know."""
        self._maps: dict[int, mmap.mmap] = {}
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest

    @property
    def digest(self) -> Digest:
        return self.signed.digest

    @property
    def shards(self) -> int:
        return len(self.manifest.shards)

    @property
    def is_complete(self) -> bool:
        return self.held == (1 << self.shards) - 1

    def preallocate(self) -> None:
        """Create the files at full size. LocalError: there is not enough space."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.manifest.files:
            path = self.folder / file.name
            if path.exists() and path.stat().st_size == file.size:
                continue
            try:
                preallocate_file(path, file.size)
            except LocalError:
                shutil.rmtree(self.folder, ignore_errors=True)
                raise

    def load(self) -> None:
        """Read the bitmap of an earlier process."""
        try:
            raw = (self.folder / HELD_NAME).read_bytes()
        except OSError:
            raw = b""
        self.held = int.from_bytes(raw, "little") if len(raw) == (self.shards + 7) // 8 else 0
        self.held &= (1 << self.shards) - 1
        self.depth = 0 if (self.folder / PUBLISHED_NAME).exists() else 1
        sizes = [(self.folder / file.name, file.size) for file in self.manifest.files]
        if not all(path.is_file() and path.stat().st_size == size for path, size in sizes):
            self.held = 0

    def list_held(self) -> list[int]:
        return [index for index in range(self.shards) if self.held >> index & 1]

    async def recheck(self, pool: Executor) -> int:
        """Verify every held shard; returns the number of damaged ones."""
        loop, before = asyncio.get_running_loop(), self.list_held()
        right = await asyncio.gather(*(loop.run_in_executor(pool, self.is_intact, index) for index in before))
        found = dict(zip(before, right, strict=True))
        self.verified |= sum(1 << index for index, is_right in found.items() if is_right)
        lost = [index for index, is_right in found.items() if not is_right]
        self.mark_lost(lost)
        return len(lost)

    async def verify_once(self, index: int) -> bool:
        """Verify a held shard before it is first sent by this process. A damaged one is no longer held."""
        if not self.verified >> index & 1:
            if not await asyncio.to_thread(self.is_intact, index):
                self.mark_lost([index])
                return False
            self.verified |= 1 << index
        return True

    def mark_lost(self, shards: Collection[int]) -> None:
        """These shards are damaged."""
        if shards:
            for index in shards:
                self.held &= ~(1 << index)
                self.verified &= ~(1 << index)
            self._maps.clear()
            self._save()
            self._tell()

    def is_intact(self, index: int) -> bool:
        """The bytes on disk have the digest of the shard. Callable from any thread."""
        try:
            verify_shard(self.manifest, index, self.view(index))
        except RemoteError:
            return False
        return True

    def view(self, index: int) -> memoryview:
        """The bytes of a shard in its file."""
        shard = self.manifest.shards[index]
        return memoryview(self._map(shard.file))[shard.offset : shard.offset + shard.length]

    def view_file(self, file: int) -> memoryview:
        return memoryview(self._map(file))

    def map_files(self) -> MappedCheckpoint:
        """The files of a complete keyframe."""
        return MappedCheckpoint(
            tuple(make_mapped_file(path, self._map(file)) for file, path in enumerate(self.files()))
        )

    def locate(self, index: int) -> tuple[Path, int, int]:
        """File, offset and length."""
        shard = self.manifest.shards[index]
        return self.folder / self.manifest.files[shard.file].name, shard.offset, shard.length

    def mark_held(self, index: int) -> None:
        """The shard was verified and written."""
        self.held |= 1 << index
        self.verified |= 1 << index
        self.coming &= ~(1 << index)
        self._save()
        self._tell()

    def link_files(self, files: Mapping[str, Path]) -> None:
        """All files exist already under these paths: link or copy them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.manifest.files:
            link_or_copy(files[file.name], self.folder / file.name)
        (self.folder / PUBLISHED_NAME).touch()
        self.held = self.verified = (1 << self.shards) - 1
        self._save()

    def set_coming(self, coming: int) -> None:
        coming &= ~self.held
        if coming != self.coming:
            self.coming = coming
            self._tell()

    async def wait(self) -> None:
        """Wait for a change."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def mark_sent(self, index: int) -> None:
        if not self.sent >> index & 1:
            self.sent |= 1 << index
            self._tell()

    def bitmaps(self) -> tuple[bytes, bytes]:
        """The bitmaps for children: shards held, shards coming."""
        held = choose_advertised(self.held, self.sent, is_origin=self.depth == 0)
        return encode_bitmap(held, self.shards), encode_bitmap(self.coming, self.shards)

    def close(self) -> None:
        """Wake all waiters. A file is unmapped when its last view is gone."""
        self._maps.clear()
        self._tell()

    def files(self) -> Iterator[Path]:
        return (self.folder / file.name for file in self.manifest.files)

    def _map(self, file: int) -> mmap.mmap:
        if file not in self._maps:
            path = self.folder / self.manifest.files[file].name
            with open_no_follow(path, "rb") as opened:
                self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[file]

    def _save(self) -> None:
        """Write in place: `recheck` detects a bitmap torn by a power failure, like any other damage."""
        fd = os.open(self.folder / HELD_NAME, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            os.pwrite(fd, encode_bitmap(self.held, self.shards), 0)
        finally:
            os.close(fd)

    def _tell(self) -> None:
        self.version += 1
        self.wake()

    def wake(self) -> None:
        """Wake all waiters."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
