"""The schedule, and the guard that keeps bad gradients from the weights."""

import math

import pytest
import torch

from prime_trainer.config import OptimizerConfig
from prime_trainer.model.optimizer import NORMS_KEPT, NORMS_MIN, GradientGuard, compute_learning_rate, make_optimizer


def test_learning_rate_rises_stays_and_falls() -> None:
    config = OptimizerConfig(learning_rate=2.0e-3, warmup_steps=10, decay_steps=20, decay_to=0.25)
    rates = [compute_learning_rate(config, step) for step in (1, 5, 10, 20, 30, 99)]
    assert rates == pytest.approx([2e-4, 1e-3, 2e-3, 1.25e-3, 5e-4, 5e-4])
    steady = OptimizerConfig(learning_rate=1.0, warmup_steps=0)
    assert [compute_learning_rate(steady, step) for step in (1, 1000)] == [1.0, 1.0]


def test_matrices_decay_and_norms_and_biases_do_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    matrices, others = make_optimizer(model, OptimizerConfig(weight_decay=0.1)).param_groups
    assert [each.shape for each in matrices["params"]] == [(3, 2)]
    assert (matrices["weight_decay"], others["weight_decay"], len(others["params"])) == (0.1, 0.0, 3)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_gradient_that_is_no_number_is_never_applied(norm: float) -> None:
    guard = GradientGuard(20.0)
    assert "norm is" in guard.find_problem(norm)
    assert guard.norms == ()


def test_gradient_stands_out_only_against_enough_others() -> None:
    guard = GradientGuard(20.0)
    assert guard.find_problem(1000.0) == ""
    for _ in range(NORMS_MIN - 1):
        assert guard.find_problem(1.0) == ""
    assert guard.find_problem(19.0) == ""
    assert "30 times the usual" in guard.find_problem(30.0)


def test_gradients_that_stay_long_are_believed_in_time_and_the_memory_is_bounded() -> None:
    guard = GradientGuard(20.0, [1.0] * NORMS_KEPT)
    tries = 0
    while guard.find_problem(100.0):
        tries += 1
        assert tries <= NORMS_KEPT
    assert tries >= NORMS_KEPT // 2 - 1, "not after a few"
    assert len(guard.norms) == NORMS_KEPT


def test_guard_goes_on_with_the_norms_it_was_given() -> None:
    guard = GradientGuard(20.0, [1.0] * NORMS_MIN)
    assert guard.find_problem(21.0)
    assert GradientGuard(20.0, guard.norms).norms == guard.norms
