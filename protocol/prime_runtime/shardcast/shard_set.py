"""What an origin tells of what it holds. Pure.

The origin's line is the one that every byte must pass, so it should send nothing twice while something has not been
sent once. Children ask only for what they are told is held: shards that were sent already are left out until all were.
Who has got them serves them meanwhile.

The files of one manifest on disk, which of its shards are there, and who waits for the others.

The files have their full size from the start, and on a disk the blocks to back it, so that a full one shows before the
first byte. Whoever fetches writes shards straight into them, and marks those whose digest was right.
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
    """Bits of the shards to name to children, of those held and those sent before."""
    unsent = held & ~sent
    return unsent if is_origin and unsent else held


HELD_NAME = ".held"
PUBLISHED_NAME = ".published"
"""File names of a manifest cannot start with a dot."""


class ShardSet:
    """One manifest's shards. `coming` is told by whoever fetches."""

    def __init__(self, signed: SignedManifest, folder: Path) -> None:
        self.signed = signed
        self.folder = folder
        self.held = 0
        self.coming = 0
        self.verified = 0
        """Shards whose bytes this process has compared with their digests. Others may have rotted on the disk."""
        self.sent = 0
        """Shards that were sent to somebody from here."""
        self.depth = 0
        """Hops from the origin; 0 where it was published, at least 1 elsewhere."""
        self.parents: tuple[NodeId, ...] = ()
        """Who gave most of it, most first; nobody where it was published."""
        self.version = 1
        """Grows with every change that children should hear of."""
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
        """Files of full size; LocalError where there is no room."""
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
        """What an earlier process noted."""
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
        """Compare every shard marked as held with its digest; the number of those that were lost."""
        loop, before = asyncio.get_running_loop(), self.list_held()
        right = await asyncio.gather(*(loop.run_in_executor(pool, self.is_intact, index) for index in before))
        found = dict(zip(before, right, strict=True))
        self.verified |= sum(1 << index for index, is_right in found.items() if is_right)
        lost = [index for index, is_right in found.items() if not is_right]
        self.mark_lost(lost)
        return len(lost)

    async def verify_once(self, index: int) -> bool:
        """A held shard may be sent: it is looked at once in this process's life. A damaged one is held no longer."""
        if not self.verified >> index & 1:
            if not await asyncio.to_thread(self.is_intact, index):
                self.mark_lost([index])
                return False
            self.verified |= 1 << index
        return True

    def mark_lost(self, shards: Collection[int]) -> None:
        """They are not what they should be."""
        if shards:
            for index in shards:
                self.held &= ~(1 << index)
                self.verified &= ~(1 << index)
            self._maps.clear()
            self._save()
            self._tell()

    def is_intact(self, index: int) -> bool:
        """The bytes on disk have the shard's digest. From any thread."""
        try:
            verify_shard(self.manifest, index, self.view(index))
        except RemoteError:
            return False
        return True

    def view(self, index: int) -> memoryview:
        """The shard's place in its file, to be read."""
        shard = self.manifest.shards[index]
        return memoryview(self._map(shard.file))[shard.offset : shard.offset + shard.length]

    def view_file(self, file: int) -> memoryview:
        return memoryview(self._map(file))

    def map_files(self) -> MappedCheckpoint:
        """Of a keyframe that is complete."""
        return MappedCheckpoint(
            tuple(make_mapped_file(path, self._map(file)) for file, path in enumerate(self.files()))
        )

    def locate(self, index: int) -> tuple[Path, int, int]:
        """File, offset and length."""
        shard = self.manifest.shards[index]
        return self.folder / self.manifest.files[shard.file].name, shard.offset, shard.length

    def mark_held(self, index: int) -> None:
        """The shard was verified and is in its place."""
        self.held |= 1 << index
        self.verified |= 1 << index
        self.coming &= ~(1 << index)
        self._save()
        self._tell()

    def link_files(self, files: Mapping[str, Path]) -> None:
        """Every file is here already, under these paths: link them, or copy where a link cannot be."""
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
        """Until something changed."""
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
        """What children are told: shards held, shards coming."""
        held = choose_advertised(self.held, self.sent, is_origin=self.depth == 0)
        return encode_bitmap(held, self.shards), encode_bitmap(self.coming, self.shards)

    def close(self) -> None:
        """Nobody waits for it any more. Maps go when the last view of them does."""
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
        """In place: a bitmap torn by a power cut is caught by `recheck`, like any other damage."""
        fd = os.open(self.folder / HELD_NAME, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            os.pwrite(fd, encode_bitmap(self.held, self.shards), 0)
        finally:
            os.close(fd)

    def _tell(self) -> None:
        self.version += 1
        self.wake()

    def wake(self) -> None:
        """Let everybody look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
