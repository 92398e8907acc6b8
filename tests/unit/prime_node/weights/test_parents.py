"""How parents are judged, and how the rarest shard is found."""

from collections import Counter
from random import Random

from prime_node.weights.parents import (
    BAN_MS,
    BAN_MS_MAX,
    HALF_LIFE_MS,
    PARENTS_MAX,
    STRIKE_HALF_LIFE_MS,
    ParentScores,
    RarityCounts,
    draw_bit,
)
from prime_protocol.wire.ids import NodeId


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(20, "big"))


ANN, BOB, CAT = node(1), node(2), node(3)


def test_a_fast_parent_is_expected_to_be_faster() -> None:
    parents = ParentScores()
    for _ in range(5):
        parents.record_arrived(ANN, 1_000_000, 100, 0)
        parents.record_arrived(BOB, 1_000_000, 1_000, 0)
    assert parents.estimate_rate(ANN, 0) > 2 * parents.estimate_rate(BOB, 0)


def test_an_unknown_parent_is_hoped_to_beat_the_typical_one() -> None:
    parents = ParentScores()
    for _ in range(20):
        parents.record_arrived(ANN, 1_000_000, 500, 0)
    assert parents.estimate_rate(CAT, 0) > parents.estimate_rate(ANN, 0)
    assert parents.estimate_rate(CAT, 0) < 2 * parents.estimate_rate(ANN, 0)


def test_failures_lower_the_expectation_and_are_forgiven_with_time() -> None:
    parents = ParentScores()
    before = parents.estimate_rate(ANN, 0)
    for _ in range(6):
        parents.record_failed(ANN, 0)
    assert parents.estimate_rate(ANN, 0) < before / 5
    assert parents.estimate_rate(ANN, 10 * HALF_LIFE_MS) > 0.95 * before


def test_a_failure_never_raises_what_is_expected() -> None:
    """The public original fed the timeout in as bandwidth, so that failing made a slow relay look fast."""
    parents = ParentScores()
    parents.record_arrived(ANN, 100_000, 10_000, 0)
    before = parents.estimate_rate(ANN, 0)
    parents.record_failed(ANN, 30_000)
    assert parents.estimate_rate(ANN, 30_000) < before * 1.2


def test_bars_double_with_repetition_and_have_an_end() -> None:
    parents = ParentScores()
    bars = []
    for _ in range(12):
        parents.record_corrupt(ANN, 1_000)
        bars.append(parents.get_banned_until_ms(ANN) - 1_000)
    assert bars[:3] == [BAN_MS, 2 * BAN_MS, 4 * BAN_MS]
    assert bars[-1] == BAN_MS_MAX
    assert parents.get_banned_until_ms(BOB) == 0


def test_strikes_are_forgotten_with_time() -> None:
    parents = ParentScores()
    for _ in range(3):
        parents.record_corrupt(ANN, 0)
    late_ms = 20 * STRIKE_HALF_LIFE_MS
    parents.record_corrupt(ANN, late_ms)
    assert parents.get_banned_until_ms(ANN) - late_ms < 1.01 * BAN_MS


def test_a_corrupt_sender_has_to_prove_itself_again() -> None:
    parents = ParentScores()
    parents.record_arrived(ANN, 1_000, 10, 0)
    assert parents.is_proven(ANN)
    parents.record_corrupt(ANN, 1)
    assert not parents.is_proven(ANN)


def test_the_table_is_bounded_and_keeps_the_recent() -> None:
    parents = ParentScores()
    for number in range(PARENTS_MAX + 100):
        parents.record_failed(node(number), number)
    assert len(parents) == PARENTS_MAX
    assert parents.estimate_rate(node(PARENTS_MAX + 99), PARENTS_MAX + 99) < parents.estimate_rate(
        node(0), PARENTS_MAX + 99
    )


def test_the_rarest_are_those_that_the_fewest_have() -> None:
    rarity = RarityCounts()
    for bitmap in (0b1111, 0b0111, 0b0011, 0b0010):
        rarity.add(bitmap)
    assert [rarity.count(shard) for shard in range(5)] == [3, 4, 2, 1, 0]
    assert rarity.find_rarest(0b11111) == 0b10000
    assert rarity.find_rarest(0b01111) == 0b01000
    assert rarity.find_rarest(0b00011) == 0b00001
    rarity.remove(0b0111)
    assert rarity.find_rarest(0b1100) == 0b1100


def test_a_set_bit_is_drawn_evenly() -> None:
    dice = Random(1)
    bitmap = 1 << 3 | 1 << 4 | 1 << 900 | 1 << 16_000
    drawn = Counter(draw_bit(bitmap, dice) for _ in range(4_000))
    assert sorted(drawn) == [index for index in range(bitmap.bit_length()) if bitmap >> index & 1]
    assert min(drawn.values()) > 800
