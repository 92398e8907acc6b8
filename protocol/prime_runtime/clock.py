"""The one place where the programs read a clock or wait. Everything else is handed one of these."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

STEP_MS_MAX = 2_000
"""A wall clock that moves by less against the machine's uptime is being set right, and is followed at once."""
JUMP_ACCEPTED_AFTER_MS = 60_000
"""One that jumps further is followed when it has stood there so long. Log time never goes back: a coordinator that
followed a jump of ten minutes ahead at once would refuse everybody's envelopes for ten minutes after it was undone."""


class Clock(Protocol):
    """What the rim needs of time; tests bring their own."""

    def now_ms(self) -> int:
        """Wall clock, UTC, since 1970. For what other machines compare; it may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Never jumps. For deadlines and rates on this machine."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        ...


@dataclass(slots=True)
class SteadyClock:
    """A wall clock that is not led astray by a short jump. Pure: both readings come in."""

    ahead_ms: int
    """What the believed wall clock is ahead of the uptime."""
    jumped_at_ms: int | None = None
    """Uptime at which the wall clock was first seen elsewhere; None while it is believed."""

    def read(self, wall_ms: int, uptime_ms: int) -> int:
        found_ms = wall_ms - uptime_ms
        if abs(found_ms - self.ahead_ms) > STEP_MS_MAX:
            if self.jumped_at_ms is None:
                self.jumped_at_ms = uptime_ms
            if uptime_ms - self.jumped_at_ms < JUMP_ACCEPTED_AFTER_MS:
                return uptime_ms + self.ahead_ms
        self.ahead_ms, self.jumped_at_ms = found_ms, None
        return wall_ms


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._steady = SteadyClock(read_wall_ms() - read_uptime_ms())

    def now_ms(self) -> int:
        steady, was_jumping = self._steady, self._steady.jumped_at_ms
        wall_ms = read_wall_ms()
        now_ms = steady.read(wall_ms, read_uptime_ms())
        if was_jumping is None and steady.jumped_at_ms is not None:
            log.warning(
                "the machine's clock jumped by %d s; it is believed if it stays there for %d s, else set it by NTP",
                (wall_ms - now_ms) // 1000,
                JUMP_ACCEPTED_AFTER_MS // 1000,
            )
        return now_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


def read_wall_ms() -> int:
    return time.time_ns() // 1_000_000


def read_uptime_ms() -> int:
    """Time since the machine started, sleep included: a laptop that wakes has not jumped."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000
