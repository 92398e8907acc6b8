"""Graded submissions that wait to be trained on, and the batches made from them. Pure.

A group is the samples of one slot. A submission is trained on whole, once, and only while it is recent enough; of its
groups, those in which rewards differ. Task reward and length reward are centred separately, so that a group whose
answers are all right or all wrong contributes nothing, however their lengths differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prime_protocol.wire.ids import Digest, Slot, Step
from prime_trainer.config import BatchConfig
from prime_trainer.data.packing import Sample

REWARD_SPREAD_MIN = 1e-6
"""Rewards of a group that differ by less count as equal."""


# --- Advantages -------------------------------------------------------------------------------------------------------


def compute_length_reward(length: int, target: int | None, *, weight: float) -> float:
    """0 at the target or without one; lower the further away."""
    return 0.0 if target is None else -weight * abs(target - length)


def has_signal(rewards_G: NDArray[np.float64]) -> bool:
    """Whether the task rewards of a group differ. Otherwise its gradient is zero."""
    return float(np.ptp(rewards_G)) > REWARD_SPREAD_MIN


def compute_advantages(
    rewards_G: NDArray[np.float64], length_rewards_G: NDArray[np.float64], *, scale_max: float
) -> NDArray[np.float32]:
    """How much better each sample is than its group: in the task, times a bounded scale, plus in length."""
    if not has_signal(rewards_G):
        return np.zeros(len(rewards_G), np.float32)
    task_G = rewards_G - rewards_G.mean()
    length_G = length_rewards_G - length_rewards_G.mean()
    # Rewards are 0 to 1, so their standard deviation is at most 0.5: a scale_max of 1 never multiplies.
    scale = min(scale_max, 1 / float(rewards_G.std()))
    return np.asarray(scale * task_G + length_G, np.float32)


# --- The buffer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """The samples of one slot with their task rewards. The samples carry their advantages."""

    slot: Slot
    rewards_G: NDArray[np.float64]
    samples: tuple[Sample, ...]

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rewards_G)


@dataclass(frozen=True, slots=True, eq=False)
class GradedSubmission:
    """One accepted submission, ready to be trained on."""

    name: Digest
    checkpoint_step: Step
    """Step of the weights that generated its rollouts."""
    groups: tuple[RolloutGroup, ...]

    @property
    def groups_with_signal(self) -> list[RolloutGroup]:
        return [group for group in self.groups if group.has_signal]

    @property
    def tokens(self) -> int:
        """Tokens that training on it would train."""
        return sum(len(sample.output_tokens) for group in self.groups_with_signal for sample in group.samples)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """What one step trains on."""

    submissions: tuple[Digest, ...]
    """The submissions that contribute to it: the step's lineage."""
    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]


@dataclass(slots=True)
class RolloutBuffer:
    """Graded submissions that wait to be trained on, oldest first."""

    config: BatchConfig
    trained: dict[Digest, int] = field(default_factory=dict)
    """Recently trained submissions, and the step that trained on each."""
    waiting: dict[Digest, GradedSubmission] = field(default_factory=dict)
    submissions_max: int = 0
    """Most submissions of one step; 0: as many as it needs. Rules 1 of the log have a limit."""
    expired: int = 0
    """Submissions that became too old before a step used them."""

    def add(self, submission: GradedSubmission) -> None:
        assert submission.name not in self.trained, "no submission is trained on twice"
        self.waiting[submission.name] = submission

    def contains(self, name: Digest) -> bool:
        return name in self.waiting or name in self.trained

    def expire(self, step: Step, lag_max: int) -> None:
        """Drop what is too old for the step after checkpoint `step`."""
        old = [name for name, each in self.waiting.items() if step - each.checkpoint_step > lag_max]
        for name in old:
            del self.waiting[name]
        self.expired += len(old)
        self.trained = {name: into for name, into in self.trained.items() if into > step - lag_max - 1}

    @property
    def groups(self) -> int:
        """Waiting groups with a signal."""
        return sum(len(each.groups_with_signal) for each in self.waiting.values())

    def is_enough(self) -> bool:
        """Whether the waiting submissions make a step."""
        tokens = sum(each.tokens for each in self.waiting.values())
        return self._is_full(len(self.waiting), self.groups, tokens)

    def take_batch(self, step: Step) -> TrainingBatch:
        """Take as many of the oldest submissions as make a step; all of them if they do not."""
        taken: list[GradedSubmission] = []
        groups = tokens = 0
        for submission in self.waiting.values():
            if self._is_full(len(taken), groups, tokens):
                break
            taken.append(submission)
            groups += len(submission.groups_with_signal)
            tokens += submission.tokens
        for submission in taken:
            del self.waiting[submission.name]
        return make_batch(taken, step)

    def _is_full(self, submissions: int, groups: int, tokens: int) -> bool:
        if 0 < self.submissions_max <= submissions:
            return True
        return groups >= self.config.groups or 0 < self.config.tokens <= tokens

    def mark_trained(self, names: Iterable[Digest], step: Step) -> None:
        """Checkpoint `step` was trained on these submissions."""
        self.trained.update(dict.fromkeys(names, int(step)))


def make_batch(submissions: Sequence[GradedSubmission], step: Step) -> TrainingBatch:
    groups = [group for each in submissions for group in each.groups]
    with_signal = [group for group in groups if group.has_signal]
    samples = tuple(sample for group in with_signal for sample in group.samples)
    lengths = [len(sample.output_tokens) for group in groups for sample in group.samples]
    lags = [step - each.checkpoint_step for each in submissions for group in each.groups]
    metrics = {
        "submissions": len(submissions),
        "groups": len(with_signal),
        "groups_dropped": len(groups) - len(with_signal),
        "samples": len(samples),
        "reward_mean": mean_or_zero([reward for group in groups for reward in group.rewards_G]),
        "length_mean": mean_or_zero(lengths),
        "length_max": max(lengths, default=0),
        "lag_mean": mean_or_zero(lags),
        "lag_max": max(lags, default=0),
    }
    return TrainingBatch(tuple(each.name for each in submissions if each.groups_with_signal), samples, metrics)


def mean_or_zero(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
