"""Packing: first fit, longest first; nothing cut, nothing counted twice; packed is equal to alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prime_trainer.config import LossConfig
from prime_trainer.data.packing import (
    Pack,
    PackLayout,
    distribute_packs,
    make_filler_pack,
    make_pack,
    make_packs,
    pack_samples,
    split_minibatches,
    stack_rows,
)
from prime_trainer.loss import compute_loss
from prime_trainer.model.policy import PolicyModel
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.training_samples import make_sample

RULE = LossConfig(entropy_weight=0.01)


def lengths_of(pack: Pack) -> list[int]:
    return np.diff(pack.bounds).tolist()


def samples_of(*lengths: int) -> list:  # type: ignore[type-arg]
    """Samples with so many input tokens."""
    return [make_sample(number, prompt=2, output=length - 1) for number, length in enumerate(lengths)]


def test_longest_go_first_into_the_first_pack_with_room() -> None:
    packs = pack_samples(samples_of(3, 9, 4, 6, 5, 2), tokens_max=10)
    assert [lengths_of(pack) for pack in packs] == [[9], [6, 4], [5, 3, 2]]


def test_sample_longer_than_a_pack_gets_its_own_and_is_not_cut() -> None:
    packs = pack_samples(samples_of(3, 25), tokens_max=10)
    assert [lengths_of(pack) for pack in packs] == [[25], [3]]
    assert [pack.trained_tokens for pack in packs] == [24, 2]


def test_stacks_hold_what_fits_when_all_are_as_long_as_the_longest() -> None:
    stacks = make_packs(samples_of(3, 9, 4, 6, 5, 2, 25), PackLayout.STACKED, tokens_max=12)
    assert [lengths_of(stack) for stack in stacks] == [[25], [9], [6, 5], [4, 3, 2]]
    assert [lengths_of(pack) for pack in make_packs(samples_of(3, 9), PackLayout.SINGLE, tokens_max=99)] == [[9], [3]]


def test_rows_hold_each_sample_and_say_where_its_places_are() -> None:
    pack = make_pack(samples_of(4, 2, 3))
    tokens_NL, rows_T = stack_rows(pack)
    assert tokens_NL.shape == (3, 4)
    assert tokens_NL[1].tolist() == [*pack.tokens_L[4:6], 0, 0]
    assert tokens_NL.reshape(-1)[rows_T].tolist() == pack.tokens_L[pack.logit_index_T].tolist()
    assert rows_T.tolist() == [1, 2, 3, 5, 9, 10]


def test_pack_predicts_each_output_token_from_the_one_before_it() -> None:
    one, two = make_sample(1, prompt=3, output=2), make_sample(2, prompt=1, output=3)
    pack = make_pack([one, two])
    assert pack.tokens_L.tolist() == [
        *one.prompt_tokens.tolist(),
        one.output_tokens[0],
        two.prompt_tokens[0],
        *two.output_tokens[:2].tolist(),
    ]
    assert pack.positions_L.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert pack.bounds == (0, 4, 7)
    assert pack.logit_index_T.tolist() == [2, 3, 4, 5, 6]
    assert pack.targets_T.tolist() == [*one.output_tokens.tolist(), *two.output_tokens.tolist()]
    assert pack.advantage_T.tolist() == pytest.approx([one.advantage] * 2 + [two.advantage] * 3)
    assert pack.sampled_logp_T.tolist() == [*one.sampled_logprobs.tolist(), *two.sampled_logprobs.tolist()]


def test_ranks_get_as_many_packs_each_and_blanks_weigh_nothing() -> None:
    """The public trainer fills up with copies of a rank's first micro batch, so its samples count twice."""
    packs = pack_samples(samples_of(9, 8, 7, 6, 5), tokens_max=10)
    hands = distribute_packs(packs, 2)
    assert [len(hand) for hand in hands] == [3, 3]
    dealt = [pack for hand in hands for pack in hand]
    assert sum(pack.trained_tokens for pack in dealt) == sum(pack.trained_tokens for pack in packs)
    assert [pack.trained_tokens for pack in dealt].count(0) == 1
    assert {id(pack) for pack in dealt if pack.trained_tokens} == {id(pack) for pack in packs}
    assert [[pack.trained_tokens for pack in hand] for hand in distribute_packs([], 2)] == [[0], [0]]


def test_minibatches_take_each_sample_once() -> None:
    samples = samples_of(9, 3, 8, 4, 7)
    parts = split_minibatches(samples, 2)
    assert sorted(id(sample) for part in parts for sample in part) == sorted(map(id, samples))
    assert [sum(len(sample.output_tokens) for sample in part) for part in parts] == [13, 13]
    assert len(split_minibatches(samples[:1], 4)) == 1


@pytest.mark.parametrize("family", ["qwen2", "llama", "mistral"])
def test_packed_loss_and_gradients_are_those_of_each_sample_alone(tmp_path: Path, family: str) -> None:
    """Whatever stands in a pack beside a sample: no attention across, positions of its own."""
    more = {"sliding_window": 8} if family == "mistral" else {}
    policy = PolicyModel.load(make_tiny_checkpoint(tmp_path, family=family, layers=2, **more))
    samples = [make_sample(number, prompt=1 + number % 4, output=1 + 3 * number % 17) for number in range(13)]

    def run(packs: list[Pack]) -> tuple[float, dict[str, torch.Tensor]]:
        policy.model.zero_grad()
        total = 0.0
        for pack in packs:
            loss = compute_loss(policy.compute_loss_inputs(pack), RULE)
            loss.backward()
            total += loss.item()
        return total, {name: each.grad.clone() for name, each in policy.model.named_parameters()}

    alone = run([make_pack([sample]) for sample in samples])
    packed = run(pack_samples(samples, tokens_max=64))
    with_blanks = run([*pack_samples(samples, tokens_max=1000), make_filler_pack(), make_filler_pack()])
    for loss, gradients in (packed, with_blanks):
        assert loss == pytest.approx(alone[0], rel=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, alone[1][name], rtol=1e-4, atol=1e-5, msg=name)
