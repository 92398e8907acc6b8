"""Bytes of a day of UTC in a small file, so that a restart does not begin the owner's cap anew.

It is written now and then; a crash loses what went since.
"""

import json
import logging
from pathlib import Path

from prime_node.home import write_whole
from prime_node.machine_use import DAY_MS
from prime_protocol.errors import LocalError
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

KEEP_MS = 30_000
"""Between two times that it is written."""


class DayFile:
    """One count's."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._kept_ms = clock.monotonic_ms()

    def load(self) -> int:
        """What went today; 0 where the file is of another day, damaged or not there."""
        try:
            plain = json.loads(self._path.read_text())
            day, count = plain["day"], plain["bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        is_sound = type(count) is int and count >= 0
        return count if is_sound and day == self._clock.now_ms() // DAY_MS else 0

    def keep(self, count: int) -> None:
        """Every few seconds; mostly it does nothing."""
        if self._clock.monotonic_ms() - self._kept_ms >= KEEP_MS:
            self.write(count)

    def write(self, count: int) -> None:
        self._kept_ms = self._clock.monotonic_ms()
        plain = {"day": self._clock.now_ms() // DAY_MS, "bytes": count}
        try:
            write_whole(self._path, json.dumps(plain).encode())
        except LocalError as error:
            log.warning("the bytes of today are not kept: %s", error)
