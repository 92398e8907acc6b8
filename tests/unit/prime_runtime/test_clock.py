"""The system clock: two readings, one of which never goes back."""

from prime_runtime.clock import SystemClock


async def test_time_passes_while_sleeping() -> None:
    clock = SystemClock()
    before = clock.monotonic_ms()
    await clock.sleep_ms(2)
    assert clock.monotonic_ms() - before >= 1
    assert clock.now_ms() > 1_700_000_000_000
