"""Time as the parties live it: while the whole machine stands still, as virtual machines do now and then, none passes.

A harness that counted such a pause would blame a party for the minutes in which nobody, itself included, was running.
"""

import asyncio
import time

TICK_S = 0.1
TICK_S_MAX = 1.0
"""What one tick counts at most. A busy machine wakes us late by less; a stopped one by far more."""


class Stopwatch:
    """Runs beside everything else."""

    def __init__(self) -> None:
        self.awake_s = 0.0
        self.stood_s = 0.0
        """How long the machine stood still in all."""

    async def run(self) -> None:
        """For ever."""
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self.awake_s += min(now_s - last_s, TICK_S_MAX)
            self.stood_s += max(0.0, now_s - last_s - TICK_S_MAX)
            last_s = now_s
