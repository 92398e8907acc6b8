"""Tensors get the bits that arrays get, and the same choices and margins."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs import sampling
from prime_protocol.proofs.sampling_torch import compute_gumbel_torch, mix_words_torch, uniform_bits_torch
from support.sampling import gumbel_noise, replay_margin, to_signed_seed

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "sampling.json").read_text())
SEED = 0xFEDCBA9876543210
DICE = np.random.default_rng(8)


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    return DICE.integers(0, 2**64, count, dtype=np.uint64), DICE.integers(0, 2**32, count, dtype=np.uint32)


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64))


def test_vectors_agree() -> None:
    for word, mixed in VECTORS["mix"]:
        assert int(mix_words_torch(torch.tensor([word]))) == mixed
    for row in VECTORS["rows"]:
        seed, position = torch.tensor([to_signed_seed(int(row["seed"], 16))]), torch.tensor([row["position"]])
        assert uniform_bits_torch(seed, position, torch.tensor(row["token_ids"])).tolist() == row["bits"]


def test_bits_of_millions_of_tokens_equal_numpys() -> None:
    seeds, positions = rows(20)
    first, second = sampling.compute_row_keys(seeds, positions)
    words = sampling.compute_token_bits(first[:, None], second[:, None], np.arange(150_000, dtype=np.uint32))
    ours = uniform_bits_torch(tensor(seeds)[:, None], tensor(positions)[:, None], torch.arange(150_000))
    assert np.array_equal(ours.numpy(), words)


def test_bits_of_random_inputs_equal_numpys() -> None:
    seeds, positions = rows(500_000)
    tokens = DICE.integers(0, 2**32, len(seeds), dtype=np.uint32)
    words = sampling.compute_token_bits(*sampling.compute_row_keys(seeds, positions), tokens)
    assert np.array_equal(uniform_bits_torch(tensor(seeds), tensor(positions), tensor(tokens)).numpy(), words)


def test_noise_differs_from_numpys_in_the_last_places_only() -> None:
    seeds, positions = rows(10)
    bits = uniform_bits_torch(tensor(seeds)[:, None], tensor(positions)[:, None], torch.arange(50_000))
    ours = compute_gumbel_torch(bits).numpy()
    assert np.abs(ours - gumbel_noise(seeds, positions, 50_000)).max() < 1e-13


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_choices_and_margins_equal_numpys(temperature: float, dtype: torch.dtype) -> None:
    seeds, positions = rows(60)
    logits = (torch.from_numpy(DICE.normal(size=(60, 700))) * 3).to(dtype)
    array = logits.double().numpy()
    tokens = sampling.sample_tokens(logits, temperature, tensor(seeds), tensor(positions))
    # Equal bf16 logits are common; at temperature 0 torch may name any of the equals, so scores are compared.
    best = sampling.compute_margins(array, tokens.numpy(), seeds, positions, temperature)
    assert best.max() < 1e-12
    guesses = torch.from_numpy(DICE.integers(0, 700, 60))
    margins = sampling.compute_margins(logits, guesses, tensor(seeds), tensor(positions), temperature)
    assert margins.dtype == torch.float64
    wanted = sampling.compute_margins(array, guesses.numpy(), seeds, positions, temperature)
    assert margins.numpy() == pytest.approx(wanted, abs=1e-12)


def test_one_completion_replays_like_its_rows() -> None:
    logits = torch.from_numpy(DICE.normal(size=(30, 50)))
    tokens = torch.arange(30)
    margins = replay_margin(logits, tokens, SEED, 11, 1.0)
    wanted = replay_margin(logits.numpy(), tokens.numpy(), SEED, 11, 1.0)
    assert margins.numpy() == pytest.approx(wanted, abs=1e-12)
    assert replay_margin(logits[:0], tokens[:0], SEED, 0, 1.0).shape == (0,)


def test_tensors_are_refused_for_the_same_reasons() -> None:
    logits = torch.zeros(2, 4)
    with pytest.raises(RemoteError, match="output_tokens"):
        replay_margin(logits, torch.tensor([0, 4]), SEED, 0, 1.0)
    with pytest.raises(LocalError, match="temperature"):
        sampling.sample_tokens(logits, -1.0, torch.zeros(2, dtype=torch.int64), torch.arange(2))
    logits[1, 1] = float("nan")
    with pytest.raises(LocalError, match="finite"):
        replay_margin(logits, torch.tensor([0, 0]), SEED, 0, 0.0)
