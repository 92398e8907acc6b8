"""Checkpoints: what is loaded is what was saved, and what is not as it was written is not loaded."""

from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prime_lab.devnet.tiny_models import make_tiny_checkpoint
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest, Step
from prime_trainer.checkpoints import (
    TrainState,
    find_newest_checkpoint,
    list_checkpoints,
    load_optimizer,
    save_checkpoint,
)
from prime_trainer.config import BatchConfig, LossConfig, OptimizerConfig
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel
from prime_trainer.publish.publisher import make_bf16_copy, verify_model_files
from prime_trainer.train import Learner
from support.training_samples import flip_bit, make_sample

SAMPLES = [make_sample(number, prompt=3, output=2 + number % 5) for number in range(6)]
NAMES = tuple(Digest(sha256(text.encode()).digest()) for text in ("a", "b"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), hidden=32, layers=1, prompt="{prompt}")


def make_learner(folder: Path, norms: tuple[float, ...] = (), updates: int = 0) -> Learner:
    policy, schedule = PolicyModel.load(folder), OptimizerConfig(learning_rate=1e-3, warmup_steps=0)
    return Learner(
        policy=policy,
        optimizer=make_optimizer(policy.model, schedule),
        guard=GradientGuard(schedule.outlier, norms),
        ranks=RankGroup(),
        loss=LossConfig(),
        batch=BatchConfig(),
        schedule=schedule,
        updates=updates,
    )


def keep(learner: Learner, folder: Path, model: Path, step: int) -> Path:
    position = TrainState(
        step=Step(step),
        trained_on=NAMES,
        updates=learner.updates,
        gradient_norms=learner.guard.norms,
        metrics={"step": step, "loss": 0.5},
    )
    return save_checkpoint(folder, model, learner.policy.model, learner.optimizer, position, learner.ranks, keep=2)


def test_training_goes_on_from_a_checkpoint_as_if_it_had_never_ended(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    for step in (1, 2):
        learner.train_step(SAMPLES, step)
    keep(learner, tmp_path, model, 2)
    saved = find_newest_checkpoint(tmp_path).saved
    assert saved is not None
    position = saved.state
    assert (position.step, position.trained_on, position.metrics["loss"]) == (2, NAMES, 0.5)
    again = make_learner(saved.model, position.gradient_norms, position.updates)
    load_optimizer(saved, again.policy.model, again.optimizer)
    for step in (3, 4):
        assert learner.train_step(SAMPLES, step) == again.train_step(SAMPLES, step)
    for mine, other in zip(learner.policy.model.parameters(), again.policy.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_only_the_newest_are_kept_and_half_written_ones_are_none(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    assert find_newest_checkpoint(tmp_path).saved is None
    (tmp_path / "step-00000009.draft").mkdir()
    for step in range(4):
        keep(learner, tmp_path, model, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]
    saved = find_newest_checkpoint(tmp_path).saved
    assert saved is not None
    assert saved.state.step == 3


@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "optimizer.safetensors", "position.json", "model/config.json"]
)
def test_damaged_checkpoint_is_named_and_the_one_before_is_found(model: Path, tmp_path: Path, name: str) -> None:
    learner = make_learner(model)
    learner.train_step(SAMPLES, 1)
    keep(learner, tmp_path, model, 1)
    path = keep(learner, tmp_path, model, 2)
    flip_bit(path / name)
    found = find_newest_checkpoint(tmp_path)
    assert found.saved is not None
    assert found.saved.state.step == 1
    (damaged,) = found.damaged
    assert damaged.folder == path
    assert name in damaged.problem


def test_missing_file_is_named_too(model: Path, tmp_path: Path) -> None:
    (keep(make_learner(model), tmp_path, model, 1) / "optimizer.safetensors").unlink()
    found = find_newest_checkpoint(tmp_path)
    assert found.saved is None
    assert "optimizer.safetensors: is not as it was written" in found.damaged[0].problem


def test_weights_that_changed_on_disk_are_not_published(model: Path, tmp_path: Path) -> None:
    path = keep(make_learner(model), tmp_path, model, 1)
    verify_model_files(path)
    flip_bit(path / "model/model.safetensors")
    with pytest.raises(LocalError, match=r"damaged before it was published: model/model\.safetensors"):
        verify_model_files(path)


def test_published_copy_is_bf16_with_the_model_s_own_names_and_files_and_always_the_same(
    model: Path, tmp_path: Path
) -> None:
    learner = make_learner(model)
    saved = keep(learner, tmp_path, model, 0)
    copy = make_bf16_copy(saved / "model", tmp_path / "outgoing")
    given, made = load_file(model / "model.safetensors"), load_file(copy / "model.safetensors")
    assert given.keys() == made.keys()
    for name, tensor in given.items():
        assert torch.equal(tensor, made[name]), "bf16 weights that nobody moved come out as they went in"
    for name in ("config.json", "tokenizer.json", "generation_config.json", "prompt.txt"):
        assert (copy / name).read_bytes() == (model / name).read_bytes()
    once = (copy / "model.safetensors").read_bytes()
    assert (make_bf16_copy(saved / "model", tmp_path / "outgoing") / "model.safetensors").read_bytes() == once
