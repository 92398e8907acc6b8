"""Which tokens of a pack a rank has, and which trained tokens and pieces of samples these are."""

import numpy as np
import pytest

from prime_trainer.data.packing import make_pack
from prime_trainer.model.context import slice_pack
from support.training_samples import make_sample

SAMPLES = [make_sample(number, prompt=3 + number, output=5 + 2 * number) for number in range(4)]


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_every_token_is_on_one_rank_and_predicts_what_it_did(parts: int) -> None:
    pack = make_pack(SAMPLES)
    slices = [slice_pack(pack, parts, part, None) for part in range(parts)]
    assert len({len(each.tokens_L) for each, _ in slices}) == 1
    found = []
    for sliced, _ in slices:
        tokens = sliced.tokens_L[sliced.logit_index_T]
        found += list(zip(tokens, sliced.targets_T, sliced.sampled_logp_T, sliced.advantage_T, strict=True))
    wanted = zip(pack.tokens_L[pack.logit_index_T], pack.targets_T, pack.sampled_logp_T, pack.advantage_T, strict=True)
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("parts", [2, 3])
def test_gathered_tokens_come_back_in_the_order_of_the_pack(parts: int) -> None:
    pack = make_pack(SAMPLES)
    slices = [slice_pack(pack, parts, part, None) for part in range(parts)]
    gathered = np.concatenate([sliced.tokens_L for sliced, _ in slices])
    for _, context in slices:
        assert np.array_equal(gathered[context.order_L][: len(pack.tokens_L)], pack.tokens_L)


def test_pieces_cover_a_rank_s_tokens_and_no_piece_crosses_a_sample() -> None:
    pack = make_pack(SAMPLES)
    sliced, context = slice_pack(pack, 2, 1, None)
    pieces = list(context.list_queries())
    assert sum(last - first for _, first, last in pieces) == len(sliced.tokens_L)
    for start, first, last in pieces:
        end = min(bound for bound in context.bounds if bound > start)
        assert start <= first < last <= end
