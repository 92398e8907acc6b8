"""Claims about sampling in the torch engine: arrays on a CPU and tensors on a GPU give the same."""

import numpy as np
import torch

from prime_node.engine.torch.sampling import (
    LOGPROB_MIN,
    Draws,
    choose_tokens,
    get_logprobs,
    get_margins,
    get_max_logprobs,
)
from prime_protocol.proofs.sampling import compute_margins, sample_tokens

DICE = np.random.default_rng(0)
LOGITS = torch.from_numpy(DICE.normal(size=(40, 300)).astype(np.float32) * 3)
DRAWS = Draws(0.7, DICE.integers(0, 2**64, 40, dtype=np.uint64), np.arange(40, dtype=np.int64))


def test_tensors_as_a_gpu_gets_them_give_the_tokens_of_arrays() -> None:
    seeds, positions = DRAWS.send(torch.device("cpu"))
    assert seeds.dtype == positions.dtype == torch.int64
    assert sample_tokens(LOGITS, 0.7, seeds, positions).tolist() == choose_tokens(LOGITS, DRAWS)[0]


def test_tensors_as_a_gpu_gets_them_give_the_margins_of_arrays() -> None:
    tokens = torch.from_numpy(DICE.integers(0, 300, 40))
    here = get_margins(LOGITS, tokens, DRAWS)
    there = compute_margins(LOGITS, tokens, *DRAWS.send(torch.device("cpu")), 0.7)
    assert here.dtype == torch.float32
    assert (here - there).abs().max() < 1e-5


def test_log_probs_are_of_what_was_drawn_from() -> None:
    tokens, logprobs = choose_tokens(LOGITS, DRAWS)
    wanted = (LOGITS.double() / 0.7).log_softmax(dim=1)[torch.arange(40), torch.tensor(tokens)]
    assert np.abs(wanted.numpy() - logprobs).max() < 1e-5
    greedy = Draws(0.0, DRAWS.seeds, DRAWS.positions)
    tokens, logprobs = choose_tokens(LOGITS, greedy)
    assert tokens == LOGITS.argmax(dim=1).tolist()
    assert np.abs(LOGITS.log_softmax(dim=1).amax(dim=1).numpy() - logprobs).max() < 1e-6


def test_a_certain_token_has_no_more_than_probability_one() -> None:
    logits = torch.full((1, 50), -1000.0)
    logits[0, 3] = 1000.0
    tokens, logprobs = choose_tokens(logits, Draws(1.0, DRAWS.seeds[:1], DRAWS.positions[:1]))
    assert (tokens, logprobs) == ([3], [0.0])


def test_without_end_tokens_the_end_is_as_unlikely_as_a_number_can_say() -> None:
    logprobs = get_logprobs(LOGITS, 1.0)
    assert get_max_logprobs(logprobs, frozenset()).tolist() == [LOGPROB_MIN] * 40
    assert torch.equal(get_max_logprobs(logprobs, frozenset({5, 9})), logprobs[:, [5, 9]].amax(dim=1))
