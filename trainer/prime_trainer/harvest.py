"""What was accepted, read and graded, and when it makes a step. Pure: which submissions are learnt from, and which not.

A submission is learnt from whole, once, and while it is young enough; of its groups, those in which rewards differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import LINEAGE_MAX
from prime_protocol.ids import Digest, Slot, Step
from prime_trainer.advantages import has_signal
from prime_trainer.packing import Sample
from prime_trainer.train_config import BatchConfig


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The samples of one slot, their task rewards, and their advantages inside."""

    slot: Slot
    rewards_G: NDArray[np.float64]
    samples: tuple[Sample, ...]

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rewards_G)


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One accepted submission, ready to be learnt from."""

    name: Digest
    checkpoint_step: Step
    """Of the weights that its rollouts were drawn with."""
    groups: tuple[Group, ...]

    @property
    def learnable(self) -> list[Group]:
        return [group for group in self.groups if group.has_signal]

    @property
    def tokens(self) -> int:
        """That would be trained."""
        return sum(len(sample.output_tokens) for group in self.learnable for sample in group.samples)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one step learns from."""

    names: tuple[Digest, ...]
    """Of the submissions that have a part in it: the step's lineage."""
    samples: tuple[Sample, ...]
    facts: Mapping[str, float]
    """For the monitors."""


@dataclass(slots=True)
class Harvest:
    """Deliveries that wait to be learnt from, oldest first."""

    rule: BatchConfig
    trained: dict[Digest, int] = field(default_factory=dict)
    """What was learnt from lately, and into which step."""
    waiting: dict[Digest, Delivery] = field(default_factory=dict)
    expired: int = 0
    """Deliveries that got too old before their turn came."""

    def add(self, delivery: Delivery) -> None:
        assert delivery.name not in self.trained, "nothing is learnt from twice"
        self.waiting[delivery.name] = delivery

    def knows(self, name: Digest) -> bool:
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
        return sum(len(each.learnable) for each in self.waiting.values())

    def is_enough(self) -> bool:
        """Whether what waits makes a step."""
        deliveries = self.waiting.values()
        tokens = sum(each.tokens for each in deliveries)
        return self.groups >= self.rule.groups or (0 < self.rule.tokens <= tokens) or len(deliveries) >= LINEAGE_MAX

    def take(self, step: Step) -> Batch:
        """As many of the oldest as make a step; all of them where they do not."""
        taken: list[Delivery] = []
        groups = tokens = 0
        for delivery in self.waiting.values():
            is_full = groups >= self.rule.groups or (0 < self.rule.tokens <= tokens)
            if is_full or len(taken) == LINEAGE_MAX:
                break
            taken.append(delivery)
            groups += len(delivery.learnable)
            tokens += delivery.tokens
        for delivery in taken:
            del self.waiting[delivery.name]
        return make_batch(taken, step)

    def learnt(self, names: Iterable[Digest], step: Step) -> None:
        """These went into checkpoint `step`."""
        self.trained.update(dict.fromkeys(names, int(step)))


def make_batch(deliveries: Sequence[Delivery], step: Step) -> Batch:
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
        "reward_mean": mean([reward for group in groups for reward in group.rewards_G]),
        "length_mean": mean(lengths),
        "length_max": max(lengths, default=0),
        "lag_mean": mean(lags),
        "lag_max": max(lags, default=0),
    }
    return Batch(tuple(each.name for each in deliveries if each.learnable), samples, facts)


def mean(values: Sequence[float]) -> float:
    """0 of nothing."""
    return float(np.mean(values)) if values else 0.0
