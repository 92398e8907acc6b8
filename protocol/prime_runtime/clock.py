"""The one place where the programs read a clock or wait. Everything else is handed one of these."""

import asyncio
import time
from typing import Protocol


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


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)
