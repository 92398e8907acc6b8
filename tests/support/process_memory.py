"""What memory a process has of its own: file pages, which the system takes back when it needs them, are not in it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def read_anon_kb(pid: int | str = "self") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class PeakMemory:
    """The most memory of its own that the process had meanwhile, beyond what it began with."""

    def __init__(self) -> None:
        self._start_kb = self._peak_kb = read_anon_kb()

    @property
    def grown_bytes(self) -> int:
        return 1024 * (self._peak_kb - self._start_kb)

    def look(self) -> None:
        self._peak_kb = max(self._peak_kb, read_anon_kb())


@contextmanager
def watching_memory(every_s: float = 0.001) -> Iterator[PeakMemory]:
    peak, is_over = PeakMemory(), threading.Event()

    def watch() -> None:
        while not is_over.wait(every_s):
            peak.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()
        peak.look()
