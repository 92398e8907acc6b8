"""The sequential test: what one chunk weighs, what many come to, and how seldom honest ones come to much."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from prime_protocol.constants import (
    EVIDENCE_BEYOND_LIMIT,
    EVIDENCE_FRAUDULENT,
    EVIDENCE_NOISE_MAX,
    EVIDENCE_UNUSUAL,
    EVIDENCE_USUAL,
    FAR_BEYOND_FACTOR,
    NOISE_SHIFT,
)
from prime_protocol.proofs.evidence import (
    Deviation,
    EvidenceCounter,
    EvidenceSum,
    ReplayedChunk,
    compute_noise_deviation,
    compute_weight,
    find_proof_deviations,
    find_replay_deviations,
    get_chunk_weight,
)
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport

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
SPAN = ReplayedChunk(32, 0.0, 0, 0.0, 0.0, 0, 0.0)


def sum_weights(weights: Iterable[int]) -> EvidenceSum:
    counter = EvidenceCounter()
    for weight in weights:
        counter.add(weight)
    return counter.sum()


@pytest.mark.parametrize(
    ("value", "weight", "bound"),
    [
        (1.0, EVIDENCE_USUAL, 1.0),
        (1.1, EVIDENCE_UNUSUAL, 1.0),
        (2.0, EVIDENCE_UNUSUAL, 1.0),
        (2.1, EVIDENCE_BEYOND_LIMIT, 2.0),
        (2.0 * FAR_BEYOND_FACTOR, EVIDENCE_BEYOND_LIMIT, 2.0),
        (2.1 * FAR_BEYOND_FACTOR, EVIDENCE_FRAUDULENT, 2.0),
    ],
)
def test_a_number_weighs_by_the_bound_it_is_beyond(value: float, weight: int, bound: float) -> None:
    assert compute_weight(value, usual=1.0, limit=2.0) == (weight, bound)


def test_where_nothing_is_allowed_nothing_is_far() -> None:
    assert compute_weight(9.0, usual=0.0, limit=0.0) == (EVIDENCE_BEYOND_LIMIT, 0.0)


@pytest.mark.parametrize(
    ("changes", "marks"),
    [
        ({}, []),
        ({"exponent_mismatches": 6}, [("exponent_mismatches", EVIDENCE_UNUSUAL)]),
        ({"exponent_mismatches": 21}, [("exponent_mismatches", EVIDENCE_BEYOND_LIMIT)]),
        ({"exponent_mismatches": 81}, [("exponent_mismatches", EVIDENCE_FRAUDULENT)]),
        ({"mantissa_error_sum": 129}, [("mantissa_error_mean", EVIDENCE_UNUSUAL)]),
        ({"sign_mismatches": 9}, [("sign_mismatches", EVIDENCE_BEYOND_LIMIT)]),
        ({"leading_zeros": 3}, [("leading_zeros", EVIDENCE_FRAUDULENT)]),
        ({"collisions": 9}, [("collisions", EVIDENCE_FRAUDULENT)]),
        ({"decoy_hits": 60}, [("decoy_hits", EVIDENCE_FRAUDULENT)]),
    ],
)
def test_a_proof_is_marked_by_each_number_once(changes: dict[str, int], marks: list[tuple[str, int]]) -> None:
    assert [
        (mark.check, mark.weight) for mark in find_proof_deviations(CHUNK._replace(**changes), BOUNDS, is_whole=True)
    ] == marks


@pytest.mark.parametrize(
    ("changes", "marks"),
    [
        ({}, []),
        ({"margin_max": 0.5, "margin_at": 40}, [Deviation("margin", 0.5, 0.25, EVIDENCE_UNUSUAL, 40)]),
        ({"margin_max": 1.5, "margin_at": 40}, [Deviation("margin", 1.5, 1.0, EVIDENCE_BEYOND_LIMIT, 40)]),
        ({"margin_sum": 6.4}, [Deviation("margin_mean", 0.2, 0.1, EVIDENCE_UNUSUAL)]),
        ({"logprob_error_max": 3.0}, [Deviation("logprob_error", 3.0, 0.5, EVIDENCE_FRAUDULENT, 0)]),
        ({"logprob_error_sum": 3.2}, [Deviation("logprob_error_mean", 0.1, 0.05, EVIDENCE_UNUSUAL)]),
    ],
)
def test_tokens_are_marked_with_the_place_of_the_worst(changes: dict[str, float], marks: list[Deviation]) -> None:
    assert list(find_replay_deviations(SPAN._replace(**changes), BOUNDS)) == marks


def test_a_short_chunk_is_held_to_its_limits_only_where_it_strays() -> None:
    short = SPAN._replace(tokens=3, margin_sum=0.9, logprob_error_sum=0.9)
    assert list(find_replay_deviations(short, BOUNDS)) == []
    assert list(find_proof_deviations(CHUNK._replace(exponent_mismatches=6), BOUNDS, is_whole=False)) == []
    assert [
        mark.check for mark in find_proof_deviations(CHUNK._replace(exponent_mismatches=21), BOUNDS, is_whole=False)
    ] == ["exponent_mismatches"]


def test_what_is_unlikely_is_neither_paid_nor_charged() -> None:
    for noise, margin, is_unlikely, convicts in ((79, 0, False, False), (0, 80, True, False), (80, 120, False, True)):
        weighed = EvidenceSum(10, 0, 1, 0, noise=noise, margin=margin)
        assert weighed.evidence == max(noise, margin)
        assert (weighed.is_unlikely, weighed.convicts) == (is_unlikely, convicts)


def test_the_worst_number_of_a_chunk_decides() -> None:
    assert get_chunk_weight([]) == EVIDENCE_USUAL
    assert (
        get_chunk_weight(
            [Deviation("margin", 1, 0, EVIDENCE_UNUSUAL), Deviation("proofs", 1, 0, EVIDENCE_BEYOND_LIMIT)]
        )
        == EVIDENCE_BEYOND_LIMIT
    )


def test_one_chunk_beyond_a_limit_convicts_nobody_and_three_do() -> None:
    assert sum_weights([]).convicts is False
    assert sum_weights([EVIDENCE_BEYOND_LIMIT]).most == EVIDENCE_BEYOND_LIMIT
    assert not sum_weights([EVIDENCE_BEYOND_LIMIT, EVIDENCE_BEYOND_LIMIT]).convicts
    assert sum_weights([EVIDENCE_BEYOND_LIMIT] * 3).convicts
    assert sum_weights([EVIDENCE_FRAUDULENT]).convicts


def test_honest_rows_do_not_cover_for_forged_ones() -> None:
    found = sum_weights([EVIDENCE_USUAL] * 10_000 + [EVIDENCE_UNUSUAL] * 12 + [EVIDENCE_USUAL] * 10_000)
    assert found.convicts
    assert (found.most, found.at, found.unusual, found.beyond) == (120, 10_011, 12, 0)


def test_honest_chunks_come_to_a_conviction_as_seldom_as_is_promised() -> None:
    """Three million chunks of which 2 % are unusual stay far below, and each decade is as rare as it says."""
    dice = np.random.default_rng(5)
    steps = np.where(dice.random(3_000_000) < 0.02, EVIDENCE_UNUSUAL, EVIDENCE_USUAL)
    summed = np.concatenate([[0], np.cumsum(steps)])
    heights = summed - np.minimum.accumulate(summed)
    assert heights.max() < 90
    for decades in (2, 3, 4):
        assert (heights >= 10 * decades).mean() < 10.0 ** (1 - decades)


# --- Completions ----------------------------------------------------------------------------------------------------


TWICE = SPAN._replace(own_logprob_error_sum=0.8, own_mantissa_error_mean=0.5)
"""A chunk of 32 tokens that was read twice."""


def make_completion(levels: list[float]) -> Deviation | None:
    """A chunk for each level of noise, in what the reader's own reading has."""
    spans = [TWICE._replace(logprob_error_sum=0.8 * level) for level in levels]
    return compute_noise_deviation(
        spans, [CHUNK._replace(mantissa_error_sum=round(64 * level)) for level in levels], BOUNDS
    )


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
    assert worst.weight == EVIDENCE_NOISE_MAX
    assert sum_weights([worst.weight] * 2).most < EVIDENCE_FRAUDULENT <= sum_weights([worst.weight] * 3).most


