"""How fast nodes are: measured, never believed for long."""

import pytest

from prime_coordinator.constants import THROUGHPUT_CLAIMED_MAX, THROUGHPUT_HALF_LIFE_MS, THROUGHPUT_MIN
from prime_coordinator.scheduling.capacity import Throughput
from prime_protocol.wire.ids import NodeId

ANN = NodeId(b"a" * 20)


def test_a_claim_counts_until_the_first_measurement_and_not_without_limit() -> None:
    speeds = Throughput()
    assert speeds.get(ANN, 50) == 50
    assert speeds.get(ANN, 10**9) == THROUGHPUT_CLAIMED_MAX
    assert speeds.get(ANN, 0) == THROUGHPUT_MIN
    speeds.record(ANN, tokens=300, leased_ms=0, now_ms=1000)
    assert speeds.get(ANN, 10**9) == 300


def test_newer_measurements_weigh_more() -> None:
    speeds = Throughput()
    took_ms = THROUGHPUT_HALF_LIFE_MS
    speeds.record(ANN, tokens=100 * took_ms, leased_ms=0, now_ms=took_ms)
    speeds.record(ANN, tokens=200 * took_ms, leased_ms=took_ms, now_ms=2 * took_ms)
    assert speeds.get(ANN, 0) == pytest.approx(1000 * (0.5**0.5 * 100 + 200) / (1 + 0.5**0.5))


def test_leases_in_hand_at_the_same_time_share_it() -> None:
    speeds = Throughput()
    for done_ms in (10_000, 10_001, 10_001, 20_000):
        speeds.record(ANN, tokens=500, leased_ms=0, now_ms=done_ms)
    assert speeds.get(ANN, 0) == pytest.approx(100, rel=0.03)


def test_a_lease_that_waited_behind_another_is_not_timed_from_its_grant() -> None:
    speeds = Throughput()
    speeds.record(ANN, tokens=1000, leased_ms=0, now_ms=10_000)
    speeds.record(ANN, tokens=1000, leased_ms=0, now_ms=20_000)
    assert speeds.get(ANN, 0) == pytest.approx(100)


def test_a_lost_lease_halves_what_was_thought_but_not_below_the_slowest() -> None:
    speeds = Throughput()
    speeds.record_loss(ANN)
    assert not speeds.is_measured(ANN)
    speeds.record(ANN, tokens=100, leased_ms=0, now_ms=1000)
    speeds.record_loss(ANN)
    assert speeds.get(ANN, 0) == 50
    for _ in range(20):
        speeds.record_loss(ANN)
    assert speeds.get(ANN, 0) == THROUGHPUT_MIN


def test_an_instant_submission_is_no_division_by_zero() -> None:
    speeds = Throughput()
    speeds.record(ANN, tokens=7, leased_ms=5, now_ms=5)
    assert speeds.get(ANN, 0) == 7000
