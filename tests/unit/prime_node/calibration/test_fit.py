"""Bounds from noise: fresh honest noise stays below them as often as stated, and they are no looser than needed."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prime_coordinator.admin.run_terms import read_terms
from prime_node.calibration.fit import (
    ERROR_FLOOR,
    USUAL_ONE_IN,
    CalibrationTarget,
    bound_count,
    bound_extreme,
    bound_margin_factor,
    bound_mean,
    bound_usual,
    count_quantile,
    fit_margins,
    fit_tolerance,
    round_up,
)
from prime_node.calibration.noise import PairNoise, collect_noise
from prime_node.calibration.report import COLUMNS, list_bounds, list_noise, render_toml
from prime_node.engine.measurement import RowMeasurement, split_spans
from prime_protocol.constants import MARGIN_RATE_MAX
from prime_protocol.errors import LocalError
from prime_protocol.proofs.class_bounds import ClassBounds, EngineClass, PairBounds
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport

Draw = Callable[[np.random.Generator, int], np.ndarray]
ONE_IN_A_THOUSAND = CalibrationTarget(false_rejects=1e-3)
COUNTS: dict[str, Draw] = {
    "poisson": lambda rng, n: rng.poisson(1.2, n),
    "rare": lambda rng, n: rng.poisson(0.002, n),
    "uneven": lambda rng, n: rng.poisson(rng.gamma(2.0, 2.0, n)),
    "many": lambda rng, n: rng.poisson(rng.gamma(20.0, 4.0, n)),
    "binomial": lambda rng, n: rng.binomial(128, 0.02, n),
}
EXTREMES: dict[str, Draw] = {
    "exponential": lambda rng, n: rng.exponential(0.01, n),
    "of normal": lambda rng, n: np.abs(rng.standard_normal((n, 30))).max(axis=1),
    "uniform": lambda rng, n: rng.random(n),
    "heavy": lambda rng, n: rng.pareto(8.0, n),
}


@pytest.mark.parametrize("name", COUNTS)
def test_fresh_counts_exceed_their_bound_no_more_often_than_stated(name: str) -> None:
    rates = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        bound = bound_count(COUNTS[name](rng, 2_000).astype(float), ONE_IN_A_THOUSAND)
        rates.append((COUNTS[name](rng, 100_000) > bound).mean())
    assert np.mean(rates) < 1e-3
    assert np.mean(np.array(rates) > 1e-3) <= 0.1, rates


@pytest.mark.parametrize("name", EXTREMES)
def test_fresh_extremes_exceed_their_bound_no_more_often_than_stated(name: str) -> None:
    rates, ratios = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        bound = bound_extreme(EXTREMES[name](rng, 2_000), np.arange(2_000), ONE_IN_A_THOUSAND)
        fresh = EXTREMES[name](rng, 100_000)
        rates.append((fresh > bound).mean())
        ratios.append(bound / np.quantile(fresh, 1 - 1e-3))
    assert np.mean(rates) < 1e-3
    assert np.mean(np.array(rates) > 1e-3) <= 0.1, rates
    assert np.mean(ratios) < 2, "a bound is no looser than it must be"


def test_chunks_that_go_together_make_a_bound_no_tighter_than_it_may_be() -> None:
    rates = []
    for seed in range(20):
        rng = np.random.default_rng(seed)

        def draw(rows: int, rng: np.random.Generator = rng) -> np.ndarray:
            """Eight chunks each, of completions some of which are noisier than others."""
            return (rng.gumbel(8.0, 1.0, (rows, 8)) * rng.gamma(40.0, 1 / 40, (rows, 1))).ravel()

        owners = np.repeat(np.arange(250), 8)
        bound = bound_extreme(draw(250), owners, ONE_IN_A_THOUSAND)
        rates.append((draw(12_500) > bound).mean())
    assert np.mean(rates) < 1e-3
    assert np.mean(np.array(rates) > 1e-3) <= 0.1, rates


def test_means_of_files_exceed_their_bound_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(3)

    def draw(rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Completions whose tokens are noisy together."""
        tokens = rng.integers(1, 100, rows)
        level = rng.gamma(2.0, 0.001, rows)
        return tokens.astype(float), np.array([rng.exponential(level[n], tokens[n]).sum() for n in range(rows)])

    target = CalibrationTarget(false_rejects=1e-2, file_tokens=1_000)
    bound = bound_mean(*draw(5_000), largest=0.05, target=target)
    above = 0
    for _ in range(500):
        tokens, sums = draw(40)
        above += tokens.sum() >= target.file_tokens and sums.sum() / tokens.sum() > bound
    assert above <= 5
    assert bound < 2 * 0.002


