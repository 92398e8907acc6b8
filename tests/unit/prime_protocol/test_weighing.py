"""The sequential test: what one chunk weighs, what many come to, and how seldom honest ones come to much."""

from dataclasses import replace

import numpy as np
import pytest

from prime_protocol.constants import (
    FAR_FACTOR,
    NOISE_SHIFT,
    NOISE_WEIGHT_MAX,
    WEIGHT_BEYOND,
    WEIGHT_CONVICTS,
    WEIGHT_UNUSUAL,
    WEIGHT_USUAL,
)
from prime_protocol.tolerance import Tolerance
from prime_protocol.toploc_verify import ChunkReport
from prime_protocol.weighing import (
    Mark,
    Span,
    heaviest,
    mark_noise,
    mark_proof,
    mark_span,
    weigh,
    weigh_noise,
    weigh_number,
)

BOUNDS = Tolerance(
    exponent_mismatches_max=20,
    mantissa_error_mean_max=4.0,
    margin_max=1.0,
    logprob_error_max=0.5,
    exponent_mismatches_usual=5,
    mantissa_error_mean_usual=1.0,
    margin_usual=0.25,
    margin_mean_usual=0.1,
    logprob_error_usual=0.125,
    logprob_error_mean_usual=0.05,
    noise_spread=0.1,
    noise_spread_chunk=0.2,
)
CHUNK = ChunkReport(128, 0, 0, 0, 0, 1, 10, 0, 0)
SPAN = Span(32, 0.0, 0, 0.0, 0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("value", "weight", "bound"),
    [
        (1.0, WEIGHT_USUAL, 1.0),
        (1.1, WEIGHT_UNUSUAL, 1.0),
        (2.0, WEIGHT_UNUSUAL, 1.0),
        (2.1, WEIGHT_BEYOND, 2.0),
        (2.0 * FAR_FACTOR, WEIGHT_BEYOND, 2.0),
        (2.1 * FAR_FACTOR, WEIGHT_CONVICTS, 2.0),
    ],
)
def test_a_number_weighs_by_the_bound_it_is_beyond(value: float, weight: int, bound: float) -> None:
    assert weigh_number(value, usual=1.0, limit=2.0) == (weight, bound)


def test_where_nothing_is_allowed_nothing_is_far() -> None:
    assert weigh_number(9.0, usual=0.0, limit=0.0) == (WEIGHT_BEYOND, 0.0)


@pytest.mark.parametrize(
    ("changes", "marks"),
    [
        ({}, []),
        ({"exponent_mismatches": 6}, [("exponent_mismatches", WEIGHT_UNUSUAL)]),
        ({"exponent_mismatches": 21}, [("exponent_mismatches", WEIGHT_BEYOND)]),
        ({"exponent_mismatches": 81}, [("exponent_mismatches", WEIGHT_CONVICTS)]),
        ({"mantissa_error_sum": 129}, [("mantissa_error_mean", WEIGHT_UNUSUAL)]),
        ({"sign_mismatches": 9}, [("sign_mismatches", WEIGHT_BEYOND)]),
        ({"leading_zeros": 3}, [("leading_zeros", WEIGHT_CONVICTS)]),
        ({"collisions": 9}, [("collisions", WEIGHT_CONVICTS)]),
        ({"decoy_hits": 60}, [("decoy_hits", WEIGHT_CONVICTS)]),
    ],
)
def test_a_proof_is_marked_by_each_number_once(changes: dict[str, int], marks: list[tuple[str, int]]) -> None:
    assert [(mark.check, mark.weight) for mark in mark_proof(CHUNK._replace(**changes), BOUNDS, is_whole=True)] == marks


@pytest.mark.parametrize(
    ("changes", "marks"),
    [
        ({}, []),
        ({"margin_max": 0.5, "margin_at": 40}, [Mark("margin", 0.5, 0.25, WEIGHT_UNUSUAL, 40)]),
        ({"margin_max": 1.5, "margin_at": 40}, [Mark("margin", 1.5, 1.0, WEIGHT_BEYOND, 40)]),
        ({"margin_sum": 6.4}, [Mark("margin_mean", 0.2, 0.1, WEIGHT_UNUSUAL)]),
        ({"logprob_error_max": 3.0}, [Mark("logprob_error", 3.0, 0.5, WEIGHT_CONVICTS, 0)]),
        ({"logprob_error_sum": 3.2}, [Mark("logprob_error_mean", 0.1, 0.05, WEIGHT_UNUSUAL)]),
    ],
)
def test_tokens_are_marked_with_the_place_of_the_worst(changes: dict[str, float], marks: list[Mark]) -> None:
    assert list(mark_span(SPAN._replace(**changes), BOUNDS)) == marks


def test_a_short_chunk_is_held_to_its_limits_only_where_it_strays() -> None:
    short = SPAN._replace(tokens=3, margin_sum=0.9, logprob_error_sum=0.9)
    assert list(mark_span(short, BOUNDS)) == []
    assert list(mark_proof(CHUNK._replace(exponent_mismatches=6), BOUNDS, is_whole=False)) == []
    assert [mark.check for mark in mark_proof(CHUNK._replace(exponent_mismatches=21), BOUNDS, is_whole=False)] == [
        "exponent_mismatches"
    ]


def test_the_worst_number_of_a_chunk_decides() -> None:
    assert heaviest([]) == WEIGHT_USUAL
    assert heaviest([Mark("margin", 1, 0, WEIGHT_UNUSUAL), Mark("proofs", 1, 0, WEIGHT_BEYOND)]) == WEIGHT_BEYOND


