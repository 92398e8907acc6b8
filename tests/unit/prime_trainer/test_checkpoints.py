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
    load_tensors,
    remove_old_checkpoints,
    stage_state,
    write_checkpoint,
)
from prime_trainer.config import BatchConfig, LossConfig, OptimizerConfig
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel
from prime_trainer.model.tiny import make_tiny_checkpoint
from prime_trainer.publish.outgoing import stage_weights, write_weights
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
    path = write_checkpoint(folder, model, state, stage_state(learner.policy.model, learner.optimizer), learner.ranks)
    remove_old_checkpoints(folder, keep=2, published=step)
    return path


def test_training_resumes_from_a_checkpoint_with_equal_results(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    for step in (1, 2):
        learner.train_step(SAMPLES, step)
    save(learner, tmp_path, model, 2)
    saved = find_newest_checkpoint(tmp_path).saved
    assert saved is not None
    state = saved.state
    assert (state.step, state.trained_on, state.metrics["loss"]) == (2, NAMES, 0.5)
    again = make_learner(model, state.gradient_norms, state.updates)
    load_tensors(saved, again.policy.model, again.optimizer, again.ranks)
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


@pytest.mark.parametrize("name", ["tensors/__0_0.distcp", "tensors/.metadata", "state.json", "model/config.json"])
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
    (save(make_learner(model), tmp_path, model, 1) / "tensors/__0_0.distcp").unlink()
    scan = find_newest_checkpoint(tmp_path)
    assert scan.saved is None
    assert "tensors/__0_0.distcp differs from what was written" in scan.damaged[0].problem


def test_unreadable_state_is_a_disk_error_and_not_damage(model: Path, tmp_path: Path) -> None:
    """Damage would quarantine the checkpoint; a file that cannot be read may be intact."""
    path = save(make_learner(model), tmp_path, model, 1)
    (path / "state.json").unlink()
    (path / "state.json").mkdir()
    with pytest.raises(LocalError, match=r"cannot read .*state\.json: Is a directory") as raised:
        find_newest_checkpoint(tmp_path)
    assert not isinstance(raised.value, CheckpointDamaged)


def test_unreadable_tensors_are_a_disk_error(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    saved = SavedCheckpoint(save(learner, tmp_path, model, 1), TrainState(step=Step(1)))
    (saved.folder / "tensors/.metadata").write_bytes(b"cut")
    with pytest.raises(LocalError, match=r"cannot read .*tensors"):
        load_tensors(saved, learner.policy.model, learner.optimizer, learner.ranks)


def test_tensors_of_another_model_are_refused(model: Path, tmp_path: Path) -> None:
    saved = SavedCheckpoint(save(make_learner(model), tmp_path, model, 1), TrainState(step=Step(1)))
    other = make_learner(make_tiny_checkpoint(tmp_path / "other", hidden=32, layers=2))
    with pytest.raises(LocalError, match="is of another model"):
        load_tensors(saved, other.policy.model, other.optimizer, other.ranks)


def test_newest_published_checkpoint_is_kept_however_old(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)
    for step in range(5):
        state = TrainState(step=Step(step))
        write_checkpoint(tmp_path, model, state, stage_state(learner.policy.model, learner.optimizer), learner.ranks)
    assert remove_old_checkpoints(tmp_path, keep=2, published=1) == 1
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001", "step-00000003", "step-00000004"]
    scan = find_newest_checkpoint(tmp_path, 2)
    assert scan.saved is not None
    assert scan.saved.state.step == 1


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


def test_published_copy_is_bf16_with_the_model_s_names_and_files_and_deterministic(model: Path, tmp_path: Path) -> None:
    learner = make_learner(model)

    def write(name: str) -> Path:
        return write_weights(tmp_path / name, model, stage_weights(learner.policy.model, learner.ranks), learner.ranks)

    copy = write("outgoing")
    given, made = load_file(model / "model.safetensors"), load_file(copy / "model.safetensors")
    assert given.keys() == made.keys()
    for name, tensor in given.items():
        assert torch.equal(tensor, made[name]), "bf16 weights that nobody moved come out as they went in"
    for name in ("config.json", "tokenizer.json", "generation_config.json", "prompt.txt"):
        assert (copy / name).read_bytes() == (model / name).read_bytes()
    once = (copy / "model.safetensors").read_bytes()
    assert (write("again") / "model.safetensors").read_bytes() == once