def test_nothing_seen_is_not_nothing_possible() -> None:
    zeros = np.zeros(10_000)
    assert bound_count(zeros, CalibrationTarget(false_rejects=1e-3)) == 0
    assert 1 <= bound_count(zeros, CalibrationTarget(false_rejects=1e-9)) <= 3
    assert bound_extreme(zeros, np.arange(10_000), CalibrationTarget()) == 0.0
    assert bound_extreme(np.array([*zeros, 0.5]), np.arange(10_001), CalibrationTarget()) == 0.5


def test_the_distribution_of_counts_is_the_one_it_says() -> None:
    rng = np.random.default_rng(1)
    drawn = rng.negative_binomial(3, 0.2, 400_000)
    for chance in (0.1, 0.01, 0.001):
        bound = count_quantile(12.0, 60.0, chance)
        assert (drawn > bound).mean() < 1.1 * chance
        assert (drawn > bound - 1).mean() > 0.9 * chance
    assert [count_quantile(2.0, 2.0, chance) for chance in (0.5, 1e-3, 1e-9)] == [2, 8, 15]


def make_row(rng: np.random.Generator, number: int, noise: float) -> RowMeasurement:
    tokens = 320
    chunks = tuple(
        ChunkReport(
            k=128,
            exponent_mismatches=int(rng.poisson(noise)),
            sign_mismatches=0,
            mantissa_error_sum=int(rng.poisson(60 * noise)),
            mantissa_error_median=0,
            decoy_hits=3,
            exponents_seen=4,
            collisions=0,
            leading_zeros=0,
        )
        for _ in range(10)
    )
    errors = rng.exponential(0.01 * noise, tokens)
    margins = rng.exponential(0.02 * noise, tokens) * (rng.random(tokens) < 0.05)
    return RowMeasurement(
        row=number,
        tokens=tokens,
        chunks=chunks,
        proof_problem="",
        spans=tuple(split_spans(margins, errors)),
        margin_max=margins.max(),
        margin_at=0,
        margin_sum=margins.sum(),
        logprob_error_max=errors.max(),
        logprob_error_at=0,
        logprob_error_sum=errors.sum(),
        eos_logprob=-1.0,
    )


def make_noise(pairing: str, noise: float, rows: int = 200) -> PairNoise:
    rng = np.random.default_rng(7)
    return collect_noise(pairing, [make_row(rng, number, noise) for number in range(rows)])


def test_the_worst_pairing_decides_and_short_chunks_are_allowed_for() -> None:
    quiet, loud = make_noise("a → a", 0.1), make_noise("a → b", 1.0)
    alone = fit_tolerance([quiet], CalibrationTarget(), precision=Precision.FLOAT32, hidden=256)
    both = fit_tolerance([quiet, loud], CalibrationTarget(), precision=Precision.FLOAT32, hidden=256)
    assert both == fit_tolerance([loud], CalibrationTarget(), precision=Precision.FLOAT32, hidden=256)
    assert alone.exponent_mismatches_max < both.exponent_mismatches_max
    assert alone.margin_mean_max < both.margin_mean_max < both.margin_max
    assert alone.margin_max >= 2 * alone.logprob_error_max * 0.9, "but for rounding"
    assert both.margin_max == min(2 * both.logprob_error_max, Tolerance().margin_max)
    assert both.mantissa_error_median_max == int(2 * both.mantissa_error_mean_max)
    # One token of a model that is 64 wide has 64 values, so half of what 128 are allowed.
    narrow = fit_tolerance([loud], CalibrationTarget(), precision=Precision.FLOAT32, hidden=64)
    assert narrow.exponent_mismatches_max == 2 * both.exponent_mismatches_max


