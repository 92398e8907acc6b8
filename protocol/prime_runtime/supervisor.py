"""Parts of a program that may die without taking the others along: each begins again after a pause, and it is said.

A part is a coroutine that runs for ever. What it raises is logged; a bug in one part must not stop the others, and must
not go unnoticed either: the count of restarts and the last error are for `status`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from prime_protocol.errors import LocalError
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

PAUSE_MS = 500
PAUSE_MS_MAX = 60_000
STEADY_MS = 60_000
"""After so long without a failure the pause before a restart is short again."""


@dataclass(slots=True)
class SupervisedTask:
    """One part and how it fares."""

    name: str
    work: Callable[[], Awaitable[None]]
    """Begun anew with each call."""
    is_running: bool = False
    restarts: int = 0
    last_error: str = ""


class Supervisor:
    """Keeps parts running until it is cancelled."""

    def __init__(self, parts: Iterable[SupervisedTask], clock: Clock) -> None:
        self.parts = tuple(parts)
        self._clock = clock

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for part in self.parts:
                group.create_task(self._keep(part), name=part.name)

    async def run_until(self, until: Awaitable[Any]) -> None:
        """Then every part is ended."""
        work, stop = asyncio.create_task(self.run()), asyncio.ensure_future(until)
        try:
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    async def _keep(self, part: SupervisedTask) -> None:
        pause_ms = PAUSE_MS
        while True:
            began_ms = self._clock.monotonic_ms()
            part.is_running = True
            try:
                await part.work()
                return
            except LocalError as error:
                part.last_error = str(error)
                log.warning("%s stopped: %s", part.name, error)
            except Exception as error:  # boundary: one part's bug must not stop the others; it begins again
                part.last_error = f"{type(error).__name__}: {error}"
                log.exception("%s failed", part.name)
            finally:
                part.is_running = False
            if self._clock.monotonic_ms() - began_ms >= STEADY_MS:
                pause_ms = PAUSE_MS
            log.info("%s begins again in %.1f s", part.name, pause_ms / 1000)
            await self._clock.sleep_ms(pause_ms)
            part.restarts += 1
            pause_ms = min(PAUSE_MS_MAX, 2 * pause_ms)
