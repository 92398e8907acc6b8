"""Margins by how likely honest noise makes them: honest completions win no bet, and chosen tokens lose all of them."""

import math

import numpy as np
import pytest

from prime_protocol.constants import (
    EVIDENCE_FRAUDULENT,
    EVIDENCE_MARGIN_MAX,
    EVIDENCE_UNLIKELY,
    MARGIN_BETS,
)
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.margin_noise import (
    MarginCounter,
    compute_bets,
    compute_edit_weight,
    compute_margin_deviation,
    compute_surprise,
)
from prime_protocol.proofs.tolerance import Tolerance

CALIBRATED = Tolerance(margin_rate=0.003, margin_scale=0.012)
"""What calibration of a tiny model in bfloat16 gave."""


def complete(tokens: int, *margins: float) -> list[ReplayedChunk]:
    """A completion whose losing tokens have these margins."""
    return [ReplayedChunk(tokens, max(margins, default=0.0), 0, sum(margins), 0.0, 0, 0.0, losers=len(margins))]


def draw(seed: int, rows: int, tokens: int, tolerance: Tolerance, times: float = 1.0) -> list[list[ReplayedChunk]]:
    """Completions as noisy as the bounds allow, or so many times noisier."""
    rng = np.random.default_rng(seed)
    losers = rng.binomial(tokens, times * tolerance.margin_rate, rows)
    return [complete(tokens, *rng.exponential(times * tolerance.margin_scale, count)) for count in losers]


def count(completions: list[list[ReplayedChunk]], tolerance: Tolerance) -> MarginCounter:
    counter = MarginCounter(tolerance)
    for spans in completions:
        counter.add(spans)
    return counter


def judge(completions: list[list[ReplayedChunk]], tolerance: Tolerance) -> int:
    return count(completions, tolerance).sum_file()


def test_the_surprise_of_a_completion_is_the_sum_over_its_losing_tokens() -> None:
    one = compute_surprise(1, 0.024, CALIBRATED)
    assert one == pytest.approx(-math.log10(0.003 * math.exp(-2)))
    assert compute_surprise(2, 0.048, CALIBRATED) == pytest.approx(2 * one)
    assert compute_surprise(0, 0.0, CALIBRATED) == 0


@pytest.mark.parametrize("tokens", [1, 6, 32, 400])
@pytest.mark.parametrize("tolerance", [Tolerance(), CALIBRATED, Tolerance(margin_rate=0.3, margin_scale=1.0)])
def test_no_bet_gains_on_honest_noise_at_the_bounds(tokens: int, tolerance: Tolerance) -> None:
    rows = draw(tokens, 4_000, tokens, tolerance)
    bets = [compute_bets(tokens, spans[0].losers, spans[0].margin_sum, tolerance) for spans in rows]
    for number in range(len(MARGIN_BETS)):
        values = 10 ** np.array([bet[number] for bet in bets])
        assert values.mean() - 3 * values.std() / math.sqrt(len(values)) <= 1.001
    edits = 10 ** (np.array([compute_edit_weight(bet) for bet in bets]) / 10)
    assert edits.mean() < 1


@pytest.mark.parametrize("tokens", [6, 400])
def test_honest_files_stay_below_what_is_paid(tokens: int) -> None:
    for tolerance in (Tolerance(), CALIBRATED):
        most = max(judge(draw(seed, 64, tokens, tolerance), tolerance) for seed in range(40))
        assert most < EVIDENCE_UNLIKELY / 2


@pytest.mark.parametrize("tokens", [6, 30])
def test_chosen_tokens_in_a_quarter_of_short_answers_convict_although_each_loses_by_little(tokens: int) -> None:
    """A margin of 0.2 is a fifth of the limit for one token; the sum over 64 answers is not noise."""
    honest = draw(1, 48, tokens, CALIBRATED)
    assert judge(honest + [complete(tokens, 0.12, 0.08)] * 16, CALIBRATED) >= EVIDENCE_FRAUDULENT
    spread = [
        row for number in range(16) for row in (complete(tokens, 0.12, 0.08), *honest[3 * number : 3 * number + 3])
    ]
    assert judge(spread, CALIBRATED) >= EVIDENCE_FRAUDULENT
    assert judge(honest + [complete(tokens, 0.12)] * 2, CALIBRATED) < EVIDENCE_UNLIKELY
    assert judge([complete(tokens, 0.4, 0.3)] * 16 + [complete(tokens)] * 48, Tolerance()) >= EVIDENCE_FRAUDULENT


def test_one_chosen_token_in_each_long_answer_convicts() -> None:
    rows = [
        [*complete(400, *(span.margin_sum for span in spans)), *complete(1, 0.3)]
        for spans in draw(2, 16, 1, CALIBRATED)
    ]
    assert judge(rows, CALIBRATED) >= EVIDENCE_FRAUDULENT


def test_noise_that_is_steadily_larger_is_found_in_a_long_file_and_no_single_completion_stands_out() -> None:
    rows = draw(3, 64, 400, CALIBRATED, times=1.8)
    assert max(compute_margin_deviation(spans, CALIBRATED).weight for spans in rows) < EVIDENCE_MARGIN_MAX
    assert judge(rows, CALIBRATED) >= EVIDENCE_FRAUDULENT


def test_a_completion_weighs_no_more_than_calibration_can_verify() -> None:
    most = EVIDENCE_MARGIN_MAX / 10
    assert compute_bets(6, 6, 600.0, CALIBRATED)[-1] == most
    assert compute_bets(10_000, 0, 0.0, CALIBRATED)[-1] == -most
    assert judge([complete(6, *[50.0] * 6)] * 2, CALIBRATED) < EVIDENCE_UNLIKELY
    assert judge([complete(6, *[50.0] * 6)] * 3, CALIBRATED) >= EVIDENCE_UNLIKELY
    assert judge([complete(6, *[50.0] * 6)] * 5, CALIBRATED) >= EVIDENCE_FRAUDULENT


def test_a_completion_is_marked_with_its_surprise_and_what_is_typical() -> None:
    mark = compute_margin_deviation(complete(32, 0.12), CALIBRATED)
    assert (mark.check, mark.weight > 0) == ("margin_sum", True)
    assert mark.value == pytest.approx(compute_surprise(1, 0.12, CALIBRATED))
    assert mark.bound == pytest.approx(32 * 0.003 * compute_surprise(1, 0.012, CALIBRATED))
    assert compute_margin_deviation(complete(32), CALIBRATED).weight == -1


def test_more_completions_never_lower_the_test_of_edits_and_honest_ones_lower_the_bets() -> None:
    """So reading may stop where the first convicts, and the bets are taken over whole files."""
    edited, honest = [complete(6, *[50.0] * 6)] * 7, [complete(6)] * 400
    assert count(edited, CALIBRATED).sum_edits() >= EVIDENCE_FRAUDULENT
    assert count(edited + honest, CALIBRATED).sum_edits() == count(edited, CALIBRATED).sum_edits()
    for before, after in zip(
        count(edited, CALIBRATED).sum_bets(), count(edited + honest, CALIBRATED).sum_bets(), strict=True
    ):
        assert after <= before
    assert min(count(honest, CALIBRATED).sum_bets()) < 0 == max(count(honest, CALIBRATED).sum_bets())
    assert count(honest, CALIBRATED).sum_edits() == 0
