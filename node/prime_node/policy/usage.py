"""Measures what the owner's limits are about: processor use of other programs, and bytes transferred per day.

The bytes of the current UTC day are kept in a small file, so that a restart does not reset the owner's daily limit.
It is written every half minute; a crash loses the count since then.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from prime_protocol.errors import LocalError
from prime_runtime.clock import Clock
from prime_runtime.files import write_atomic

log = logging.getLogger(__name__)


DAY_MS = 24 * 3_600_000
PROC = Path("/proc")
IDLE = (3, 4)
"""Columns of idle and iowait in the first line of /proc/stat."""
PPID, OWN_TIMES, CHILD_TIMES = 1, (11, 12), (13, 14)
"""Columns of /proc/PID/stat, counted after the name in brackets."""


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Processor time since boot, in the kernel's ticks."""

    total: int
    busy: int
    own: int
    """Of a process and its descendants."""


class CpuMeter:
    """What other programs used since the last measurement, as percent of all cores."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc
        self._last: CpuTicks | None = None

    def measure(self) -> float | None:
        """None at the first call, and where /proc cannot be read."""
        ticks = read_ticks(self._pid, self._proc)
        last, self._last = self._last, ticks
        if ticks is None or last is None or ticks.total <= last.total:
            return None
        others = (ticks.busy - last.busy) - (ticks.own - last.own)
        return max(0.0, min(100.0, 100 * others / (ticks.total - last.total)))


def read_ticks(pid: int, proc: Path = PROC) -> CpuTicks | None:
    try:
        words = (proc / "stat").read_text().split("\n", 1)[0].split()
        # Guest time is part of user time, so only the first eight columns add up.
        columns = [int(word) for word in words[1:9]]
        idle = sum(columns[place] for place in IDLE)
        own = sum(_read_process_tree(pid, proc).values())
    except (OSError, ValueError, IndexError):
        return None
    return CpuTicks(sum(columns), sum(columns) - idle, own)


def list_process_tree(pid: int, proc: Path = PROC) -> frozenset[int]:
    """A process and its descendants."""
    return frozenset(_read_process_tree(pid, proc))


def _read_process_tree(pid: int, proc: Path) -> dict[int, int]:
    """Ticks by process. Those of ended children count as their parent's."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(words[PPID])
            ticks[int(folder.name)] = sum(int(words[place]) for place in (*OWN_TIMES, *CHILD_TIMES))
        except (OSError, ValueError, IndexError):
            continue  # the process has just ended
    tree = {pid}
    while found := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= found
    return {each: ticks[each] for each in tree if each in ticks}


class DailyCounter:
    """How much a rising count has risen since midnight UTC. The count starts at 0; `earlier` is what an earlier process
    counted on the same day."""

    def __init__(self, earlier: int = 0, now_ms: int = -DAY_MS) -> None:
        self._day = now_ms // DAY_MS
        self._before = -earlier
        self._last = 0

    def measure(self, count: int, now_ms: int) -> int:
        if now_ms // DAY_MS != self._day:
            self._day, self._before = now_ms // DAY_MS, self._last
        self._last = count
        return count - self._before


SAVE_INTERVAL_MS = 30_000
"""Between two writes."""


class DailyCounterFile:
    """A daily count on disk."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._kept_ms = clock.monotonic_ms()

    def load(self) -> int:
        """Today's count; 0 where the file is missing, damaged, or of another day."""
        try:
            plain = json.loads(self._path.read_text())
            day, count = plain["day"], plain["bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        is_sound = type(count) is int and count >= 0
        return count if is_sound and day == self._clock.now_ms() // DAY_MS else 0

    def save_if_due(self, count: int) -> None:
        """Call it every few seconds; most calls do nothing."""
        if self._clock.monotonic_ms() - self._kept_ms >= SAVE_INTERVAL_MS:
            self.save(count)

    def save(self, count: int) -> None:
        self._kept_ms = self._clock.monotonic_ms()
        plain = {"day": self._clock.now_ms() // DAY_MS, "bytes": count}
        try:
            write_atomic(self._path, json.dumps(plain).encode())
        except LocalError as error:
            log.warning("cannot save today's transferred bytes: %s", error)
