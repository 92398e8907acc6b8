"""Which submissions are learnt from: whole, once, oldest first, while they are young enough."""

from hashlib import sha256

import numpy as np
import pytest

from prime_protocol.wire.ids import Digest, Slot, Step
from prime_trainer.config import BatchConfig
from prime_trainer.data.rollout_buffer import GradedSubmission, RolloutBuffer, RolloutGroup, make_batch
from support.training_samples import make_sample


def group(slot: int, *rewards: float, output: int = 5) -> RolloutGroup:
    samples = tuple(make_sample(10 * slot + number, prompt=3, output=output) for number in range(len(rewards)))
    return RolloutGroup(Slot(slot), np.array(rewards), samples)


def named(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def delivery(name: str, *groups: RolloutGroup, checkpoint: int = 0) -> GradedSubmission:
    return GradedSubmission(named(name), Step(checkpoint), groups or (group(0, 0.0, 1.0),))


def test_step_is_made_of_the_oldest_whole_submissions_that_are_enough() -> None:
    harvest = RolloutBuffer(BatchConfig(groups=3))
    harvest.add(delivery("a", group(0, 0.0, 1.0), group(1, 1.0, 1.0), group(2, 0.0, 1.0)))
    assert not harvest.is_enough(), "a group without a signal does not count"
    harvest.add(delivery("b", group(3, 0.0, 1.0), group(4, 0.0, 1.0)))
    harvest.add(delivery("c"))
    assert harvest.is_enough()
    batch = harvest.take_batch(Step(0))
    assert batch.submissions == (named("a"), named("b")), "b whole, though one group of it would have done"
    assert len(batch.samples) == 8
    assert list(harvest.waiting) == [named("c")]
    assert (batch.metrics["groups"], batch.metrics["groups_dropped"]) == (4, 1)


def test_tokens_make_a_step_too_where_asked_for() -> None:
    harvest = RolloutBuffer(BatchConfig(groups=100, tokens=30))
    harvest.add(delivery("a", group(0, 0.0, 1.0, output=14)))
    assert not harvest.is_enough()
    harvest.add(delivery("b", group(1, 0.0, 1.0, output=1)))
    assert harvest.is_enough()
    assert len(harvest.take_batch(Step(0)).submissions) == 2


def test_submission_without_any_signal_is_used_up_and_has_no_part_in_the_lineage() -> None:
    harvest = RolloutBuffer(BatchConfig(groups=1))
    harvest.add(delivery("a", group(0, 1.0, 1.0)))
    harvest.add(delivery("b"))
    batch = harvest.take_batch(Step(0))
    assert batch.submissions == (named("b"),)
    assert not harvest.waiting
    assert batch.metrics["reward_mean"] == pytest.approx(0.75), "the reward counts all the same"


def test_nothing_is_learnt_from_twice() -> None:
    harvest = RolloutBuffer(BatchConfig())
    harvest.mark_trained([named("a")], Step(3))
    assert harvest.contains(named("a"))
    with pytest.raises(AssertionError, match="twice"):
        harvest.add(delivery("a"))


def test_what_is_behind_by_more_than_the_lag_is_dropped_and_counted() -> None:
    harvest = RolloutBuffer(BatchConfig())
    for name, checkpoint in (("a", 4), ("b", 5), ("c", 6)):
        harvest.add(delivery(name, checkpoint=checkpoint))
    harvest.mark_trained([named("x")], Step(3))
    harvest.mark_trained([named("y")], Step(7))
    harvest.expire(Step(7), 2)
    assert list(harvest.waiting) == [named("b"), named("c")]
    assert harvest.expired == 1
    assert list(harvest.trained) == [named("y")], "x is too old to come again"
    batch = harvest.take_batch(Step(7))
    assert (batch.metrics["lag_mean"], batch.metrics["lag_max"]) == (1.5, 2)


def test_step_names_as_many_submissions_as_it_needs_unless_the_log_has_a_limit() -> None:
    harvest = RolloutBuffer(BatchConfig(groups=10))
    for number in range(5):
        harvest.add(delivery(str(number)))
    assert not harvest.is_enough()
    harvest.submissions_max = 3
    assert harvest.is_enough()
    assert len(harvest.take_batch(Step(0)).submissions) == 3


def test_batch_of_nothing_says_so() -> None:
    batch = make_batch([], Step(5))
    assert (batch.submissions, batch.samples, batch.metrics["groups"], batch.metrics["reward_mean"]) == ((), (), 0, 0.0)
