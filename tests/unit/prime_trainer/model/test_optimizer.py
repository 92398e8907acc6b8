"""The schedule, and the guard that keeps bad gradients from the weights."""

import math

import pytest
import torch

from prime_trainer.config import MomentStorage, OptimizerConfig
from prime_trainer.model.optimizer import (
    MOMENTS,
    NORMS_KEPT,
    NORMS_MIN,
    GradientGuard,
    compute_learning_rate,
    make_optimizer,
)


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


def learn(moments: MomentStorage) -> tuple[torch.Tensor, list[torch.dtype]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = make_optimizer(model, OptimizerConfig(learning_rate=1e-2, moments=moments))
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().sum().backward()
        optimizer.step()
    return model.weight.detach(), [optimizer.state[model.weight][name].dtype for name in MOMENTS]


def test_moments_on_the_host_give_the_same_weights_and_those_in_bfloat16_nearly() -> None:
    wanted, _ = learn(MomentStorage.FLOAT32)
    host, _ = learn(MomentStorage.HOST)
    half, dtypes = learn(MomentStorage.BFLOAT16)
    assert torch.equal(host, wanted)
    assert dtypes == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(half, wanted, rtol=2e-2, atol=2e-3)
    assert not torch.equal(half, wanted)


def test_second_moments_follow_gradients_that_shrink_however_the_first_are_kept() -> None:
    found = []
    for moments in (MomentStorage.FLOAT32, MomentStorage.BFLOAT16):
        model = torch.nn.Linear(2, 3)
        optimizer = make_optimizer(model, OptimizerConfig(moments=moments, beta2=0.999))
        for number in range(200):
            model.weight.grad = torch.full_like(model.weight, 0.1 if number else 1.0)
            optimizer.step()
        found.append(optimizer.state[model.weight]["exp_avg_sq"])
    assert torch.equal(*found)


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
