"""A part that dies begins again after a pause that grows, is said, and touches no other part."""

import asyncio

import pytest

from prime_protocol.errors import LocalError
from prime_runtime.supervisor import PAUSE_MS, PAUSE_MS_MAX, STEADY_MS, SupervisedTask, Supervisor


class HandClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.ms = 0
        self.slept: list[int] = []

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    async def sleep_ms(self, duration_ms: int) -> None:
        self.slept.append(duration_ms)
        self.ms += duration_ms
        await asyncio.sleep(0)


async def test_a_part_begins_again_with_growing_pauses_and_another_never_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, lives, steady = HandClock(), 0, 0

    async def frail() -> None:
        nonlocal lives
        lives += 1
        if lives == 12:
            clock.ms += STEADY_MS
        if lives > 13:
            return
        raise LocalError("the port is taken") if lives % 2 else ValueError("a bug")

    async def sound() -> None:
        nonlocal steady
        steady += 1
        await asyncio.Event().wait()

    parts = [SupervisedTask("frail", frail), SupervisedTask("sound", sound)]
    stop = asyncio.Event()
    task = asyncio.create_task(Supervisor(parts, clock).run_until(stop.wait()))
    while lives < 14:
        await asyncio.sleep(0)
    stop.set()
    await task
    assert (steady, parts[0].restarts, parts[1].restarts) == (1, 13, 0)
    assert clock.slept[:3] == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS]
    assert max(clock.slept) == PAUSE_MS_MAX
    assert clock.slept[11] == PAUSE_MS, "after a steady time the pause is short again"
    assert parts[0].last_error == "the port is taken"
    assert not any(part.is_running for part in parts)
    assert "frail stopped: the port is taken" in caplog.text
    assert "frail failed" in caplog.text
