"""Token buckets and gates: they hold their rate, forget what says nothing, and never grow past their bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_runtime.rate_limits import (
    BandwidthLimit,
    ConcurrencyLimit,
    RateLimit,
    TokenBuckets,
    address_group,
    network_group,
)

RATE = RateLimit(per_second=2, burst=3)


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    buckets = TokenBuckets(RATE, keys_max=10)
    assert [buckets.take("a", 0) for _ in range(4)] == [0, 0, 0, 501]
    assert buckets.take("a", 499) > 0
    assert buckets.take("a", 500) == 0
    assert buckets.take("a", 500) > 0


def test_waiting_as_long_as_told_is_enough() -> None:
    buckets = TokenBuckets(RateLimit(per_second=0.3, burst=1), keys_max=10)
    assert buckets.take("a", 0) == 0
    assert buckets.take("a", buckets.take("a", 1) + 1) == 0


def test_keys_do_not_disturb_each_other() -> None:
    buckets = TokenBuckets(RATE, keys_max=10)
    for _ in range(3):
        buckets.take("a", 0)
    assert buckets.take("b", 0) == 0


def test_a_clock_that_steps_back_gives_nothing() -> None:
    buckets = TokenBuckets(RATE, keys_max=10)
    for _ in range(3):
        buckets.take("a", 10_000)
    assert buckets.take("a", 0) > 0
    assert buckets.take("a", 10_400) > 0


def test_a_flood_of_fresh_keys_shares_one_bucket_and_spares_the_known() -> None:
    buckets = TokenBuckets(RATE, keys_max=5)
    for key in range(5):
        buckets.take(key, 0)
    passed = sum(buckets.take(f"sybil {number}", 1) == 0 for number in range(1000))
    assert passed == RATE.burst
    assert len(buckets) == 5
    assert buckets.take(0, 1) == 0


def test_full_buckets_make_room() -> None:
    buckets = TokenBuckets(RATE, keys_max=2)
    buckets.take("a", 0)
    buckets.take("b", 0)
    assert buckets.take("c", 60_000) == 0
    assert len(buckets) == 1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 500)), max_size=200))
def test_no_key_ever_gets_more_than_burst_plus_rate(events: list[tuple[int, int]]) -> None:
    buckets, now_ms, taken = TokenBuckets(RATE, keys_max=8), 0, dict.fromkeys(range(21), 0)
    for key, pause_ms in events:
        now_ms += pause_ms
        taken[key] += buckets.take(key, now_ms) == 0
        assert len(buckets) <= 8
    assert max(taken.values()) <= 2 * RATE.burst + now_ms * RATE.per_second / 1000


def test_a_pace_is_kept_over_time_by_who_waits_as_told() -> None:
    pace, now_ms, moved = BandwidthLimit(1_000), 0, 0
    while now_ms < 10_000:
        moved += 300
        now_ms += pace.take(300, now_ms)
    assert moved == pytest.approx(10_000, abs=500)
    assert pace.take(100, now_ms + 60_000) == 0, "a tenth of a second at once, however long the rest was"
    assert pace.take(100, now_ms + 60_000) == 100
    assert pace.take(0, now_ms) == 100, "a clock that steps back gives nothing"


def test_a_gate_bounds_all_and_each_and_gives_places_back() -> None:
    gate = ConcurrencyLimit(total_max=3, key_max=2)
    assert [gate.enter("a"), gate.enter("a"), gate.enter("a")] == [True, True, False]
    assert [gate.enter("b"), gate.enter("c")] == [True, False]
    gate.leave("a")
    assert gate.enter("c")
    assert len(gate) == 3
    for key in "abc":
        gate.leave(key)
    assert len(gate) == 0
    with pytest.raises(AssertionError, match="without having entered"):
        gate.leave("a")


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("evil\nname", "unknown"),
    ],
)
def test_an_address_counts_with_those_its_owner_also_has(address: str, group: str) -> None:
    assert address_group(address) == group


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.0/24"),
        ("::ffff:192.0.2.7", "192.0.2.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"),
        ("", "unknown"),
    ],
)
def test_a_neighbourhood_is_what_one_site_is_given(address: str, group: str) -> None:
    assert network_group(address) == group
