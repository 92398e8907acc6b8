"""Replayable sampling in numpy: the bits look random, the choices follow softmax, the margins tell who deviated."""

import json
from pathlib import Path

import numpy as np
import pytest

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs import sampling
from prime_protocol.proofs.sampling import (
    compute_gumbel,
    compute_margins,
    compute_row_keys,
    compute_token_bits,
    mix_words,
    sample_tokens,
)
from support.frequencies import SIGMAS_MAX, assert_even, chi_square_sigmas
from support.sampling import gumbel_noise, replay_margin, uniform_bits

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "sampling.json").read_text())
SEED = 0x0123456789ABCDEF
TRIALS = 20_000


def seeds(count: int) -> np.ndarray:
    return np.full(count, SEED, np.uint64)


def word_bits(words: np.ndarray) -> np.ndarray:
    """The share of ones at each of the 32 bits."""
    return np.array([(words >> np.uint32(bit) & np.uint32(1)).mean() for bit in range(32)])


def test_vectors_of_integers_agree() -> None:
    for word, mixed in VECTORS["mix"]:
        assert int(mix_words(np.array([word], np.uint32))[0]) == mixed
    for row in VECTORS["rows"]:
        seed, position = int(row["seed"], 16), row["position"]
        first, second = compute_row_keys(np.array([seed], np.uint64), np.array([position], np.uint32))
        assert (int(first[0]), int(second[0])) == (row["first_key"], row["second_key"])
        assert uniform_bits(seed, position, np.array(row["token_ids"], np.int64)).tolist() == row["bits"]


def test_vectors_of_noise_choices_and_margins_agree() -> None:
    for bits, noise in VECTORS["gumbel"]:
        assert compute_gumbel(np.array([bits], np.uint32))[0] == pytest.approx(noise, abs=1e-12)
    case = VECTORS["completion"]
    logits, start, seed = np.array(case["logits"]), case["start_position"], int(case["seed"], 16)
    for temperature, chosen in case["choices"].items():
        positions = np.arange(start, start + len(logits))
        assert sample_tokens(logits, float(temperature), np.full(3, seed, np.uint64), positions).tolist() == chosen
        margins = replay_margin(logits, np.array(case["tokens"]), seed, start, float(temperature))
        assert margins == pytest.approx(case["margins"][temperature], abs=1e-12)


def test_mix_is_written_out_in_plain_integers() -> None:
    def plain(word: int) -> int:
        word ^= word >> 16
        word = word * 0x21F0AAAD % 2**32
        word ^= word >> 15
        word = word * 0xD35A2D97 % 2**32
        return word ^ word >> 15

    words = np.random.default_rng(1).integers(0, 2**32, 1000, dtype=np.uint32)
    assert [plain(int(word)) for word in words] == mix_words(words.copy()).tolist()


@pytest.mark.parametrize("what", ["seed", "position", "token"])
def test_every_input_bit_flips_half_of_the_output_bits(what: str) -> None:
    dice = np.random.default_rng(2)
    count = 4096
    base = dice.integers(0, 2**64, count, dtype=np.uint64)
    where, token = dice.integers(0, 2**12, count, dtype=np.uint32), dice.integers(0, 2**17, count, dtype=np.uint32)
    before = compute_token_bits(*compute_row_keys(base, where), token)
    for bit in range(64 if what == "seed" else 32):
        flip = np.uint32(1 << bit) if what != "seed" else np.uint64(1 << bit)
        after = compute_token_bits(
            *compute_row_keys(base ^ flip if what == "seed" else base, where ^ flip if what == "position" else where),
            token ^ flip if what == "token" else token,
        )
        # Each share has a standard deviation of 0.5 / 64; 32 of them at up to 64 input bits are looked at.
        assert np.abs(word_bits(before ^ after) - 0.5).max() < 5.5 * 0.5 / 64, f"{what} bit {bit}"


def test_neighbouring_rows_and_tokens_are_not_correlated() -> None:
    bits = compute_token_bits(
        *(key[:, None] for key in compute_row_keys(seeds(64), np.arange(64, dtype=np.uint32))),
        np.arange(4096, dtype=np.uint32),
    )
    uniforms = (bits + 0.5) * 2.0**-32 - 0.5
    for other in (np.roll(uniforms, 1, axis=0), np.roll(uniforms, 1, axis=1), np.roll(uniforms, (1, 1), axis=(0, 1))):
        assert abs((uniforms * other).mean() * 12) < SIGMAS_MAX / uniforms.size**0.5


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bits_are_even_over_tokens_positions_and_seeds(shift: int) -> None:
    ids = np.arange(2**16, dtype=np.uint32)
    one = np.zeros(1, np.uint32)
    for words in (
        uniform_bits(SEED, 9, ids),
        compute_token_bits(*compute_row_keys(seeds(2**16), ids), one + 5),
        compute_token_bits(*compute_row_keys(ids.astype(np.uint64), one), one),
        compute_token_bits(*compute_row_keys(ids.astype(np.uint64) << np.uint64(32), one), one),
    ):
        assert_even(np.bincount(words >> np.uint32(shift) & np.uint32(0xFF), minlength=256).tolist())


def test_rows_have_different_keys() -> None:
    first, second = compute_row_keys(
        np.arange(1000, dtype=np.uint64).repeat(100), np.tile(np.arange(100, dtype=np.uint32), 1000)
    )
    assert len(np.unique(first.astype(np.uint64) << np.uint64(32) | second)) == 100_000


