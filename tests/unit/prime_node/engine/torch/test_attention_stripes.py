"""Claims about the rows of a batch: no gaps, nearly sorted, few moves, little read for nothing."""

import random

import pytest

from prime_node.engine.torch.attention import STRIPE_LENGTH_STEP, STRIPES, plan_compaction, plan_stripes


@pytest.mark.parametrize("seed", range(50))
def test_closing_gaps_keeps_everybody_else_once(seed: int) -> None:
    dice = random.Random(seed)
    rows = dice.randint(1, 70)
    gone = set(dice.sample(range(rows), dice.randint(0, rows)))
    assert sorted(plan_compaction(rows, gone)) == [row for row in range(rows) if row not in gone], f"seed {seed}"


def test_a_gap_moves_few_rows_and_none_far() -> None:
    for gap in range(64):
        order = plan_compaction(64, {gap})
        moved = [(place, row) for place, row in enumerate(order) if place != row]
        assert len(moved) <= STRIPES
        assert all(row - place <= 64 / STRIPES for place, row in moved)


def test_rows_stay_nearly_sorted_over_many_completions() -> None:
    """The cost of attention over the rows as they lie, against rows sorted anew at every step, and one call for all."""
    dice = random.Random(5)
    lengths: list[tuple[int, int]] = []
    spent = ideal = unsorted = 0
    for _ in range(1500):
        lengths = [(length + 1, left - 1) for length, left in lengths]
        order = plan_compaction(len(lengths), [row for row, (_, left) in enumerate(lengths) if left <= 0])
        lengths = [lengths[row] for row in order]
        while len(lengths) < 64:
            lengths.append((16, int(min(512, dice.lognormvariate(3.9, 1.2))) + 1))
        cached = [length for length, _ in lengths]
        spent += sum(stripe.cost for stripe in plan_stripes(cached))
        ideal += sum(stripe.cost for stripe in plan_stripes(sorted(cached, reverse=True)))
        unsorted += len(cached) * max(cached)
    assert spent < 1.35 * ideal
    assert spent < 0.6 * unsorted


@pytest.mark.parametrize("seed", range(30))
def test_stripes_cover_all_rows_in_order_and_all_their_tokens(seed: int) -> None:
    dice = random.Random(seed)
    lengths = [dice.randint(1, 900) for _ in range(dice.randint(1, 100))]
    stripes = plan_stripes(lengths)
    assert [row for stripe in stripes for row in range(stripe.start, stripe.stop)] == list(range(len(lengths)))
    assert len(stripes) <= STRIPES
    for stripe in stripes:
        part = lengths[stripe.start : stripe.stop]
        assert (stripe.shortest, stripe.longest) == (min(part), max(part))
        assert max(part) <= stripe.length < max(part) + STRIPE_LENGTH_STEP


def test_rows_of_one_length_are_one_stripe_without_rounding() -> None:
    (stripe,) = plan_stripes([77] * 64)
    assert (stripe.start, stripe.stop, stripe.length, stripe.is_even) == (0, 64, 77, True)


def test_long_rows_do_not_make_short_ones_cost_as_much() -> None:
    stripes = plan_stripes([2000] * 8 + [50] * 56)
    assert sum(stripe.cost for stripe in stripes) < 8 * 2000 + 56 * 64 + 10_000
    assert plan_stripes([]) == []
