"""Restarts the long-running tasks of a program, each on its own, with a growing pause.

A failing task must not stop the others, and must not go unnoticed: its error is logged, and `status` shows the number
of restarts and the last error.
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
"""A task that ran this long starts again with the short pause."""


@dataclass(slots=True)
class SupervisedTask:
    """A long-running task and its state."""

    name: str
    work: Callable[[], Awaitable[None]]
    """Called again for each restart."""
    is_running: bool = False
    restarts: int = 0
    last_error: str = ""


class Supervisor:
    """Keeps tasks running until it is cancelled."""

    def __init__(self, tasks: Iterable[SupervisedTask], clock: Clock) -> None:
        self.tasks = tuple(tasks)
        self._clock = clock

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for task in self.tasks:
                group.create_task(self._supervise(task), name=task.name)

    async def run_until(self, until: Awaitable[Any]) -> None:
        """Run until `until` is done, then cancel every task."""
        work, stop = asyncio.create_task(self.run()), asyncio.ensure_future(until)
        try:
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    async def _supervise(self, task: SupervisedTask) -> None:
        pause_ms = PAUSE_MS
        while True:
            started_ms = self._clock.monotonic_ms()
            task.is_running = True
            try:
                await task.work()
                return
            except LocalError as error:
                task.last_error = str(error)
                log.warning("%s stopped: %s", task.name, error)
            except Exception as error:  # boundary: a bug in one task must not stop the others; it restarts
                task.last_error = f"{type(error).__name__}: {error}"
                log.exception("%s failed", task.name)
            finally:
                task.is_running = False
            if self._clock.monotonic_ms() - started_ms >= STEADY_MS:
                pause_ms = PAUSE_MS
            log.info("%s restarts in %.1f s", task.name, pause_ms / 1000)
            await self._clock.sleep_ms(pause_ms)
            task.restarts += 1
            pause_ms = min(PAUSE_MS_MAX, 2 * pause_ms)