def test_noise_is_finite_at_both_ends() -> None:
    low, high = compute_gumbel(np.array([0, 2**32 - 1], np.uint32))
    assert low == pytest.approx(-3.1300, abs=1e-4)
    assert high == pytest.approx(22.8739, abs=1e-4)


def test_noise_has_the_mean_and_variance_of_gumbel() -> None:
    noise = gumbel_noise(seeds(4), np.arange(4), 100_000)
    assert noise.shape == (4, 100_000)
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.03)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_choices_follow_softmax(temperature: float) -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0, -3.0, 0.5])
    weights = np.exp(logits / temperature)
    tokens = sample_tokens(np.tile(logits, (TRIALS, 1)), temperature, seeds(TRIALS), np.arange(TRIALS))
    counts = np.bincount(tokens, minlength=len(logits))
    sigmas = chi_square_sigmas(counts.tolist(), (TRIALS * weights / weights.sum()).tolist())
    assert abs(sigmas) < SIGMAS_MAX


def test_choices_follow_softmax_over_seeds_at_one_position() -> None:
    logits = np.linspace(0, 3, 8)
    many = np.random.default_rng(3).integers(0, 2**64, TRIALS, dtype=np.uint64)
    counts = np.bincount(
        sample_tokens(np.tile(logits, (TRIALS, 1)), 1.0, many, np.zeros(TRIALS, np.int64)), minlength=8
    )
    weights = np.exp(logits)
    assert abs(chi_square_sigmas(counts.tolist(), (TRIALS * weights / weights.sum()).tolist())) < SIGMAS_MAX


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("vocab_size", [1, 7, 3000])
def test_pruned_choice_and_margin_equal_the_full_computation(scale: float, vocab_size: int) -> None:
    dice = np.random.default_rng(4)
    logits = (dice.normal(size=(50, vocab_size)) * scale).astype(np.float32)
    where, tokens = np.arange(50), dice.integers(0, vocab_size, 50)
    totals = logits.astype(np.float64) / 0.8 + gumbel_noise(seeds(50), where, vocab_size)
    assert sample_tokens(logits, 0.8, seeds(50), where).tolist() == totals.argmax(axis=1).tolist()
    wanted = totals.max(axis=1) - totals[np.arange(50), tokens]
    assert compute_margins(logits, tokens, seeds(50), where, 0.8) == pytest.approx(wanted, abs=1e-9)


def test_chunks_of_rows_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(5).normal(size=(20, 100))
    tokens = np.arange(20)
    whole = replay_margin(logits, tokens, SEED, 3, 1.0)
    monkeypatch.setattr(sampling, "CHUNK_ELEMENTS", 300)
    assert replay_margin(logits, tokens, SEED, 3, 1.0).tolist() == whole.tolist()
    assert sample_tokens(logits, 1.0, seeds(20), tokens + 3)[whole == 0].tolist() == tokens[whole == 0].tolist()


def test_honest_completion_has_no_margin_and_another_seed_has_one() -> None:
    logits = np.random.default_rng(6).normal(size=(200, 500)) * 3
    tokens = sample_tokens(logits, 1.0, seeds(200), np.arange(200))
    assert not replay_margin(logits, tokens, SEED, 0, 1.0).any()
    assert replay_margin(logits, tokens, SEED + 1, 0, 1.0).mean() > 0.5
    assert replay_margin(logits[50:], tokens[50:], SEED, 50, 1.0).max() == 0
    assert replay_margin(logits[50:], tokens[50:], SEED, 0, 1.0).max() > 0


def test_small_numeric_noise_gives_small_margins() -> None:
    dice = np.random.default_rng(7)
    logits = dice.normal(size=(500, 500)) * 3
    tokens = sample_tokens(logits, 1.0, seeds(500), np.arange(500))
    margins = replay_margin(logits + dice.normal(size=logits.shape) * 0.01, tokens, SEED, 0, 1.0)
    assert margins.min() >= 0
    assert margins.max() < 0.1


def test_temperature_zero_is_greedy_and_its_margin_is_in_logits() -> None:
    logits = np.array([[1.0, 4.0, 4.0], [3.0, 2.0, 0.5]], np.float32)
    assert sample_tokens(logits, 0, seeds(2), np.arange(2)).tolist() == [1, 0]
    assert replay_margin(logits, np.array([0, 2]), SEED, 0, 0).tolist() == [3.0, 2.5]


def test_empty_completion_has_no_margins() -> None:
    assert replay_margin(np.zeros((0, 5)), np.zeros(0, np.int64), SEED, 0, 1.0).shape == (0,)


@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_our_fault(hole: float, temperature: float) -> None:
    logits = np.zeros((2, 4))
    logits[1, 2] = hole
    with pytest.raises(LocalError, match="finite"):
        replay_margin(logits, np.zeros(2, np.int64), SEED, 0, temperature)
    with pytest.raises(LocalError, match="finite"):
        sample_tokens(logits, temperature, seeds(2), np.arange(2))


@pytest.mark.parametrize("temperature", [-1.0, 1e-9, 1e9, float("nan"), float("inf")])
def test_temperature_out_of_range_is_refused(temperature: float) -> None:
    with pytest.raises(LocalError, match="temperature"):
        sample_tokens(np.zeros((1, 4)), temperature, seeds(1), np.arange(1))


@pytest.mark.parametrize("token", [-1, 4])
def test_token_outside_the_vocabulary_is_the_workers_fault(token: int) -> None:
    with pytest.raises(RemoteError, match="output_tokens"):
        replay_margin(np.zeros((1, 4)), np.array([token]), SEED, 0, 1.0)
