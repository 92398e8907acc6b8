"""From the graded rows of one slot to a group to learn from. Pure."""

from collections.abc import Sequence

import numpy as np

from prime_protocol.rollouts import Rollout
from prime_trainer.advantages import compute_advantages, length_reward
from prime_trainer.harvest import Group
from prime_trainer.packing import Sample
from prime_trainer.train_config import AdvantageConfig


def make_group(rows: Sequence[Rollout], rewards: Sequence[float], rule: AdvantageConfig) -> Group:
    """Tokens are copied, so that the file with all its proofs need not stay in memory."""
    rewards_G = np.array(rewards, np.float64)
    lengths_G = np.array(
        [length_reward(len(row.output_tokens), row.target_length, weight=rule.length_weight) for row in rows]
    )
    advantages_G = compute_advantages(rewards_G, lengths_G, scale_max=rule.scale_max)
    samples = tuple(
        Sample(
            prompt_tokens=row.prompt_tokens.copy(),
            output_tokens=row.output_tokens.copy(),
            sampled_logprobs=row.output_logprobs.copy(),
            advantage=float(advantage),
            temperature=row.temperature,
        )
        for row, advantage in zip(rows, advantages_G, strict=True)
    )
    return Group(rows[0].slot, rewards_G, samples)
