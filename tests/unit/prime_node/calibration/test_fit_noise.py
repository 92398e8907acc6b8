"""Noise of completions: honest ones keep the bet below 1, and those that are steadily noisier are seen within eight."""

from dataclasses import replace

import numpy as np

from prime_node.calibration.fit import bound_evidence_factor, fit_noise, measure_spread, widen_spread
from prime_node.calibration.noise import CompletionNoise, collect_completion_noise, collect_noise
from prime_node.engine.measurement import RowMeasurement
from prime_protocol.constants import EVIDENCE_FRAUDULENT
from prime_protocol.proofs.evidence import Deviation, EvidenceCounter, ReplayedChunk, compute_noise_deviation
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport

Z = 1.645
ROW = RowMeasurement(
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


def draw(seed: int, rows: int, *, level: float = 1.0, text: float = 0.02, chunk: float = 0.09) -> list[RowMeasurement]:
    """Completions of 1 to 32 chunks of texts of any noise, whose author is as noisy as the reader but for the dice."""
    rng = np.random.default_rng(seed)
    drawn = []
    for count in rng.integers(1, 33, rows):
        own = rng.uniform(0.8, 1.3) * (1 + rng.normal(0, 0.1, count))
        noise = level * own * (1 + rng.normal(0, text) + rng.normal(0, chunk, (2, count)) * 2**0.5)
        spans = [
            ReplayedChunk(32, 0.0, 0, 0.0, 0.0, 0, 32 * 0.007 * one, 32 * 0.007 * mine, 0.57 * mine)
            for one, mine in zip(noise[0], own, strict=True)
        ]
        reports = [ChunkReport(1280, 0, 0, round(1280 * 0.57 * one), 0, 1, 10, 0, 0) for one in noise[1]]
        drawn.append(replace(ROW, tokens=32 * int(count), spans=tuple(spans), chunks=tuple(reports)))
    return drawn


def collect(rows: list[RowMeasurement]) -> CompletionNoise:
    return collect_completion_noise(collect_noise("a → b", rows), Tolerance())


def judge(rows: list[RowMeasurement], tolerance: Tolerance) -> list[int]:
    """The evidence of each file of eight completions."""
    marks = [mark for row in rows if (mark := compute_noise_deviation(row.spans, row.chunks, tolerance)) is not None]
    assert len(marks) == len(rows)
    return [sum_file(marks[start : start + 8]) for start in range(0, len(marks), 8)]


def sum_file(marks: list[Deviation]) -> int:
    """The largest sum over the completions of a file."""
    counter = EvidenceCounter()
    for mark in marks:
        counter.add(mark.weight)
    return counter.sum().most


def test_honest_files_stay_far_below_and_noise_that_never_stands_out_is_seen() -> None:
    tolerance = Tolerance(**fit_noise([collect(draw(1, 600))], z=Z))
    assert 1.0 <= tolerance.noise_typical <= 1.02
    assert 0.015 < tolerance.noise_spread < 0.03
    assert 0.08 < tolerance.noise_spread_chunk < 0.12
    assert max(judge(draw(2, 800), tolerance)) < EVIDENCE_FRAUDULENT / 2
    assert min(judge(draw(3, 400, level=1.25), tolerance)) >= EVIDENCE_FRAUDULENT


def test_all_pairings_keep_the_bet_whichever_is_the_noisiest() -> None:
    quiet, loud, uneven = (
        collect(draw(seed, 300, level=level, text=text))
        for seed, level, text in ((4, 0.6, 0.02), (5, 1.0, 0.02), (6, 0.98, 0.08))
    )
    found = fit_noise([quiet, loud, uneven], z=Z)
    for each in (quiet, loud, uneven):
        assert (
            bound_evidence_factor(each, found["noise_typical"], found["noise_spread"], found["noise_spread_chunk"], Z)
            <= 1
        )
    assert found["noise_spread"] > fit_noise([loud], z=Z)["noise_spread"]


def test_fresh_completions_keep_the_bet_however_few_were_measured() -> None:
    fresh = collect(draw(999, 1_500))
    for rows in (100, 400):
        for seed in range(4):
            found = fit_noise([collect(draw(seed, rows))], z=Z)
            assert (
                bound_evidence_factor(
                    fresh, found["noise_typical"], found["noise_spread"], found["noise_spread_chunk"], 0.0
                )
                < 1
            )


def test_a_tail_that_is_heavier_than_normal_widens_the_spread() -> None:
    rng = np.random.default_rng(8)
    light = CompletionNoise(1 + 0.05 * rng.standard_normal(5_000), np.full(5_000, 8.0), 0.0)
    heavy = replace(light, noise=1 + 0.05 * rng.standard_t(4, 5_000) / np.sqrt(2))
    assert widen_spread([heavy], 1.0, Z)[0] > 1.1 * widen_spread([light], 1.0, Z)[0]
    assert measure_spread([light])[1] == 0


def test_texts_that_were_read_once_say_nothing() -> None:
    once = [
        replace(
            row,
            spans=tuple(span._replace(own_logprob_error_sum=0.0, own_mantissa_error_mean=0.0) for span in row.spans),
        )
        for row in draw(9, 10)
    ]
    assert len(collect(once).noise) == 0
    assert fit_noise([collect(once)], z=Z) == {}
