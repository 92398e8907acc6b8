"""Noise of completions: honest ones keep the bet below 1, and those that are steadily noisier are seen within eight."""

from dataclasses import replace

import numpy as np

from prime_node.calibration_noise import Completions, bound_bet, fit_noise, gather, see_spread, widen
from prime_node.engine.measuring import RowNumbers
from prime_protocol.constants import WEIGHT_CONVICTS
from prime_protocol.tolerance import Tolerance
from prime_protocol.toploc_verify import ChunkReport
from prime_protocol.weighing import Span, mark_noise, weigh_noise

Z = 1.645
ROW = RowNumbers(
    row=0,
    tokens=32,
    chunks=(),
    proof_problem="",
    spans=(),
    margin_max=0.0,
    margin_at=0,
    margin_sum=0.0,
    logprob_error_max=0.0,
    logprob_error_at=0,
    logprob_error_sum=0.0,
    eos_logprob=-1.0,
)


def draw(seed: int, rows: int, *, level: float = 1.0, text: float = 0.02, chunk: float = 0.09) -> list[RowNumbers]:
    """Completions of 1 to 32 chunks of texts of any noise, whose author is as noisy as the reader but for the dice."""
    dice = np.random.default_rng(seed)
    drawn = []
    for count in dice.integers(1, 33, rows):
        own = dice.uniform(0.8, 1.3) * (1 + dice.normal(0, 0.1, count))
        noise = level * own * (1 + dice.normal(0, text) + dice.normal(0, chunk, (2, count)) * 2**0.5)
        spans = [
            Span(32, 0.0, 0, 0.0, 0.0, 0, 32 * 0.007 * one, 32 * 0.007 * mine, 0.57 * mine)
            for one, mine in zip(noise[0], own, strict=True)
        ]
        reports = [ChunkReport(1280, 0, 0, round(1280 * 0.57 * one), 0, 1, 10, 0, 0) for one in noise[1]]
        drawn.append(replace(ROW, tokens=32 * int(count), spans=tuple(spans), chunks=tuple(reports)))
    return drawn


def judge(rows: list[RowNumbers], tolerance: Tolerance) -> list[int]:
    """The evidence of each file of eight completions."""
    marks = [mark for row in rows if (mark := mark_noise(row.spans, row.chunks, tolerance)) is not None]
    assert len(marks) == len(rows)
    return [weigh_noise(marks[start : start + 8]) for start in range(0, len(marks), 8)]


def test_honest_files_stay_far_below_and_noise_that_never_stands_out_is_seen() -> None:
    tolerance = Tolerance(**fit_noise([gather(draw(1, 600), Tolerance())], z=Z))
    assert 1.0 <= tolerance.noise_typical <= 1.02
    assert 0.015 < tolerance.noise_spread < 0.03
    assert 0.08 < tolerance.noise_spread_chunk < 0.12
    assert max(judge(draw(2, 800), tolerance)) < WEIGHT_CONVICTS / 2
    assert min(judge(draw(3, 400, level=1.25), tolerance)) >= WEIGHT_CONVICTS


def test_all_pairings_keep_the_bet_whichever_is_the_noisiest() -> None:
    quiet, loud, uneven = (
        gather(draw(seed, 300, level=level, text=text), Tolerance())
        for seed, level, text in ((4, 0.6, 0.02), (5, 1.0, 0.02), (6, 0.98, 0.08))
    )
    found = fit_noise([quiet, loud, uneven], z=Z)
    for each in (quiet, loud, uneven):
        assert bound_bet(each, found["noise_typical"], found["noise_spread"], found["noise_spread_chunk"], Z) <= 1
    assert found["noise_spread"] > fit_noise([loud], z=Z)["noise_spread"]


def test_fresh_completions_keep_the_bet_however_few_were_measured() -> None:
    fresh = gather(draw(999, 1_500), Tolerance())
    for rows in (100, 400):
        for seed in range(4):
            found = fit_noise([gather(draw(seed, rows), Tolerance())], z=Z)
            assert bound_bet(fresh, found["noise_typical"], found["noise_spread"], found["noise_spread_chunk"], 0.0) < 1


def test_a_tail_that_is_heavier_than_normal_widens_the_spread() -> None:
    dice = np.random.default_rng(8)
    light = Completions(1 + 0.05 * dice.standard_normal(5_000), np.full(5_000, 8.0), 0.0)
    heavy = replace(light, noise=1 + 0.05 * dice.standard_t(4, 5_000) / np.sqrt(2))
    assert widen([heavy], 1.0, Z)[0] > 1.1 * widen([light], 1.0, Z)[0]
    assert see_spread([light])[1] == 0


def test_texts_that_were_read_once_say_nothing() -> None:
    once = [
        replace(
            row,
            spans=tuple(span._replace(own_logprob_error_sum=0.0, own_mantissa_error_mean=0.0) for span in row.spans),
        )
        for row in draw(9, 10)
    ]
    assert len(gather(once, Tolerance()).noise) == 0
    assert fit_noise([gather(once, Tolerance())], z=Z) == {}
