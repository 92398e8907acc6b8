"""The system clock: two readings, one of which never goes back."""

import pytest

from prime_runtime.clock import JUMP_ACCEPTED_AFTER_MS, STEP_MS_MAX, SteadyClock, SystemClock


async def test_time_passes_while_sleeping() -> None:
    clock = SystemClock()
    before = clock.monotonic_ms()
    await clock.sleep_ms(2)
    assert clock.monotonic_ms() - before >= 1
    assert clock.now_ms() > 1_700_000_000_000


def test_a_clock_that_is_set_right_in_small_steps_is_followed_at_once() -> None:
    steady = SteadyClock(ahead_ms=1_000_000)
    assert steady.read(1_000_500 + STEP_MS_MAX, 500) == 1_000_500 + STEP_MS_MAX
    assert steady.read(1_000_600, 600) == 1_000_600
    assert steady.jumped_at_ms is None


@pytest.mark.parametrize("jump_ms", [600_000, -600_000])
def test_a_short_jump_is_not_felt_and_one_that_stays_is_believed(jump_ms: int) -> None:
    steady = SteadyClock(ahead_ms=1_000_000)
    for uptime_ms in (0, 1, JUMP_ACCEPTED_AFTER_MS - 1):
        assert steady.read(1_000_000 + jump_ms + uptime_ms, uptime_ms) == 1_000_000 + uptime_ms
    assert steady.read(1_000_000 + 60_000, 60_000) == 1_060_000, "it was undone in time"
    for uptime_ms in (70_000, 70_000 + JUMP_ACCEPTED_AFTER_MS - 1):
        assert steady.read(1_000_000 + jump_ms + uptime_ms, uptime_ms) == 1_000_000 + uptime_ms
    late_ms = 70_000 + JUMP_ACCEPTED_AFTER_MS
    assert steady.read(1_000_000 + jump_ms + late_ms, late_ms) == 1_000_000 + jump_ms + late_ms


def test_a_jump_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    true_ms = clock.now_ms()
    monkeypatch.setattr("prime_runtime.clock.read_wall_ms", lambda: true_ms + 600_000)
    for _ in range(3):
        assert clock.now_ms() < true_ms + 60_000
    (record,) = caplog.records
    assert "jumped by" in record.message
