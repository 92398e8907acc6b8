"""Each pair of classes has its own bounds; the default covers all of them, and no pair is wider."""

from dataclasses import replace

import numpy as np
import pytest

from prime_node.calibration.fit import CalibrationTarget
from prime_node.calibration.noise import PairNoise, collect_completion_noise
from prime_node.calibration.table import (
    NOISE_NUMBERS,
    FittedPair,
    build_table,
    combine_pairs,
    fit_pair,
    is_gaining,
    widen_default,
)
from prime_protocol.errors import LocalError
from prime_protocol.proofs.class_bounds import BOUNDED_NUMBERS, EngineClass
from prime_protocol.proofs.tolerance import Precision
from unit.prime_node.calibration.test_fit import make_noise

QUIET, LOUD = EngineClass("a-quiet"), EngineClass("b-loud")
TARGET = CalibrationTarget()


def fit(generating: EngineClass, judging: EngineClass, noise: PairNoise) -> FittedPair:
    return fit_pair(generating, judging, noise, TARGET, precision=Precision.FLOAT32, hidden=64)


def read_twice(noise: PairNoise, level: float) -> PairNoise:
    """As a reader has it that measures in two precisions, with completions of this noise."""
    return replace(
        noise, own_logprobs=noise.chunk_logprob_means / level, own_mantissas=noise.mantissa_means / level + 0.01
    )


def test_a_quiet_pair_has_narrow_bounds_and_the_default_is_the_largest_of_all() -> None:
    noises = [make_noise("quiet", 0.1), make_noise("loud", 1.0)]
    pairs = [fit(QUIET, QUIET, noises[0]), fit(LOUD, QUIET, noises[1])]
    default = widen_default(combine_pairs(pairs), noises, TARGET)
    table = build_table(default, pairs)
    assert table.classes == (QUIET, LOUD)
    quiet, loud = (table.find(name, QUIET, default=default) for name in (QUIET, LOUD))
    assert quiet.logprob_error_max < loud.logprob_error_max <= default.logprob_error_max
    assert quiet.margin_mean_max < loud.margin_mean_max
    assert table.find(None, QUIET, default=default) == default
    for name in BOUNDED_NUMBERS:
        assert getattr(default, name) >= max(getattr(quiet, name), getattr(loud, name))


def test_noise_that_a_reader_did_not_measure_is_the_defaults() -> None:
    once, twice = make_noise("once", 0.1), read_twice(make_noise("twice", 1.0), 1.5)
    assert (once.has_two_readings, twice.has_two_readings) == (False, True)
    pairs = [fit(QUIET, QUIET, once), fit(QUIET, LOUD, twice)]
    default = combine_pairs(pairs)
    assert default.noise_typical == pairs[1].tolerance.noise_typical != 1.0
    table = build_table(default, pairs)
    for judging in (QUIET, LOUD):
        found = table.find(QUIET, judging, default=default)
        assert [getattr(found, name) for name in NOISE_NUMBERS] == [getattr(default, name) for name in NOISE_NUMBERS]


def test_a_default_that_some_pair_would_win_bets_against_is_widened() -> None:
    noise = read_twice(make_noise("loud", 1.0), 1.5)
    fitted = combine_pairs([fit(LOUD, LOUD, noise)])
    rng = np.random.default_rng(1)
    uneven = replace(noise, own_logprobs=noise.own_logprobs * np.repeat(rng.choice([0.5, 2.0], 200), 10))
    narrow = replace(fitted, margin_rate=1e-5, margin_scale=1e-3)
    assert is_gaining(collect_completion_noise(uneven, narrow), narrow, TARGET)
    wide = widen_default(narrow, [noise, uneven], TARGET)
    assert wide.noise_spread > narrow.noise_spread
    assert wide.margin_rate > narrow.margin_rate
    assert widen_default(wide, [noise, uneven], TARGET) == wide
    assert not is_gaining(collect_completion_noise(uneven, wide), wide, TARGET)


def test_too_few_measurements_are_named() -> None:
    with pytest.raises(LocalError, match=r"few has 500 chunks in 50 completions; a fit needs 1000 in 100"):
        fit(QUIET, QUIET, make_noise("few", 1.0, rows=50))
