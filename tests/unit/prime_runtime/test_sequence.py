"""Sequence numbers never repeat: not in one millisecond, not when the clock steps back, not after a restart."""

from prime_runtime.sequence import Sequence


def test_numbers_rise_whatever_the_clock_does() -> None:
    sequence = Sequence()
    numbers = [sequence.next(now_ms) for now_ms in [1000, 1000, 1000, 999, 0, 1001, 5000]]
    assert numbers == sorted(set(numbers))


def test_a_restart_goes_on_above() -> None:
    before, after = Sequence(), Sequence()
    last = max(before.next(1000) for _ in range(Sequence.STEPS_PER_MS))
    assert after.next(1001) > last


def test_numbers_fit_an_envelope_for_centuries() -> None:
    assert Sequence().next(2**42) < 2**63