def test_one_chunk_beyond_a_limit_convicts_nobody_and_three_do() -> None:
    assert weigh([]).convicts is False
    assert weigh([WEIGHT_BEYOND]).most == WEIGHT_BEYOND
    assert not weigh([WEIGHT_BEYOND, WEIGHT_BEYOND]).convicts
    assert weigh([WEIGHT_BEYOND] * 3).convicts
    assert weigh([WEIGHT_CONVICTS]).convicts


def test_honest_rows_do_not_cover_for_forged_ones() -> None:
    found = weigh([WEIGHT_USUAL] * 10_000 + [WEIGHT_UNUSUAL] * 12 + [WEIGHT_USUAL] * 10_000)
    assert found.convicts
    assert (found.most, found.at, found.unusual, found.beyond) == (120, 10_011, 12, 0)


def test_honest_chunks_come_to_a_conviction_as_seldom_as_is_promised() -> None:
    """Three million chunks of which 2 % are unusual stay far below, and each decade is as rare as it says."""
    dice = np.random.default_rng(5)
    steps = np.where(dice.random(3_000_000) < 0.02, WEIGHT_UNUSUAL, WEIGHT_USUAL)
    summed = np.concatenate([[0], np.cumsum(steps)])
    heights = summed - np.minimum.accumulate(summed)
    assert heights.max() < 90
    for decades in (2, 3, 4):
        assert (heights >= 10 * decades).mean() < 10.0 ** (1 - decades)


# --- Completions ----------------------------------------------------------------------------------------------------


TWICE = SPAN._replace(own_logprob_error_sum=0.8, own_mantissa_error_mean=0.5)
"""A chunk of 32 tokens that was read twice."""


def make_completion(levels: list[float]) -> Mark | None:
    """A chunk for each level of noise, in what the reader's own reading has."""
    spans = [TWICE._replace(logprob_error_sum=0.8 * level) for level in levels]
    return mark_noise(spans, [CHUNK._replace(mantissa_error_sum=round(64 * level)) for level in levels], BOUNDS)


def test_a_completion_weighs_by_how_far_its_noise_is_from_typical() -> None:
    weights = []
    for level in (0.5, 1.0, 1.1, 1.25, 1.5):
        mark = make_completion([level] * 4)
        assert mark is not None
        assert mark.value == pytest.approx(level, rel=0.01)
        weights.append(mark.weight)
    # Four chunks spread by 0.1 and 0.2 / 2: 0.141. Half of NOISE_SHIFT above typical nothing speaks either way.
    assert mark.bound == pytest.approx(1 + 0.1414 * NOISE_SHIFT / 2, abs=1e-4)
    assert weights == [-40, -9, -3, 6, 22]
    longer = make_completion([1.25] * 64)
    assert longer is not None
    assert longer.weight == 12, "a longer one is surer"


def test_one_loud_chunk_does_not_speak_for_a_completion_nor_one_completion_for_a_file() -> None:
    loud = make_completion([1.0] * 15 + [100.0])
    assert loud is not None
    assert loud.weight < 0
    worst = make_completion([100.0] * 64)
    assert worst is not None
    assert worst.weight == NOISE_WEIGHT_MAX
    assert weigh_noise([worst, worst]) < WEIGHT_CONVICTS <= weigh_noise([worst] * 3)


def test_short_chunks_say_nothing_about_noise_nor_does_a_text_that_was_read_once() -> None:
    assert mark_noise([TWICE._replace(tokens=31, logprob_error_sum=31.0)], [CHUNK], BOUNDS) is None
    assert mark_noise([SPAN._replace(logprob_error_sum=32.0)], [CHUNK], BOUNDS) is None
    assert weigh_noise([]) == 0


def test_in_a_run_that_was_not_calibrated_only_noise_that_is_much_too_large_counts() -> None:
    for level, is_against in ((1.0, False), (1.4, False), (2.5, True)):
        spans = [TWICE._replace(logprob_error_sum=0.8 * level)] * 16
        mark = mark_noise(spans, [CHUNK._replace(mantissa_error_sum=round(64 * level))] * 16, Tolerance())
        assert mark is not None
        assert (mark.weight > 0) is is_against


def test_a_reading_that_is_as_good_as_exact_makes_nobody_noisy() -> None:
    quiet = SPAN._replace(logprob_error_sum=1e-5, own_logprob_error_sum=1e-6)
    mark = mark_noise([quiet] * 8, [CHUNK] * 8, BOUNDS)
    assert mark is not None
    assert mark.weight < 0


def test_the_larger_of_both_tests_convicts() -> None:
    weighed = weigh([WEIGHT_UNUSUAL])
    assert (weighed.evidence, weighed.convicts) == (10, False)
    noisy = replace(weighed, noise=WEIGHT_CONVICTS)
    assert (noisy.evidence, noisy.convicts) == (WEIGHT_CONVICTS, True)


def test_honest_completions_come_to_a_conviction_by_noise_as_seldom_as_is_promised() -> None:
    dice = np.random.default_rng(6)
    steps = np.floor(10 / np.log(10) * NOISE_SHIFT * (dice.standard_normal(1_000_000) - NOISE_SHIFT / 2))
    summed = np.concatenate([[0], np.cumsum(np.clip(steps, -NOISE_WEIGHT_MAX, NOISE_WEIGHT_MAX))])
    heights = summed - np.minimum.accumulate(summed)
    assert heights.max() < 90
    for decades in (2, 3, 4):
        assert (heights >= 10 * decades).mean() < 10.0 ** (1 - decades)
