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

Facts = dict[str, str | int]
TRIES, TRY_S = 10, 0.02


class Lock:
    """Held by the one process that may write in the folder."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def note_url(self, url: str, **others: str) -> None:
        """Say where this process listens, for other commands on this machine."""
        self._note({"pid": os.getpid(), "url": url, **others})

    def note_pid(self) -> None:
        self._note({"pid": os.getpid()})

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    def _note(self, facts: Facts) -> None:
        text = json.dumps(facts) + "\n"
        self.clear()
        try:
            os.pwrite(self._fd, text.encode(), 0)
        except OSError as error:
            raise LocalError(f"cannot write {self._path}: {error.strerror}; make room") from None


@contextmanager
def lock_file(path: Path, who: str, *, advice: str) -> Iterator[Lock]:
    """Take the lock, or tell which process has it; `advice` is for a folder that is not there."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LocalError(f"cannot open {path}: {error.strerror}; {advice}") from None
    if not _take(fd):
        os.close(fd)
        holder = read_facts(path).get("pid", "unknown")
        raise LocalError(f"another {who} runs in {path.parent}, process {holder}; stop it first") from None
    lock = Lock(fd, path)
    try:
        lock.note_pid()
        yield lock
    finally:
        lock.clear()
        os.close(fd)


@asynccontextmanager
async def hold_turn(path: Path, clock: Clock, *, wait_ms: int, tries: int) -> AsyncIterator[None]:
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


def _take(fd: int) -> bool:
    """At once, or a moment later: `is_held` in another process takes it for an instant."""
    for _ in range(TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(TRY_S)
    return False


def read_facts(path: Path) -> Facts:
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
