"""The objective, value and gradient against what is worked out by hand."""

import math
from typing import Any

import pytest
import torch

from prime_trainer.config import LossConfig
from prime_trainer.loss import (
    LOSS_STATS,
    LossInputs,
    bounded_exp,
    compute_kl_to_reference,
    compute_loss,
    compute_loss_stats,
    compute_policy_loss,
    compute_staleness_weight,
)

RULE = LossConfig(clip_low=0.2, clip_high=0.3, delta=4.0, ratio_max=2.0)


def row(*values: float, grad: bool = False) -> Any:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def value_and_gradient(ratio: float, advantage: float, weight: float = 1.0) -> tuple[float, float]:
    """Of one token's loss by its log-prob, where its probability has changed by `ratio` since the start of the step."""
    logp = row(math.log(ratio) - 1, grad=True)
    loss = compute_policy_loss(logp, row(-1.0), row(advantage), row(weight), RULE).sum()
    loss.backward()
    return loss.item(), logp.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # nothing has moved: the plain policy gradient
        (1.25, 2.0, -2.5, -2.5),  # inside the clip: ratio times advantage
        (1.5, 2.0, -2.6, 0.0),  # likelier by more than clip_high: no further up
        (50.0, 2.0, -2.6, 0.0),  # and delta changes nothing on this side
        (0.5, 2.0, -1.0, -1.0),  # less likely though good: up again, unclipped
        (0.9, -2.0, 1.8, 1.8),
        (0.5, -2.0, 1.6, 0.0),  # less likely by more than clip_low: no further down
        (3.0, -2.0, 6.0, 6.0),  # likelier though bad: down, with its whole ratio
        (50.0, -2.0, 8.0, 8.0),  # but with no more than delta; and the push stays
    ],
)
def test_each_side_of_the_clip(ratio: float, advantage: float, value: float, gradient: float) -> None:
    assert value_and_gradient(ratio, advantage) == pytest.approx((value, gradient))
    assert value_and_gradient(ratio, advantage, weight=0.5) == pytest.approx((value / 2, gradient / 2))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [91.0, -91.0, 1e4, -1e4])
def test_no_log_ratio_is_too_large(log_ratio: float, advantage: float) -> None:
    """A token at -91 made the public loss infinite, and its mask of 0 made that no number at all."""
    logp = torch.tensor([-1.0 + log_ratio, -1.0], requires_grad=True)  # float32, where e^91 is infinite
    start = torch.tensor([-1.0, -1.0])
    tokens = LossInputs(
        logp_T=logp,
        entropy_T=torch.zeros(2),
        start_logp_T=start,
        sampled_logp_T=start - log_ratio,
        advantage_T=torch.full((2,), advantage),
        mask_T=torch.tensor([0.0, 1.0]),
        reference_logp_T=start + log_ratio,
    )
    rule = LossConfig(kl_weight=1.0)
    loss = compute_loss(tokens, rule)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logp.grad).all()
    assert logp.grad[0] == 0
    assert torch.isfinite(compute_loss_stats(tokens, loss, rule)).all()


def test_bounded_exp_keeps_a_gradient_beyond_its_bounds() -> None:
    log = row(0.0, 1.0, 5.0, -50.0, grad=True)
    value = bounded_exp(log, high=math.log(4.0))
    value.sum().backward()
    assert value.tolist() == pytest.approx([1.0, math.e, 4.0, math.exp(-20)])
    assert log.grad.tolist() == pytest.approx(value.tolist())


def test_staleness_weight_is_the_truncated_ratio_without_a_gradient() -> None:
    start = row(-1.0, -1.0, -1.0, grad=True)
    sampled = row(-1.0, -1.0 + math.log(2.0), -1.0 - math.log(8.0))
    weight = compute_staleness_weight(start, sampled, RULE)
    assert weight.tolist() == pytest.approx([1.0, 0.5, 2.0])
    assert not weight.requires_grad
    assert compute_staleness_weight(start, sampled, LossConfig(correct=False)).tolist() == [1.0, 1.0, 1.0]