def test_a_machine_without_noise_gets_the_least_bounds() -> None:
    tolerance = fit_tolerance([make_noise("a → a", 0.0)], CalibrationTarget(), precision=Precision.FLOAT32, hidden=4096)
    assert tolerance.logprob_error_max == ERROR_FLOOR
    assert tolerance.margin_max == 2 * ERROR_FLOOR
    assert 1 <= tolerance.exponent_mismatches_max <= 6
    assert tolerance.mantissa_error_mean_max <= 1.1


def test_few_completions_widen_no_limit_beyond_the_default_unless_what_was_seen_comes_near_it() -> None:
    def draw(scale: float) -> Tolerance:
        """A hundred completions, whose errors have the heaviest tail that is believed."""
        noise, rng = make_noise("a → b", 1.0, rows=100), np.random.default_rng(5)
        errors = scale * rng.pareto(4.0, noise.chunk_logprobs.size)
        loud = replace(noise, chunk_logprobs=errors, chunk_margins=errors / 10)
        assert bound_extreme(errors, noise.owners, CalibrationTarget()) > 4 * errors.max()
        return fit_tolerance([loud], CalibrationTarget(), precision=Precision.BFLOAT16, hidden=256)

    known = Tolerance()
    quiet, loud = draw(0.05), draw(1.0)
    assert (quiet.logprob_error_max, quiet.margin_max) == (known.logprob_error_max, known.margin_max)
    assert known.logprob_error_max < loud.logprob_error_max < 100
    assert known.margin_max < loud.margin_max < loud.logprob_error_max


def test_few_honest_chunks_are_beyond_what_is_usual() -> None:
    rng = np.random.default_rng(3)
    for seen in (1_000, 30_000):
        bound = bound_usual(rng.exponential(1.0, seen), CalibrationTarget())
        assert 0.0 < (rng.exponential(1.0, 300_000) > bound).mean() < 1 / USUAL_ONE_IN
    loud = make_noise("a → b", 1.0)
    found = fit_tolerance(
        [loud, make_noise("a → a", 0.1)], CalibrationTarget(), precision=Precision.FLOAT32, hidden=256
    )
    for name, values in (
        ("exponent_mismatches_usual", loud.exponents),
        ("mantissa_error_mean_usual", loud.mantissa_means),
        ("margin_usual", loud.chunk_margins),
        ("margin_mean_usual", loud.chunk_margin_means),
        ("logprob_error_usual", loud.chunk_logprobs),
        ("logprob_error_mean_usual", loud.chunk_logprob_means),
    ):
        assert (values > getattr(found, name)).mean() <= 1 / USUAL_ONE_IN
        assert getattr(found, name) < 2 * values.max()


def test_margins_are_bounded_so_that_no_bet_gains_and_no_wider() -> None:
    quiet, loud = make_noise("a → a", 0.1), make_noise("a → b", 1.0)
    found = Tolerance(**fit_margins([quiet, loud], CalibrationTarget()))
    assert 0.05 < found.margin_rate < 0.06
    assert 0.02 < found.margin_scale < 0.03
    assert max(bound_margin_factor(noise, found, CalibrationTarget().z) for noise in (quiet, loud)) <= 1
    # Completions of which some are much noisier than others widen both, and machines that never agree end at the most.
    uneven = replace(loud, losers=loud.losers * np.where(np.arange(len(loud.tokens)) % 8, 0.4, 5.2))
    wider = Tolerance(**fit_margins([uneven], CalibrationTarget()))
    assert wider.margin_rate > found.margin_rate
    apart = replace(loud, losers=loud.tokens, margin_sums=loud.tokens)
    assert fit_margins([apart], CalibrationTarget())["margin_rate"] == MARGIN_RATE_MAX


