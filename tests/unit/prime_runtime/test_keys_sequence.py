"""Sequence numbers never repeat: not in one millisecond, not when the clock steps back, not after a restart."""

from prime_runtime.keys import SequenceCounter


def test_numbers_rise_whatever_the_clock_does() -> None:
    sequence = SequenceCounter()
    numbers = [sequence.next(now_ms) for now_ms in [1000, 1000, 1000, 999, 0, 1001, 5000]]
    assert numbers == sorted(set(numbers))


def test_a_restart_goes_on_above() -> None:
    before, after = SequenceCounter(lambda: SequenceCounter.OFFSETS - 1), SequenceCounter()
    last = max(before.next(1000) for _ in range(SequenceCounter.OFFSETS))
    assert after.next(1001) > last


def test_processes_with_one_key_rarely_draw_alike() -> None:
    one, other = SequenceCounter.shared(), SequenceCounter.shared()
    alike = sum(one.next(now_ms) == other.next(now_ms) for now_ms in range(1000, 3000))
    assert alike < 40, "about 4 of 2,000"


def test_numbers_fit_an_envelope_for_centuries() -> None:
    assert SequenceCounter().next(2**42) < 2**63
