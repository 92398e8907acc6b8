"""Log-probs and entropies against autograd's own way."""

import pytest
import torch
from torch.autograd import gradcheck

from prime_trainer.model import logprobs
from prime_trainer.model.logprobs import score_tokens


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    logits = (3 * torch.randn(7, 11, dtype=torch.float64)).requires_grad_()
    return logits, torch.randint(0, 11, (7,)), torch.tensor([1.0, 0.6, 2.0, 1.0, 0.5, 1.5, 1.0], dtype=torch.float64)


def test_values_and_gradients_are_those_of_log_softmax() -> None:
    logits, targets, temperature = inputs()
    log = (logits / temperature[:, None]).log_softmax(-1)
    plain_logp = log.gather(-1, targets[:, None])[:, 0]
    plain_entropy = -(log.exp() * log).sum(-1)
    pull = torch.linspace(-1, 1, 7, dtype=torch.float64)
    (plain,) = torch.autograd.grad((plain_logp * pull + plain_entropy * pull**2).sum(), logits)
    logp, entropy = score_tokens(logits, targets, temperature)
    (grad,) = torch.autograd.grad((logp * pull + entropy * pull**2).sum(), logits)
    torch.testing.assert_close(logp, plain_logp, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy, plain_entropy, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad, plain, rtol=1e-5, atol=1e-6)


def test_rows_taken_a_few_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets, temperature = inputs()
    whole = score_tokens(logits, targets, temperature)
    (grad,) = torch.autograd.grad((whole[0] + whole[1]).sum(), logits)
    monkeypatch.setitem(logprobs.CHUNK_BYTES, "cpu", 2 * 4 * 11)
    parts = score_tokens(logits, targets, temperature)
    (grad_of_parts,) = torch.autograd.grad((parts[0] + parts[1]).sum(), logits)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(grad_of_parts, grad)


def test_logits_far_apart_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    logp, entropy = score_tokens(logits, torch.tensor([1]), torch.tensor([1.0]))
    (logp + entropy).sum().backward()
    assert logp.item() == -2e4
    assert entropy.item() == 0
    assert torch.isfinite(logits.grad).all()


def test_gradient_is_the_derivative() -> None:
    logits, targets, temperature = inputs()
    assert gradcheck(lambda x: score_tokens(x, targets, temperature), logits)
