"""Claims about sampling in the torch engine: C, numpy and tensors find the same winners, margins and log-probs."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from prime_node.engine.native import library
from prime_node.engine.torch.draws import Draws, Sampler
from prime_node.engine.torch.sampling import (
    LOGPROB_MIN,
    NEAR_MAX,
    NumpySampler,
    TorchSampler,
    check_scores,
    choose_sampler,
    choose_tokens,
    compute_scores,
    get_token_logprobs,
    scan_with_numpy,
)
from prime_protocol.errors import LocalError
from prime_protocol.proofs.sampling import compute_margins, sample_tokens
from support.logits import CASES, make_draws

DICE = np.random.default_rng(0)
LOGITS = torch.from_numpy(DICE.normal(size=(40, 300)).astype(np.float32) * 3)
DRAWS = Draws(0.7, DICE.integers(0, 2**64, 40, dtype=np.uint64), np.arange(40, dtype=np.int64))
SAMPLERS = {"native": NumpySampler, "torch": TorchSampler}


def test_the_native_kernel_is_built_here() -> None:
    assert library("draws") is not None


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_winners_and_margins_are_bit_by_bit_those_of_the_reference(sampler: str, name: str) -> None:
    array, temperature = CASES[name]()
    draws, tokens = make_draws(len(array), temperature), np.arange(len(array)) * 7919 % array.shape[1]
    scan = SAMPLERS[sampler]().scan(torch.from_numpy(array), draws).fetch()
    assert scan[0].tolist() == sample_tokens(array, temperature, draws.seeds, draws.positions).tolist()
    assert not scan[1].any(), "the margin of the winner"
    scan = SAMPLERS[sampler]().scan(torch.from_numpy(array), draws, torch.from_numpy(tokens)).fetch()
    wanted = compute_margins(array, tokens, draws.seeds, draws.positions, temperature)
    # The logarithms of torch may differ from numpy's in the last place.
    assert scan[1] == pytest.approx(
        wanted, rel=0, abs=0 if sampler == "native" else 1e-12 + 1e-15 * np.abs(wanted).max()
    )
    plain = (torch.from_numpy(array).double() / (temperature or 1.0)).log_softmax(dim=1)
    wanted = plain.gather(1, torch.from_numpy(tokens)[:, None])[:, 0].clamp(max=0.0).numpy()
    assert scan[2] == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_a_machine_without_a_compiler_gives_the_same() -> None:
    array, temperature = CASES["peaked"]()
    draws = make_draws(len(array), temperature)
    scan = NumpySampler().scan(torch.from_numpy(array), draws).fetch()
    winners, best, tops, sums = scan_with_numpy(array, draws)
    assert scan[0].tolist() == winners.tolist()
    assert scan[3] == pytest.approx(tops / temperature)
    assert scan[4] == pytest.approx(np.log(sums), abs=1e-6)
    assert (best >= tops / temperature - 10).all()
    wide = NumpySampler().scan(torch.from_numpy(array.astype(np.float64)), draws).fetch()
    assert wide[:3] == pytest.approx(scan[:3], abs=1e-6)


def test_a_row_of_which_many_tokens_can_win_is_left_to_numpy() -> None:
    array = np.random.default_rng(1).normal(size=(3, 5000)).astype(np.float32)
    array[1] = 3e38
    draws = make_draws(3, 1.0)
    assert (array[1] == array[1].max()).sum() > NEAR_MAX
    assert choose_tokens(torch.from_numpy(array), draws)[0][1] == 0, "of equal ones the lowest"


def test_log_probs_are_of_what_was_drawn_from() -> None:
    tokens, logprobs = choose_tokens(LOGITS, DRAWS)
    wanted = (LOGITS.double() / 0.7).log_softmax(dim=1)[torch.arange(40), torch.tensor(tokens)]
    assert np.abs(wanted.numpy() - logprobs).max() < 1e-5
    assert np.abs(get_token_logprobs(LOGITS, torch.tensor(tokens), 0.7).numpy() - logprobs).max() < 1e-5
    greedy = Draws(0.0, DRAWS.seeds, DRAWS.positions)
    tokens, logprobs = choose_tokens(LOGITS, greedy)
    assert tokens == LOGITS.argmax(dim=1).tolist()
    assert np.abs(LOGITS.log_softmax(dim=1).amax(dim=1).numpy() - logprobs).max() < 1e-6


@pytest.mark.parametrize("sampler", [NumpySampler, TorchSampler])
def test_a_certain_token_has_no_more_than_probability_one(sampler: Callable[[], Sampler]) -> None:
    logits = torch.full((1, 50), -1000.0)
    logits[0, 3] = 1000.0
    draws = Draws(1.0, DRAWS.seeds[:1], DRAWS.positions[:1])
    assert choose_tokens(logits, draws, sampler()) == ([3], [0.0])


@pytest.mark.parametrize("sampler", [NumpySampler, TorchSampler])
def test_scores_name_the_likeliest_end_token(sampler: Callable[[], Sampler]) -> None:
    tokens = torch.from_numpy(DICE.integers(0, 300, 40))
    margins, logprobs, ends = check_scores(compute_scores(LOGITS, tokens, DRAWS, frozenset({5, 9}), sampler()))
    wanted = (LOGITS / 0.7).log_softmax(dim=1)
    assert np.abs(ends - wanted[:, [5, 9]].amax(dim=1).numpy()).max() < 1e-5
    assert np.abs(logprobs - wanted.gather(1, tokens[:, None])[:, 0].numpy()).max() < 1e-5
    assert margins.max() > 0
    assert margins.dtype == np.float32
    without = check_scores(compute_scores(LOGITS, tokens, DRAWS, frozenset(), sampler()))
    assert without[2].tolist() == [LOGPROB_MIN] * 40


@pytest.mark.parametrize("sampler", [NumpySampler, TorchSampler])
@pytest.mark.parametrize("column", [0, 2047, 2048, 2999])
@pytest.mark.parametrize("hole", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_this_machines_fault(
    sampler: Callable[[], Sampler], column: int, hole: float
) -> None:
    logits = torch.zeros(3, 3000)
    logits[1, column] = hole
    draws = make_draws(3, 1.0)
    with pytest.raises(LocalError, match="not finite"):
        choose_tokens(logits, draws, sampler())
    with pytest.raises(LocalError, match="not finite"):
        check_scores(compute_scores(logits, torch.tensor([1, 1, 1]), draws, frozenset(), sampler()))


def test_a_gpu_without_triton_uses_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    choose_sampler.cache_clear()
    assert isinstance(choose_sampler("cuda"), TorchSampler)
    assert isinstance(choose_sampler("cpu"), NumpySampler)
    choose_sampler.cache_clear()
