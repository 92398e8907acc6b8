"""From rewards to advantages, group by group. Pure.

A group is the samples of one slot. The reward of the task and the reward for length are centred apart, so that a group
whose answers are all right or all wrong teaches nothing, however their lengths differ.
"""

import numpy as np
from numpy.typing import NDArray

SIGNAL_MIN = 1e-6
"""Rewards of a group that differ by less are equal."""


def length_reward(length: int, target: int | None, *, weight: float) -> float:
    """0 at the target or without one, and less the farther off."""
    return 0.0 if target is None else -weight * abs(target - length)


def has_signal(rewards_G: NDArray[np.float64]) -> bool:
    """Whether a group's task rewards differ. Only then is there anything to learn from it."""
    return float(np.ptp(rewards_G)) > SIGNAL_MIN


def compute_advantages(
    rewards_G: NDArray[np.float64], length_rewards_G: NDArray[np.float64], *, scale_max: float
) -> NDArray[np.float32]:
    """How much better than its group each sample is: in the task, times a bounded scale, and in length."""
    if not has_signal(rewards_G):
        return np.zeros(len(rewards_G), np.float32)
    task_G = rewards_G - rewards_G.mean()
    length_G = length_rewards_G - length_rewards_G.mean()
    # Rewards are 0 to 1, so their spread is at most a half: a scale_max of 1 never multiplies.
    scale = min(scale_max, 1 / float(rewards_G.std()))
    return np.asarray(scale * task_G + length_G, np.float32)
