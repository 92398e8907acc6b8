"""Locks between processes, by flock on a file: the kernel releases them however the process ends.

A ProcessLock keeps a second process out of a folder, and its file says which process holds it and where that listens.
`hold_file_lock` protects a short critical section.
"""

import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from prime_protocol.errors import LocalError
from prime_runtime.clock import Clock

LockInfo = dict[str, str | int]
LOCK_TRIES, LOCK_TRY_S = 10, 0.02


class ProcessLock:
    """Held by the only process that may write in the folder."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def write_url(self, url: str, **others: str) -> None:
        """Record where this process listens, for other commands on this machine."""
        self._write({"pid": os.getpid(), "url": url, **others})

    def write_pid(self) -> None:
        self._write({"pid": os.getpid()})

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    def _write(self, info: LockInfo) -> None:
        text = json.dumps(info) + "\n"
        self.clear()
        try:
            os.pwrite(self._fd, text.encode(), 0)
        except OSError as error:
            raise LocalError(f"cannot write {self._path}: {error.strerror}; make room") from None


@contextmanager
def hold_process_lock(path: Path, who: str, *, advice: str) -> Iterator[ProcessLock]:
    """Take the lock, or LocalError names the process that holds it. `advice` is for a missing folder."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LocalError(f"cannot open {path}: {error.strerror}; {advice}") from None
    if not _try_lock(fd):
        os.close(fd)
        holder = read_lock_info(path).get("pid", "unknown")
        raise LocalError(f"another {who} runs in {path.parent}, process {holder}; stop it first") from None
    lock = ProcessLock(fd, path)
    try:
        lock.write_pid()
        yield lock
    finally:
        lock.clear()
        os.close(fd)


@asynccontextmanager
async def hold_file_lock(path: Path, clock: Clock, *, wait_ms: int, tries: int) -> AsyncIterator[None]:
    """Wait for the lock, hold it for the block. LocalError: another process did not release it in time."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LocalError(f"cannot open {path}: {error.strerror}") from None
    try:
        for _ in range(tries):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await clock.sleep_ms(wait_ms)
        else:
            raise LocalError(f"another process has held {path} for {tries * wait_ms // 1000} s; find it and stop it")
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    """Retry for a moment, because `is_held` in another process holds the lock for an instant."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOCK_TRY_S)
    return False


def read_lock_info(path: Path) -> LockInfo:
    """What the holder wrote: `pid`, and `url` once it listens. Stale after a crash; see `is_held`."""
    try:
        info = json.loads(path.read_text() or "{}")
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def is_held(path: Path) -> bool:
    """A process holds the lock now."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
