"""The only place where the programs read a clock or sleep. All other code receives a Clock."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

STEP_MS_MAX = 2_000
"""A smaller change of the wall clock against the uptime is a correction (NTP) and is accepted at once."""
JUMP_ACCEPTED_AFTER_MS = 60_000
"""A larger jump is accepted only after it has lasted this long. Log time never goes back: a coordinator that accepted
a jump of ten minutes ahead at once would refuse all envelopes for ten minutes after the jump was undone."""


class Clock(Protocol):
    """Time and sleep, as an argument: tests pass a clock of their own."""

    def now_ms(self) -> int:
        """Wall clock, UTC, since 1970. For times that other machines compare; it may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Never jumps. For deadlines and rates on this machine."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        ...


@dataclass(slots=True)
class SteadyClock:
    """A wall clock that ignores short jumps. Pure: the caller passes both readings."""

    ahead_ms: int
    """How far the accepted wall clock is ahead of the uptime."""
    jumped_at_ms: int | None = None
    """Uptime at which a jump was first seen; None while the wall clock is accepted."""

    def read(self, wall_ms: int, uptime_ms: int) -> int:
        ahead_ms = wall_ms - uptime_ms
        if abs(ahead_ms - self.ahead_ms) > STEP_MS_MAX:
            if self.jumped_at_ms is None:
                self.jumped_at_ms = uptime_ms
            if uptime_ms - self.jumped_at_ms < JUMP_ACCEPTED_AFTER_MS:
                return uptime_ms + self.ahead_ms
        self.ahead_ms, self.jumped_at_ms = ahead_ms, None
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
                "the system clock jumped by %d s; the jump is accepted if it lasts %d s; check NTP",
                (wall_ms - now_ms) // 1000,
                JUMP_ACCEPTED_AFTER_MS // 1000,
            )
        return now_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


async def wait_until_set(event: asyncio.Event, timeout_ms: int) -> bool:
    """Whether the event was set in time."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await event.wait()
    except TimeoutError:
        return False


def read_wall_ms() -> int:
    return time.time_ns() // 1_000_000


def read_uptime_ms() -> int:
    """Time since boot, including sleep, so that a laptop that wakes up shows no jump."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000
