"""Advantages: centred in the group, task and length apart, nothing from length alone."""

import numpy as np
import pytest

from prime_trainer.data.rollout_buffer import compute_advantages, compute_length_reward, has_signal


def test_length_reward_falls_by_the_weight_with_each_token_off_the_target() -> None:
    assert compute_length_reward(700, 1000, weight=0.0003) == pytest.approx(-0.09)
    assert compute_length_reward(1300, 1000, weight=0.0003) == pytest.approx(-0.09)
    assert compute_length_reward(1000, 1000, weight=0.0003) == 0
    assert compute_length_reward(1, None, weight=0.0003) == 0


def test_advantages_are_centred_and_not_divided_by_their_spread() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    assert compute_advantages(rewards, np.zeros(4), scale_max=1).tolist() == [0.75, -0.25, -0.25, -0.25]


def test_scale_brings_the_spread_to_one_but_not_beyond_its_bound() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    assert compute_advantages(rewards, np.zeros(4), scale_max=100).std() == pytest.approx(1)
    assert compute_advantages(rewards, np.zeros(4), scale_max=2) == pytest.approx([1.5, -0.5, -0.5, -0.5])


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_length_alone_never_makes_a_signal(reward: float) -> None:
    """The public trainer subtracts the length penalty first, so groups without any signal get advantages of size 1."""
    rewards, lengths = np.full(4, reward), np.array([0.0, -0.1, -0.2, -0.3])
    assert not has_signal(rewards)
    assert compute_advantages(rewards, lengths, scale_max=100).tolist() == [0, 0, 0, 0]


def test_length_counts_where_the_task_has_a_signal_and_is_not_scaled_with_it() -> None:
    rewards, lengths = np.array([1.0, 0.0]), np.array([-0.3, -0.1])
    assert has_signal(rewards)
    assert compute_advantages(rewards, lengths, scale_max=1) == pytest.approx([0.4, -0.4])
    assert compute_advantages(rewards, lengths, scale_max=100) == pytest.approx([0.9, -0.9])


def test_rewards_that_differ_only_by_rounding_are_no_signal() -> None:
    assert not has_signal(np.array([0.3, 0.1 + 0.2]))
