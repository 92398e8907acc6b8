"""Checkpoints: loading returns what was saved; a damaged checkpoint is found; disk errors are LocalErrors."""

from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest, Step
from prime_trainer.checkpoints import (
    CheckpointDamaged,
    SavedCheckpoint,
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
from prime_trainer.model.tiny import make_tiny_checkpoint
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


def save(learner: Learner, folder: Path, model: Path, step: int) -> Path:
    state = TrainState(
        step=Step(step),
        trained_on=NAMES,
        updates=learner.updates,
        gradient_norms=learner.guard.norms,
        metrics={"step": step, "loss": 0.5},
    )
    return save_checkpoint(folder, model, learner.policy.model, learner.optimizer, state, learner.ranks, keep=2)


def test_training_resumes_from_a_checkpoint_with_equal_results(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    for step in (1, 2):
        learner.train_step(SAMPLES, step)
    save(learner, tmp_path, model, 2)
    saved = find_newest_checkpoint(tmp_path).saved
    assert saved is not None
    state = saved.state
    assert (state.step, state.trained_on, state.metrics["loss"]) == (2, NAMES, 0.5)
    again = make_learner(saved.model, state.gradient_norms, state.updates)
    load_optimizer(saved, again.policy.model, again.optimizer)
    for step in (3, 4):
        assert learner.train_step(SAMPLES, step) == again.train_step(SAMPLES, step)
    for mine, other in zip(learner.policy.model.parameters(), again.policy.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_only_the_newest_are_kept_and_drafts_are_ignored(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    assert find_newest_checkpoint(tmp_path).saved is None
    (tmp_path / "step-00000009.draft").mkdir()
    for step in range(4):
        save(learner, tmp_path, model, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]
    saved = find_newest_checkpoint(tmp_path).saved
    assert saved is not None
    assert saved.state.step == 3


@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "optimizer.safetensors", "state.json", "model/config.json"]
)
def test_damaged_checkpoint_is_named_and_the_one_before_is_found(model: Path, tmp_path: Path, name: str) -> None:
    learner = make_learner(model)
    learner.train_step(SAMPLES, 1)
    save(learner, tmp_path, model, 1)
    path = save(learner, tmp_path, model, 2)
    flip_bit(path / name)
    scan = find_newest_checkpoint(tmp_path)
    assert scan.saved is not None
    assert scan.saved.state.step == 1
    (damaged,) = scan.damaged
    assert damaged.folder == path
    assert name in damaged.problem


def test_missing_file_is_named(model: Path, tmp_path: Path) -> None:
    (save(make_learner(model), tmp_path, model, 1) / "optimizer.safetensors").unlink()
    scan = find_newest_checkpoint(tmp_path)
    assert scan.saved is None
    assert "optimizer.safetensors differs from what was written" in scan.damaged[0].problem


def test_unreadable_state_is_a_disk_error_and_not_damage(model: Path, tmp_path: Path) -> None:
    """Damage would quarantine the checkpoint; a file that cannot be read may be intact."""
    path = save(make_learner(model), tmp_path, model, 1)
    (path / "state.json").unlink()
    (path / "state.json").mkdir()
    with pytest.raises(LocalError, match=r"cannot read .*state\.json: Is a directory") as raised:
        find_newest_checkpoint(tmp_path)
    assert not isinstance(raised.value, CheckpointDamaged)


def test_unreadable_optimizer_state_is_a_disk_error(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    saved = SavedCheckpoint(save(learner, tmp_path, model, 1), TrainState(step=Step(1)))
    (saved.folder / "optimizer.safetensors").write_bytes(b"cut")
    with pytest.raises(LocalError, match=r"cannot read .*optimizer\.safetensors"):
        load_optimizer(saved, learner.policy.model, learner.optimizer)


def test_checkpoint_that_cannot_be_written_or_removed_is_a_disk_error(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(LocalError, match=r"cannot write the checkpoint .*step-00000001: Not a directory"):
        save(learner, file / "checkpoints", model, 1)
    (tmp_path / "step-00000000").write_bytes(b"not a folder")
    save(learner, tmp_path, model, 1)
    with pytest.raises(LocalError, match="cannot remove old checkpoints in"):
        save(learner, tmp_path, model, 2)


def test_weights_that_changed_on_disk_are_not_published(model: Path, tmp_path: Path) -> None:
    path = save(make_learner(model), tmp_path, model, 1)
    verify_model_files(path)
    flip_bit(path / "model/model.safetensors")
    with pytest.raises(LocalError, match=r"damaged before it was published: model/model\.safetensors"):
        verify_model_files(path)


def test_published_copy_is_bf16_with_the_model_s_names_and_files_and_deterministic(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    saved = save(learner, tmp_path, model, 0)
    copy = make_bf16_copy(saved / "model", tmp_path / "outgoing")
    given, made = load_file(model / "model.safetensors"), load_file(copy / "model.safetensors")
    assert given.keys() == made.keys()
    for name, tensor in given.items():
        assert torch.equal(tensor, made[name]), "bf16 weights that nobody moved come out as they went in"
    for name in ("config.json", "tokenizer.json", "generation_config.json", "prompt.txt"):
        assert (copy / name).read_bytes() == (model / name).read_bytes()
    once = (copy / "model.safetensors").read_bytes()
    assert (make_bf16_copy(saved / "model", tmp_path / "outgoing") / "model.safetensors").read_bytes() == once
