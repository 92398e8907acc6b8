"""A step of learning: minibatches, what the guard skips, the pull to a reference, and that it does learn."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from prime_trainer.config import BatchConfig
from prime_trainer.data.packing import Sample
from prime_trainer.model import offload as offload_module
from prime_trainer.model.optimizer import make_optimizer
from prime_trainer.model.policy import PolicyModel
from prime_trainer.model.tiny import make_tiny_checkpoint
from prime_trainer.train import Learner
from support.training_samples import make_learner, make_sample

SAMPLES = [make_sample(number, prompt=3, output=2 + number % 5) for number in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), hidden=32, layers=1)


def weights_of(learner: Learner) -> Any:
    return torch.cat([each.detach().flatten() for each in learner.policy.model.parameters()])


def test_good_tokens_become_likelier_and_bad_ones_less(folder: Path) -> None:
    learner = make_learner(folder)
    packs = learner._pack_for_rank(SAMPLES)

    def gain() -> float:
        """Sum of advantage times log-prob."""
        with torch.no_grad():
            return sum(
                float((read.logp_T * read.advantage_T).sum()) for read in map(learner.policy.compute_loss_inputs, packs)
            )

    before = gain()
    facts = learner.train_step(SAMPLES, 1)
    assert gain() > before
    assert facts["is_applied"]
    assert facts["tokens"] == sum(len(sample.output_tokens) for sample in SAMPLES)
    assert facts["clipped"] == 0, "one update starts where it is read"
    assert (learner.updates, len(learner.guard.norms)) == (1, 1)


def test_minibatches_are_weighed_against_the_weights_that_the_step_began_with(folder: Path) -> None:
    learner = make_learner(folder, learning_rate=0.05, clip_norm=100.0)
    learner.batch = BatchConfig(pack_tokens=32, minibatches=3)
    facts = learner.train_step(SAMPLES, 1)
    assert learner.updates == 3
    assert facts["clipped"] > 0, "with so large a step the later parts have moved"


def test_bad_gradient_leaves_weights_and_optimizer_as_they_were(folder: Path) -> None:
    learner = make_learner(folder)
    learner.train_step(SAMPLES, 1)
    before, state = weights_of(learner), learner.optimizer.state_dict()
    broken = Sample(
        *(getattr(SAMPLES[0], name) for name in Sample.__slots__[:3]), advantage=float("nan"), temperature=1.0
    )
    facts = learner.train_step([*SAMPLES, broken], 2)
    assert not facts["is_applied"]
    assert "norm is nan" in facts["problem"]
    assert facts["loss"] is None
    json.dumps(facts, allow_nan=False)
    assert torch.equal(weights_of(learner), before)
    assert learner.updates == 1
    assert str(learner.optimizer.state_dict()) == str(state)
    assert learner.train_step(SAMPLES, 3)["is_applied"], "and the next step goes on"


def test_nothing_to_learn_from_changes_nothing_and_says_so(folder: Path) -> None:
    learner = make_learner(folder)
    before = weights_of(learner)
    facts = learner.train_step([], 1)
    assert (facts["is_applied"], facts["problem"], facts["tokens"]) == (False, "no group had a signal", 0)
    assert torch.equal(weights_of(learner), before)


def test_reference_holds_the_policy_back(folder: Path) -> None:
    moved = []
    for learner in (make_learner(folder), make_learner(folder, reference=True)):
        before = weights_of(learner)
        for step in range(1, 6):
            facts = learner.train_step(SAMPLES, step)
        moved.append((float((weights_of(learner) - before).norm()), facts["kl"]))
    (free, no_kl), (held, kl) = moved
    assert held < free
    assert no_kl == 0 < kl


@pytest.mark.parametrize("offload", [False, True])
def test_checkpointed_and_offloaded_activations_give_the_same_gradient(
    folder: Path, offload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload_module, "VALUES_MIN", 1)
    plain, frugal = make_learner(folder), make_learner(folder)
    frugal.policy = PolicyModel.load(folder, gradient_checkpointing=True, is_offloading=offload)
    frugal.optimizer = make_optimizer(frugal.policy.model, frugal.schedule)
    assert frugal.policy.model.is_gradient_checkpointing
    for learner in (plain, frugal):
        learner.train_step(SAMPLES, 1)
    torch.testing.assert_close(weights_of(plain), weights_of(frugal))
