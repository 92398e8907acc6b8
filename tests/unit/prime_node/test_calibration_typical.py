"""Typical noise: honest completions keep the bet below 1, and those that are steadily noisier are seen within eight."""

from dataclasses import replace

import numpy as np
import pytest

from prime_node.calibration_typical import SPREAD_FLOOR, Chunks, Completions, bound_bet, fit_typical, gather, widen
from prime_protocol.constants import NOISE_SHIFT, TOLERANCE_NUMBER_MAX, WEIGHT_CONVICTS
from prime_protocol.tolerance import Tolerance
from prime_protocol.toploc_verify import ChunkReport
from prime_protocol.weighing import Span, mark_noise, weigh_noise

Z = 1.645
FLOORS = {"mantissa_floor": 0.05, "logprob_floor": 1e-5, "z": Z}


def draw(seed: int, rows: int, *, level: float = 1.0, text: float = 0.06, chunk: float = 0.15) -> Chunks:
    """Completions of 1 to 32 chunks, some noisier than others, both numbers noisy together."""
    dice = np.random.default_rng(seed)
    counts = dice.integers(1, 33, rows)
    noise = level * (1 + np.repeat(dice.normal(0, text, rows), counts) + dice.normal(0, chunk, counts.sum()))
    return Chunks(np.repeat(np.arange(rows), counts), 0.57 * noise, 0.007 * noise)


def judge(chunks: Chunks, tolerance: Tolerance) -> list[int]:
    """The evidence of each file of eight completions."""
    marks = []
    for row in np.unique(chunks.rows):
        here = chunks.rows == row
        spans = [Span(32, 0.0, 0, 0.0, 0.0, 0, 32 * error) for error in chunks.logprobs[here]]
        reports = [ChunkReport(128, 0, 0, round(128 * error), 0, 1, 10, 0, 0) for error in chunks.mantissas[here]]
        mark = mark_noise(spans, reports, tolerance)
        assert mark is not None
        marks.append(mark)
    return [weigh_noise(marks[start : start + 8]) for start in range(0, len(marks), 8)]


def test_honest_files_stay_far_below_and_noise_that_never_stands_out_is_seen() -> None:
    tolerance = Tolerance(**fit_typical([draw(1, 2_000)], **FLOORS))
    assert tolerance.logprob_error_mean_typical == pytest.approx(0.007, rel=0.01)
    assert 0.06 <= tolerance.noise_spread < 0.08
    assert 0.15 <= tolerance.noise_spread_chunk < 0.19
    assert max(judge(draw(2, 4_000), tolerance)) < WEIGHT_CONVICTS / 2
    assert min(judge(draw(3, 800, level=1.4), tolerance)) >= WEIGHT_CONVICTS


def test_all_pairings_keep_the_bet_whichever_is_the_noisiest() -> None:
    quiet, loud, uneven = draw(4, 1_000, level=0.4), draw(5, 1_000), draw(6, 1_000, level=0.95, text=0.2)
    found = fit_typical([quiet, loud, uneven], **FLOORS)
    for chunks in (quiet, loud, uneven):
        completions = gather(
            chunks, mantissa=found["mantissa_error_mean_typical"], logprob=found["logprob_error_mean_typical"]
        )
        assert bound_bet(completions, found["noise_spread"], found["noise_spread_chunk"], Z) <= 1
    assert found["noise_spread"] > fit_typical([loud], **FLOORS)["noise_spread"]


def test_fresh_completions_keep_the_bet_however_few_were_measured() -> None:
    fresh = draw(999, 5_000)
    for rows in (100, 1_000):
        for seed in range(8):
            found = fit_typical([draw(seed, rows)], **FLOORS)
            completions = gather(
                fresh, mantissa=found["mantissa_error_mean_typical"], logprob=found["logprob_error_mean_typical"]
            )
            assert bound_bet(completions, found["noise_spread"], found["noise_spread_chunk"], 0.0) < 1


def test_a_tail_that_is_heavier_than_normal_widens_the_spread() -> None:
    dice = np.random.default_rng(8)
    light = Completions(1 + 0.05 * dice.standard_normal(5_000), np.full(5_000, 8.0), 0.0)
    heavy = replace(light, noise=1 + 0.05 * dice.standard_t(4, 5_000) / np.sqrt(2))
    assert widen([heavy], Z)[0] > 1.1 * widen([light], Z)[0]


def test_noise_below_the_floors_and_no_noise_at_all_convict_nobody() -> None:
    silent = Chunks(np.arange(100), np.zeros(100), np.zeros(100))
    found = fit_typical([silent], **FLOORS)
    assert (found["mantissa_error_mean_typical"], found["logprob_error_mean_typical"]) == (0.05, 1e-5)
    assert found["noise_spread"] == SPREAD_FLOOR
    nothing = fit_typical([Chunks(np.arange(0), np.zeros(0), np.zeros(0))], **FLOORS)
    assert nothing["noise_spread"] == TOLERANCE_NUMBER_MAX
    assert NOISE_SHIFT > 0