def test_kl_is_the_third_estimator_and_pulls() -> None:
    """The public trainer took it between two constants, so it pulled at nothing."""
    logp = row(-1.0, -2.0, -0.5, grad=True)
    reference = row(-1.0, -1.0, -2.0)
    kl = compute_kl_to_reference(logp, reference)
    kl.sum().backward()
    ratios = (reference - logp).exp()
    assert kl.tolist() == pytest.approx((ratios - 1 - (reference - logp)).tolist())
    assert logp.grad.tolist() == pytest.approx((1 - ratios).tolist())
    assert logp.grad[1] < 0 < logp.grad[2], "towards the reference from both sides"


def make_tokens(count: int, *, seed: int = 0) -> LossInputs:
    torch.manual_seed(seed)
    logp = -torch.rand(count, dtype=torch.float64)
    return LossInputs(
        logp_T=logp.requires_grad_(),
        entropy_T=torch.rand(count, dtype=torch.float64).requires_grad_(),
        start_logp_T=-torch.rand(count, dtype=torch.float64),
        sampled_logp_T=-torch.rand(count, dtype=torch.float64),
        advantage_T=torch.randn(count, dtype=torch.float64),
        mask_T=torch.ones(count, dtype=torch.float64),
        reference_logp_T=-torch.rand(count, dtype=torch.float64),
    )


def test_total_is_the_sum_of_its_parts() -> None:
    tokens = make_tokens(50)
    rule = LossConfig(kl_weight=0.3, entropy_weight=0.2)
    assert tokens.reference_logp_T is not None
    weight = compute_staleness_weight(tokens.start_logp_T, tokens.sampled_logp_T, rule)
    expected = (
        compute_policy_loss(tokens.logp_T, tokens.start_logp_T, tokens.advantage_T, weight, rule)
        + 0.3 * compute_kl_to_reference(tokens.logp_T, tokens.reference_logp_T)
        - 0.2 * tokens.entropy_T
    ).sum()
    loss = compute_loss(tokens, rule)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item())
    assert tokens.entropy_T.grad.tolist() == pytest.approx([-0.2] * 50)


def test_what_does_not_count_has_no_part_in_loss_gradient_or_sums() -> None:
    whole = make_tokens(20)
    counts = torch.tensor([1.0] * 12 + [0.0] * 8, dtype=torch.float64)
    masked = LossInputs(*(getattr(whole, name) for name in LossInputs.__slots__[:5]), counts, whole.reference_logp_T)
    part = LossInputs(*(getattr(whole, name)[:12] for name in LossInputs.__slots__))
    rule = LossConfig(kl_weight=0.3, entropy_weight=0.2)
    loss = compute_loss(masked, rule)
    loss.backward()
    assert loss.item() == pytest.approx(compute_loss(part, rule).item())
    assert whole.logp_T.grad[12:].abs().sum() == 0
    assert compute_loss_stats(masked, loss, rule).tolist() == pytest.approx(
        compute_loss_stats(part, loss, rule).tolist()
    )


def test_monitors_count_what_moved_what_was_clipped_and_what_was_truncated() -> None:
    ratio = row(1.0, 1.5, 1.5, 0.5, 50.0)  # against the start of the step
    moved = row(0.0, math.log(3.0), -math.log(3.0), 0.1, 0.0)  # start against the worker's
    tokens = LossInputs(
        logp_T=ratio.log() - 1,
        entropy_T=row(1.0, 2.0, 3.0, 4.0, 5.0),
        start_logp_T=row(-1.0, -1.0, -1.0, -1.0, -1.0),
        sampled_logp_T=-1 - moved,
        advantage_T=row(1.0, 1.0, -1.0, -1.0, -1.0),
        mask_T=row(1.0, 1.0, 1.0, 1.0, 1.0),
    )
    found = dict(zip(LOSS_STATS, compute_loss_stats(tokens, row(7.0).sum(), RULE).tolist(), strict=True))
    assert found["tokens"] == 5
    assert found["loss"] == 7
    assert found["entropy"] == 15
    assert found["tail"] == 2
    assert found["truncated"] == 1
    assert found["clipped"] == 3, "the second by clip_high, the fourth by clip_low, the fifth by delta"
    assert found["mismatch_kl"] == pytest.approx((moved.exp() - 1 - moved).sum().item())
    assert found["kl"] == 0
