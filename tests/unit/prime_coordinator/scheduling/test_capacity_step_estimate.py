"""How a run goes, and until when a result is of use."""

import pytest

from prime_coordinator.scheduling.capacity import StepEstimate
from support.core_network import SECOND_MS, Scene
from support.ledger_network import World


def test_before_anything_was_seen_a_slot_takes_half_of_the_longest_and_nothing_is_too_late() -> None:
    world = World.started()
    estimate = StepEstimate.recover(world.run)
    assert estimate.tokens_per_slot == 32
    assert estimate.time_left_ms(world.run, 0, world.now_ms) is None


def test_a_step_takes_what_the_last_ones_took() -> None:
    estimate = StepEstimate(1.0)
    for at_ms in (0, 10_000, 30_000):
        estimate.record_checkpoint(at_ms)
    assert (estimate.published_ms, estimate.step_ms) == (30_000, 15_000)


def test_an_older_checkpoint_leaves_less_time() -> None:
    scene = Scene.started(lag_max=2)
    for _ in range(3):
        scene.world.wait(9 * SECOND_MS)
        scene.publish()
    scene.lease("ann")
    estimate, run = StepEstimate.recover(scene.run), scene.run
    assert estimate.published_ms is not None
    left = [estimate.time_left_ms(run, step, estimate.published_ms) for step in (3, 2, 1)]
    assert left == pytest.approx([3 * estimate.step_ms, 2 * estimate.step_ms, estimate.step_ms])  # type: ignore[operator]
    assert estimate.time_left_ms(run, 99, estimate.published_ms) == left[0]


def test_tokens_per_slot_adapt_slowly() -> None:
    scene = Scene.started()
    scene.work("ann", tokens=2)
    assert StepEstimate.recover(scene.run).tokens_per_slot == pytest.approx(0.9 * 32 + 0.1 * 2)
