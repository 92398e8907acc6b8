"""Laws of replayable sampling: the chosen token has no margin, others have what they lack, devices agree."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_protocol.proofs import sampling
from prime_protocol.proofs.sampling_torch import uniform_bits_torch
from support.sampling import to_signed_seed, uniform_bits

SEEDS = st.integers(0, 2**64 - 1)
WORDS = st.integers(0, 2**32 - 1)
TEMPERATURES = st.just(0.0) | st.floats(0.001, 100.0)
LOGITS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40)


@settings(deadline=None)
@given(LOGITS, TEMPERATURES, SEEDS, WORDS)
def test_chosen_token_has_no_margin_and_no_margin_is_negative(
    logits: list[float], temperature: float, seed: int, position: int
) -> None:
    row = np.array([logits], np.float32)
    seeds, where = np.array([seed], np.uint64), np.array([position], np.uint32)
    chosen = sampling.sample_tokens(row, temperature, seeds, where)
    assert sampling.compute_margins(row, chosen, seeds, where, temperature)[0] == 0
    everyone = np.arange(len(logits))
    margins = sampling.compute_margins(
        row.repeat(len(logits), axis=0), everyone, seeds.repeat(len(logits)), where.repeat(len(logits)), temperature
    )
    assert np.isfinite(margins).all()
    assert margins.min() == 0


@given(SEEDS, WORDS, st.lists(WORDS, min_size=1, max_size=20))
def test_tensors_and_arrays_get_the_same_bits(seed: int, position: int, tokens: list[int]) -> None:
    words = uniform_bits(seed, position, np.array(tokens, np.uint32))
    ours = uniform_bits_torch(torch.tensor([to_signed_seed(seed)]), torch.tensor([position]), torch.tensor(tokens))
    assert ours.tolist() == words.tolist()


@given(st.lists(WORDS, unique=True, min_size=2, max_size=50))
def test_mix_never_joins_two_words(words: list[int]) -> None:
    assert len(set(sampling.mix_words(np.array(words, np.uint32)).tolist())) == len(words)
