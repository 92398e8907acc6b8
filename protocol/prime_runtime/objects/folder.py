"""The object store in a local folder.

A write goes to a temporary file that is synced and then renamed, so readers see the old object or the new one.
Temporary files live in `.tmp` under the folder; no key can name them. Disk calls run in threads.
"""

import asyncio
import errno
import os
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ParamSpec, Self, TypeVar

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_runtime.objects.store import (
    ListedObject,
    ObjectMissing,
    ObjectStore,
    StoredObject,
    StreamVerifier,
    check_expiry,
    check_key,
    check_size,
)

P = ParamSpec("P")
T = TypeVar("T")

CHUNK_BYTES = 2**20
TEMPORARY = ".tmp"
LEFTOVER_S = 24 * 3600
"""A crash left a temporary file this old behind: no upload lasts a day."""

ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or point the store at another folder",
    errno.EDQUOT: "your disk quota is used up: free some space, or point the store at another folder",
    errno.EFBIG: "the file is larger than this file system or a ulimit allows",
    errno.EROFS: "it is on a read-only file system: mount it for writing, or use another folder",
    errno.EACCES: "permission denied: give this user the folder, or use another one",
    errno.EPERM: "not permitted: give this user the folder, or use another one",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.ENOENT: "the folder is gone or cannot be made there",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "there is a folder of that name",
}


class FolderStore(ObjectStore):
    """Objects as files under one folder; the key is the relative path."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def open(cls, root: Path) -> Self:
        """Create the folder if needed, check that it is writable, remove what crashes left behind."""
        with _explained("use", root):
            (root / TEMPORARY).mkdir(parents=True, exist_ok=True)
            root = root.resolve()
            for leftover in (root / TEMPORARY).iterdir():
                if leftover.stat().st_mtime < time.time() - LEFTOVER_S:
                    leftover.unlink(missing_ok=True)
            probe = root / TEMPORARY / secrets.token_hex(16)
            probe.touch(exist_ok=False)
            probe.unlink()
        return cls(root)

    def local_path(self, key: str) -> Path | None:
        return self._root / check_key(key)

    async def put(
        self,
        key: str,
        data: bytes | AsyncIterable[bytes],
        *,
        bytes_max: int,
        size_bytes: int | None = None,
        digest: Digest | None = None,
    ) -> StoredObject:
        verifier = StreamVerifier(key, bytes_max=bytes_max, size_bytes=size_bytes, digest=digest)
        path, temporary = self._root / key, self._root / TEMPORARY / secrets.token_hex(16)
        with _explained("write", path):
            file = await _in_thread(_create, temporary)
        try:
            async for chunk in _gathered(data):
                verifier.feed(chunk)
                with _explained("write", path):
                    await _in_thread(_write, file, chunk)
            stored = verifier.finish()
            with _explained("write", path):
                await _in_thread(_commit, file, temporary, path)
        finally:
            # After a failure or a cancelled task this cleans up; after the commit the name is gone already.
            file.close()
            temporary.unlink(missing_ok=True)
        return stored

    async def stream(self, key: str, *, bytes_max: int) -> AsyncIterator[bytes]:
        path, passed = self._root / check_key(key), 0
        with _explained("read", path):
            file = await _in_thread(path.open, "rb")
        try:
            check_size(key, os.fstat(file.fileno()).st_size, bytes_max)
            while True:
                with _explained("read", path):
                    chunk = await _in_thread(file.read, CHUNK_BYTES)
                if not chunk:
                    return
                passed += len(chunk)
                check_size(key, passed, bytes_max)
                yield chunk
        finally:
            file.close()

    async def size(self, key: str) -> int:
        path = self._root / check_key(key)
        if not await self.exists(key):
            raise ObjectMissing(f"there is no file {path}")
        with _explained("read", path):
            return (await _in_thread(path.stat)).st_size

    async def exists(self, key: str) -> bool:
        return await _in_thread((self._root / check_key(key)).is_file)

    async def delete(self, key: str) -> None:
        path = self._root / check_key(key)
        if await self.exists(key):
            with _explained("delete", path):
                await _in_thread(path.unlink, missing_ok=True)

    async def list(self, prefix: str = "") -> AsyncIterator[ListedObject]:
        folder = self._root / check_key(prefix) if prefix else self._root
        walk = _walk(folder)
        while batch := await _in_thread(_take, walk, 1000):
            for path, size_bytes in batch:
                yield ListedObject(path.relative_to(self._root).as_posix(), size_bytes)

    async def presign_put(self, key: str, *, digest: Digest, expires_s: int) -> str | None:
        return await self.presign_get(key, expires_s=expires_s)

    async def presign_get(self, key: str, *, expires_s: int) -> str | None:
        check_key(key)
        check_expiry(expires_s)
        return None


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a disk call in a thread. A cancelled caller still waits for it: the call must not lose its file."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    finally:
        await asyncio.wait([call])


async def _gathered(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Join small chunks, so that each is worth a trip to a thread: network reads are a few KiB."""
    if isinstance(data, bytes):
        yield data
        return
    waiting = bytearray()
    async for chunk in data:
        waiting += chunk
        if len(waiting) >= CHUNK_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)


def _create(temporary: Path) -> BinaryIO:
    return temporary.open("xb", buffering=0)


def _write(file: BinaryIO, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[file.write(view) :]


def _commit(file: BinaryIO, temporary: Path, path: Path) -> None:
    os.fsync(file.fileno())
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(path)
    # The rename itself is on disk only when the folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _walk(folder: Path) -> Iterator[tuple[Path, int]]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            try:
                size_bytes = path.stat().st_size
            except FileNotFoundError:
                continue  # deleted since the folder was read
            if not name.startswith("."):
                yield path, size_bytes


def _take(walk: Iterator[tuple[Path, int]], count: int) -> list[tuple[Path, int]]:
    return [item for _, item in zip(range(count), walk, strict=False)]


@contextmanager
def _explained(verb: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a LocalError that says what to do."""
    try:
        yield
    except OSError as error:
        if verb == "read" and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            raise ObjectMissing(f"there is no file {path}") from None
        advice = ADVICE.get(error.errno or 0, error.strerror or "unknown error")
        raise LocalError(f"cannot {verb} {path}: {advice}") from error
