"""From rewards to advantages, group by group. Pure.

A group is the samples of one slot. The reward of the task and the reward for length are centred apart, so that a group
whose answers are all right or all wrong teaches nothing, however their lengths differ.

What was accepted, read and graded, and when it makes a step. Pure: which submissions are learnt from, and which not.

A submission is learnt from whole, once, and while it is young enough; of its groups, those in which rewards differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import LINEAGE_MAX
from prime_protocol.wire.ids import Digest, Slot, Step
from prime_trainer.config import BatchConfig
from prime_trainer.data.packing import Sample

REWARD_SPREAD_MIN = 1e-6
"""Rewards of a group that differ by less are equal."""


def compute_length_reward(length: int, target: int | None, *, weight: float) -> float:
    """0 at the target or without one, and less the farther off."""
    return 0.0 if target is None else -weight * abs(target - length)


def has_signal(rewards_G: NDArray[np.float64]) -> bool:
    """Whether a group's task rewards differ. Only then is there anything to learn from it."""
    return float(np.ptp(rewards_G)) > REWARD_SPREAD_MIN


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


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """The samples of one slot, their task rewards, and their advantages inside."""

    slot: Slot
    rewards_G: NDArray[np.float64]
    samples: tuple[Sample, ...]

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rewards_G)


@dataclass(frozen=True, slots=True, eq=False)
class GradedSubmission:
    """One accepted submission, ready to be learnt from."""

    name: Digest
    checkpoint_step: Step
    """Of the weights that its rollouts were drawn with."""
    groups: tuple[RolloutGroup, ...]

    @property
    def groups_with_signal(self) -> list[RolloutGroup]:
        return [group for group in self.groups if group.has_signal]

    @property
    def tokens(self) -> int:
        """That would be trained."""
        return sum(len(sample.output_tokens) for group in self.groups_with_signal for sample in group.samples)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """What one step learns from."""

    submissions: tuple[Digest, ...]
    """Of the submissions that have a part in it: the step's lineage."""
    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]
    """For the monitors."""


@dataclass(slots=True)
class RolloutBuffer:
    """Deliveries that wait to be learnt from, oldest first."""

    config: BatchConfig
    trained: dict[Digest, int] = field(default_factory=dict)
    """What was learnt from lately, and into which step."""
    waiting: dict[Digest, GradedSubmission] = field(default_factory=dict)
    expired: int = 0
    """Deliveries that got too old before their turn came."""

    def add(self, delivery: GradedSubmission) -> None:
        assert delivery.name not in self.trained, "nothing is learnt from twice"
        self.waiting[delivery.name] = delivery

    def contains(self, name: Digest) -> bool:
        return name in self.waiting or name in self.trained

    def expire(self, step: Step, lag_max: int) -> None:
        """Drop what is too old for the step that follows checkpoint `step`."""
        old = [name for name, each in self.waiting.items() if step - each.checkpoint_step > lag_max]
        for name in old:
            del self.waiting[name]
        self.expired += len(old)
        self.trained = {name: into for name, into in self.trained.items() if into > step - lag_max - 1}

    @property
    def groups(self) -> int:
        """That wait and have a signal."""
        return sum(len(each.groups_with_signal) for each in self.waiting.values())

    def is_enough(self) -> bool:
        """Whether what waits makes a step."""
        deliveries = self.waiting.values()
        tokens = sum(each.tokens for each in deliveries)
        return self.groups >= self.config.groups or (0 < self.config.tokens <= tokens) or len(deliveries) >= LINEAGE_MAX

    def take_batch(self, step: Step) -> TrainingBatch:
        """As many of the oldest as make a step; all of them where they do not."""
        taken: list[GradedSubmission] = []
        groups = tokens = 0
        for delivery in self.waiting.values():
            is_full = groups >= self.config.groups or (0 < self.config.tokens <= tokens)
            if is_full or len(taken) == LINEAGE_MAX:
                break
            taken.append(delivery)
            groups += len(delivery.groups_with_signal)
            tokens += delivery.tokens
        for delivery in taken:
            del self.waiting[delivery.name]
        return make_batch(taken, step)

    def mark_trained(self, names: Iterable[Digest], step: Step) -> None:
        """These went into checkpoint `step`."""
        self.trained.update(dict.fromkeys(names, int(step)))


def make_batch(deliveries: Sequence[GradedSubmission], step: Step) -> TrainingBatch:
    groups = [group for each in deliveries for group in each.groups]
    learnable = [group for group in groups if group.has_signal]
    samples = tuple(sample for group in learnable for sample in group.samples)
    lengths = [len(sample.output_tokens) for group in groups for sample in group.samples]
    lags = [step - each.checkpoint_step for each in deliveries for group in each.groups]
    facts = {
        "submissions": len(deliveries),
        "groups": len(learnable),
        "groups_dropped": len(groups) - len(learnable),
        "samples": len(samples),
        "reward_mean": mean_or_zero([reward for group in groups for reward in group.rewards_G]),
        "length_mean": mean_or_zero(lengths),
        "length_max": max(lengths, default=0),
        "lag_mean": mean_or_zero(lags),
        "lag_max": max(lags, default=0),
    }
    return TrainingBatch(tuple(each.name for each in deliveries if each.groups_with_signal), samples, facts)


def mean_or_zero(values: Sequence[float]) -> float:
    """0 of nothing."""
    return float(np.mean(values)) if values else 0.0
