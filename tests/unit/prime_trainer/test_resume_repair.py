"""A damaged checkpoint: set aside by name, and training goes on from what is whole and was published."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prime_protocol.errors import LocalError
from prime_protocol.weights.manifest import ManifestKind, SignedManifest
from prime_protocol.wire.ids import Step
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.checkpoints import SavedCheckpoint, TrainState, find_newest_checkpoint, save_checkpoint
from prime_trainer.config import PublishConfig
from prime_trainer.model.tiny import make_tiny_checkpoint
from prime_trainer.publish.publisher import make_bf16_copy
from prime_trainer.resume import repair_checkpoints
from support.gossip_examples import NETWORK, NOW_MS, RUN, key_of
from support.training_samples import flip_bit, make_learner, make_sample

TRAINER = key_of("trainer")
SAMPLES = [make_sample(number, prompt=3, output=2 + number % 5) for number in range(6)]


class Workplace:
    """A trainer's folders after three checkpoints, all of them in the store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        self.config = PublishConfig(
            store=folder / "store",
            coordinator="http://c:8440",
            coordinator_id="0x" + "11" * 20,
            run=RUN,
            network=NETWORK,
        )
        self.config.store.mkdir()
        self.model = make_tiny_checkpoint(folder / "model", hidden=32, layers=1)
        self.learner = make_learner(self.model)
        self.roots = [self.publish(self.keep(step), step).root for step in range(3)]

    def keep(self, step: int) -> Path:
        learner = self.learner
        if step:
            learner.train_step(SAMPLES, step)
        position = TrainState(step=Step(step), updates=learner.updates, gradient_norms=learner.guard.norms)
        return save_checkpoint(
            self.checkpoints, self.model, learner.policy.model, learner.optimizer, position, learner.ranks, keep=2
        )

    def publish(self, checkpoint: Path, step: int) -> SignedManifest:
        copy = make_bf16_copy(checkpoint / "model", self.folder / "outgoing")
        (made,) = publish_checkpoint(
            self.open_store(),
            copy,
            key=TRAINER,
            step=Step(step),
            sequence=SequenceCounter(),
            now_ms=NOW_MS,
            keyframe=False,
            threads=1,
        )
        return made

    def open_store(self) -> ShardStore:
        return ShardStore(self.config.store, network=NETWORK, run=RUN, trainer=TRAINER.node)

    def repair(self, latest: int) -> SavedCheckpoint | None:
        return repair_checkpoints(
            self.config, TRAINER.node, self.checkpoints, find_newest_checkpoint(self.checkpoints), latest
        )

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_whole_checkpoint_is_taken_as_it_is(place: Workplace) -> None:
    saved = place.repair(latest=2)
    assert saved is not None
    assert saved.state.step == 2
    assert place.names == ["step-00000001", "step-00000002"]
    assert place.roots[2] in place.open_store().checkpoints()


def test_step_that_nobody_heard_of_is_learnt_again_from_the_one_before(
    place: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    flip_bit(place.checkpoints / "step-00000002" / "optimizer.safetensors")
    saved = place.repair(latest=1)
    assert saved is not None
    assert saved.state.step == 1
    assert "step-00000002 is damaged: optimizer.safetensors" in caplog.text
    assert place.names == ["step-00000001", "step-00000002.damaged"]
    again = place.publish(place.keep(2), 2)
    assert again.manifest.kind is ManifestKind.KEYFRAME, "what the store had of step 2 was another one, and is no base"
    assert find_newest_checkpoint(place.checkpoints).damaged == ()


def test_step_that_is_published_goes_on_from_what_was_published(place: Workplace) -> None:
    flip_bit(place.checkpoints / "step-00000002" / "model" / "model.safetensors")
    saved = place.repair(latest=2)
    assert saved is not None
    assert saved == find_newest_checkpoint(place.checkpoints).saved, "it is whole on disk"
    before = load_file(place.checkpoints / "step-00000001" / "optimizer.safetensors")
    after = load_file(saved.folder / "optimizer.safetensors")
    assert before
    assert all(torch.equal(before[name], after[name]) for name in before | after)
    published = load_file(place.open_store().checkpoint_path(place.roots[2]) / "model.safetensors")
    mended = load_file(saved.model / "model.safetensors")
    assert all(torch.equal(published[name].float(), mended[name]) for name in published | mended)
    assert make_learner(saved.model).train_step(SAMPLES, 3)["is_applied"]
    following = place.publish(place.keep(3), 3)
    assert following.manifest.base == place.roots[2], "the delta is from what everybody has"


def test_it_is_mended_after_an_end_in_the_middle_of_mending(place: Workplace) -> None:
    damaged = place.checkpoints / "step-00000002"
    damaged.rename(damaged.with_name("step-00000002.damaged"))
    saved = place.repair(latest=2)
    assert saved is not None
    assert saved.state.step == 2


def test_damage_on_both_sides_is_refused_by_name_and_nothing_is_moved(place: Workplace) -> None:
    flip_bit(place.checkpoints / "step-00000002" / "state.json")
    flip_bit(place.open_store().checkpoint_path(place.roots[2]) / "model.safetensors")
    with pytest.raises(LocalError, match=r"published weights in .* are damaged too: tensors.*restore .*step-00000002"):
        place.repair(latest=2)
    assert place.names == ["step-00000001", "step-00000002"]


def test_where_no_checkpoint_is_whole_the_owner_is_asked_for_a_copy(place: Workplace) -> None:
    for name in place.names:
        flip_bit(place.checkpoints / name / "optimizer.safetensors")
    with pytest.raises(LocalError, match=r"no checkpoint before step 2 is intact; restore .*step-00000002 from a copy"):
        place.repair(latest=2)