def test_short_answers_have_a_usual_of_their_own_although_no_chunk_is_whole() -> None:
    noise = make_noise("a → a", 1.0)
    short = replace(noise, is_whole=np.zeros_like(noise.is_whole))
    found = fit_tolerance([short], CalibrationTarget(), precision=Precision.BFLOAT16, hidden=64)
    assert (noise.chunk_margins > found.margin_usual).mean() <= 1 / USUAL_ONE_IN
    assert (noise.chunk_logprobs > found.logprob_error_usual).mean() <= 1 / USUAL_ONE_IN


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(LocalError, match="a → a has 500 chunks in 50 completions"):
        fit_tolerance([make_noise("a → a", 1.0, rows=50)], CalibrationTarget(), precision=Precision.FLOAT32, hidden=64)
    broken = make_row(np.random.default_rng(0), 0, 1.0)
    with pytest.raises(LocalError, match="an honest row has proofs that cannot be read: modulus"):
        collect_noise("a → b", [RowMeasurement(**{**as_dict(broken), "proof_problem": "modulus"})])
    for wrong in ({"false_rejects": 0.5}, {"confidence": 1.0}, {"file_tokens": 0}):
        with pytest.raises(LocalError, match=next(iter(wrong))):
            CalibrationTarget(**wrong)


def as_dict(row: RowMeasurement) -> dict[str, object]:
    return {name: getattr(row, name) for name in RowMeasurement.__slots__}


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.0, 0.0), (0.0123, 0.013), (0.013, 0.013), (1.0, 1.0), (9.91, 10.0), (1e9, 100.0)]
)
def test_bounds_are_rounded_up_to_two_digits(value: float, rounded: float) -> None:
    assert round_up(value) == rounded


def test_the_file_is_what_a_run_takes(tmp_path: Path) -> None:
    noises = [make_noise("torch float32 → vllm float32", 1.0)]
    tolerance = fit_tolerance(noises, CalibrationTarget(), precision=Precision.FLOAT32, hidden=64)
    path = tmp_path / "terms.toml"
    pair = PairBounds.of(0, 1, replace(tolerance, margin_max=tolerance.margin_max / 2))
    table = ClassBounds(classes=(EngineClass("a"), EngineClass("b")), pairs=(pair,))
    path.write_text(
        render_toml(
            tolerance, table, CalibrationTarget(), [(noises[0].pair, 2000)], model="a model", at_ms=1_700_000_000_000
        )
    )
    assert tomllib.loads(path.read_text())["tolerance"]["precision"] == "float32"
    flags = {
        "trainer": "0x" + "11" * 20,
        "model": "m",
        "task_set": "sort-digits",
        "vocabulary": "9",
        "units_per_token": "1",
        "model_files": "0x" + "22" * 32,
    }
    terms = read_terms(flags, {}, path, None, is_devnet=False)
    assert (terms.tolerance, terms.class_bounds) == (tolerance, table)
    assert (terms.calibration, terms.calibrated_at_ms) == (
        "a model, float32, 2000 chunks, 1 pairings",
        1_700_000_000_000,
    )
    assert tolerance != Tolerance()


def test_the_tables_name_every_pairing_and_every_bound() -> None:
    noises = [make_noise("a → a", 0.1), make_noise("a → b", 1.0)]
    rows = list_noise(noises)
    assert [row[0] for row in rows] == ["a → a", "a → b"]
    assert all(len(row) == len(COLUMNS) for row in rows)
    tolerance = fit_tolerance(noises, CalibrationTarget(), precision=Precision.FLOAT32, hidden=64)
    seen_twice = {"noise_typical", "noise_spread", "noise_spread_chunk"}
    assert {row[0] for row in list_bounds(tolerance, noises)} == set(Tolerance.__slots__) - {"precision"} - seen_twice
    own = np.full(len(noises[1].exponents), 0.1)
    twice = replace(noises[1], own_logprobs=own, own_mantissas=own)
    assert {row[0] for row in list_bounds(tolerance, [twice])} == set(Tolerance.__slots__) - {"precision"}
