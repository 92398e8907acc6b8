"""One process in one folder: a lock file that falls with its process, however that ends, and says who holds it.

Several that take turns over one file: the same without words, held for a moment.
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
    """Held by the one process that may write in the folder."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def write_url(self, url: str, **others: str) -> None:
        """Say where this process listens, for other commands on this machine."""
        self._note({"pid": os.getpid(), "url": url, **others})

    def write_pid(self) -> None:
        self._note({"pid": os.getpid()})

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    def _note(self, facts: LockInfo) -> None:
        text = json.dumps(facts) + "\n"
        self.clear()
        try:
            os.pwrite(self._fd, text.encode(), 0)
        except OSError as error:
            raise LocalError(f"cannot write {self._path}: {error.strerror}; make room") from None


@contextmanager
def hold_process_lock(path: Path, who: str, *, advice: str) -> Iterator[ProcessLock]:
    """Take the lock, or tell which process has it; `advice` is for a folder that is not there."""
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
    """One after the other, in whatever process; LocalError where another does not end its turn."""
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
            raise LocalError(f"another process has kept {path} for {tries * wait_ms // 1000} s: see which, and end it")
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    """At once, or a moment later: `is_held` in another process takes it for an instant."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOCK_TRY_S)
    return False


def read_lock_info(path: Path) -> LockInfo:
    """What the holder says of itself: `pid`, and `url` once it listens. Stale after a crash; see `is_held`."""
    try:
        facts = json.loads(path.read_text() or "{}")
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def is_held(path: Path) -> bool:
    """Whether a process holds it now."""
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