def test_short_chunks_say_nothing_about_noise_nor_does_a_text_that_was_read_once() -> None:
    assert compute_noise_deviation([TWICE._replace(tokens=31, logprob_error_sum=31.0)], [CHUNK], BOUNDS) is None
    assert compute_noise_deviation([SPAN._replace(logprob_error_sum=32.0)], [CHUNK], BOUNDS) is None
    assert sum_weights([]).most == 0


def test_in_a_run_that_was_not_calibrated_only_noise_that_is_much_too_large_counts() -> None:
    for level, is_against in ((1.0, False), (1.4, False), (2.5, True)):
        spans = [TWICE._replace(logprob_error_sum=0.8 * level)] * 16
        mark = compute_noise_deviation(spans, [CHUNK._replace(mantissa_error_sum=round(64 * level))] * 16, Tolerance())
        assert mark is not None
        assert (mark.weight > 0) is is_against


def test_a_reading_that_is_as_good_as_exact_makes_nobody_noisy() -> None:
    quiet = SPAN._replace(logprob_error_sum=1e-5, own_logprob_error_sum=1e-6)
    mark = compute_noise_deviation([quiet] * 8, [CHUNK] * 8, BOUNDS)
    assert mark is not None
    assert mark.weight < 0


def test_the_larger_of_both_tests_convicts() -> None:
    weighed = sum_weights([EVIDENCE_UNUSUAL])
    assert (weighed.evidence, weighed.convicts) == (10, False)
    noisy = replace(weighed, noise=EVIDENCE_FRAUDULENT)
    assert (noisy.evidence, noisy.convicts) == (EVIDENCE_FRAUDULENT, True)


def test_honest_completions_come_to_a_conviction_by_noise_as_seldom_as_is_promised() -> None:
    dice = np.random.default_rng(6)
    steps = np.floor(10 / np.log(10) * NOISE_SHIFT * (dice.standard_normal(1_000_000) - NOISE_SHIFT / 2))
    summed = np.concatenate([[0], np.cumsum(np.clip(steps, -EVIDENCE_NOISE_MAX, EVIDENCE_NOISE_MAX))])
    heights = summed - np.minimum.accumulate(summed)
    assert heights.max() < 90
    for decades in (2, 3, 4):
        assert (heights >= 10 * decades).mean() < 10.0 ** (1 - decades)
