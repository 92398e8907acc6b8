"""Starts after any end: the steps since the last checkpoint are computed again and arrive at what was published."""

import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import RunStatus
from prime_protocol.weights.manifest import ManifestKind, SignedManifest
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import RunReply
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.checkpoints import (
    STATE,
    TENSORS,
    TrainState,
    encode_state,
    list_checkpoints,
    stage_state,
    write_checkpoint,
)
from prime_trainer.config import BatchConfig, OptimizerConfig, TrainConfig
from prime_trainer.data.batch_log import BatchLog
from prime_trainer.data.rollout_buffer import TrainingBatch
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.tiny import make_tiny_checkpoint
from prime_trainer.publish.outgoing import stage_weights, write_weights
from prime_trainer.resume import StartPoint, catch_up, make_learner, prepare_start
from prime_trainer.train import Learner, make_state
from support.gossip_examples import NETWORK, NOW_MS, RUN, key_of
from support.ledger_network import TERMS
from support.training_samples import flip_bit, make_sample

TRAINER = key_of("trainer")
STEPS = 4
SAVED = (0, 2)
"""Steps with a checkpoint; all of them are published."""


def make_batch(step: int) -> TrainingBatch:
    samples = tuple(make_sample(10 * step + number, prompt=3, output=2 + number % 5) for number in range(6))
    return TrainingBatch((Digest(sha256(str(step).encode()).digest()),), samples, {"groups": step})


class Workplace:
    """A trainer's folders after some steps."""

    def __init__(self, folder: Path, steps: int = STEPS) -> None:
        self.folder = folder
        self.config = TrainConfig(
            store=folder / "store",
            coordinator="http://c:8440",
            coordinator_id="0x" + "11" * 20,
            run=RUN,
            network=NETWORK,
            folder=folder / "trainer",
            model=make_tiny_checkpoint(folder / "model", hidden=32, layers=1),
            batch=BatchConfig(pack_tokens=32),
            optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=0),
        )
        self.config.store.mkdir()
        self.checkpoints = self.config.folder / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        self.batches = BatchLog(self.config.folder / "batches")
        model = self.config.model
        self.learner = make_learner(self.config, RankGroup(), StartPoint(model, TrainState(step=Step(0)), None))
        self.state = TrainState(step=Step(0))
        self.save()
        self.roots = [self.publish().root]
        for step in range(1, steps + 1):
            self.learn(step)
            self.roots.append(self.publish().root)

    def learn(self, step: int) -> None:
        batch = make_batch(step)
        self.batches.write(step, batch)
        facts = self.learner.train_step(batch.samples, step)
        assert facts["is_applied"]
        self.state = make_state(self.learner, Step(step), batch, facts, at_ms=NOW_MS)
        if step in SAVED:
            self.save()

    def save(self) -> None:
        tensors = stage_state(self.learner.policy.model, self.learner.optimizer)
        write_checkpoint(self.checkpoints, self.config.model, self.state, tensors, RankGroup())

    def publish(self) -> SignedManifest:
        staged = stage_weights(self.learner.policy.model, RankGroup())
        folder = write_weights(self.folder / "outgoing", self.config.model, staged, RankGroup())
        (made,) = publish_checkpoint(
            self.open_store(),
            folder,
            key=TRAINER,
            step=self.state.step,
            sequence=SequenceCounter(),
            now_ms=NOW_MS,
            keyframe=False,
            threads=1,
        )
        return made

    def open_store(self) -> ShardStore:
        return ShardStore(self.config.store, network=NETWORK, run=RUN, trainer=TRAINER.node)

    def prepare(self, latest: int, *, is_restored: bool = False) -> StartPoint:
        run = RunReply(
            status=RunStatus.ACTIVE,
            terms=replace(TERMS, trainer=TRAINER.node),
            rules=PROTOCOL_VERSION,
            latest_step=latest,
            is_exhausted=False,
            accepted=(),
            restored_size=int(is_restored),
        )
        return prepare_start(self.config, TRAINER.node, run)

    def resume(self, latest: int) -> tuple[Learner, TrainState]:
        start = self.prepare(latest)
        learner = make_learner(self.config, RankGroup(), start)
        return learner, catch_up(learner, start, self.batches, now_ms=NOW_MS)

    def check_equals(self, learner: Learner) -> None:
        """Weights and moments are those of the process that went on, bit by bit."""
        mine, other = (stage_state(each.policy.model, each.optimizer) for each in (self.learner, learner))
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)
        assert (learner.updates, learner.guard.norms) == (self.learner.updates, self.learner.guard.norms)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_steps_since_the_checkpoint_are_computed_again_bit_by_bit(
    place: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    learner, state = place.resume(latest=STEPS)
    place.check_equals(learner)
    assert (state.step, state.trained_on) == (STEPS, place.state.trained_on)
    assert state.metrics["loss"] == place.state.metrics["loss"]
    assert "differ from those" not in caplog.text


def test_folder_of_version_0_1_0_is_refused_before_anything_in_it_changes(place: Workplace) -> None:
    """Its checkpoints had their tensors in other files."""
    for step, checkpoint in zip(SAVED, list_checkpoints(place.checkpoints), strict=True):
        shutil.rmtree(checkpoint / TENSORS)
        (checkpoint / STATE).write_text(encode_state(TrainState(step=Step(step)), {}))
    before = sorted(place.folder.rglob("*"))
    with pytest.raises(LocalError, match=r"was written by version 0\.1\.0, .*nothing was changed"):
        place.prepare(latest=2)
    assert sorted(place.folder.rglob("*")) == before


def test_checkpoint_at_the_step_of_the_log_is_taken_as_it_is(place: Workplace) -> None:
    learner, state = place.resume(latest=2)
    assert state.step == 2
    assert state.metrics["groups"] == 2
    for step in (3, 4):
        learner.train_step(make_batch(step).samples, step)
    place.check_equals(learner)


def test_step_in_the_store_and_not_in_the_log_is_made_again_from_its_batch(place: Workplace) -> None:
    """As after an end between the store and the log."""
    start = place.prepare(latest=STEPS - 1)
    assert (start.state.step, start.goal) == (2, STEPS)
    learner, _ = place.resume(latest=STEPS - 1)
    place.check_equals(learner)
    flip_bit(place.batches.folder / "step-00000004.npz")
    start = place.prepare(latest=STEPS - 1)
    assert (start.state.step, start.goal) == (2, STEPS - 1)
    assert place.roots[STEPS] not in place.open_store().checkpoints(), "what cannot be made again is no base of a delta"


def test_checkpoint_beyond_the_log_is_removed_and_its_batches_are_kept(place: Workplace) -> None:
    start = place.prepare(latest=1)
    assert (start.state.step, start.goal) == (0, 1)
    assert place.names == ["step-00000000"]
    assert place.batches.list_steps() == [1, 2, 3, 4]
    assert place.open_store().checkpoints() == {}


def test_after_a_restore_only_the_first_lost_step_is_made_again(place: Workplace) -> None:
    place.prepare(latest=1, is_restored=True)
    assert place.batches.list_steps() == [1, 2]


def test_damaged_checkpoint_is_set_aside_and_the_one_before_is_taken(
    place: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    flip_bit(place.checkpoints / "step-00000002" / "tensors" / "__0_0.distcp")
    learner, _ = place.resume(latest=STEPS)
    place.check_equals(learner)
    assert "step-00000002 is damaged: tensors/__0_0.distcp" in caplog.text
    assert place.names == ["step-00000000", "step-00000002.damaged"]


def test_other_weights_than_the_published_ones_are_replaced(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    """As where the ranks or the machine changed: here, the learning rate."""
    place.config = replace(place.config, optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=0))
    learner, state = place.resume(latest=STEPS)
    assert "weights differ from those of step 4" in caplog.text
    published = load_file(place.open_store().checkpoint_path(place.roots[STEPS]) / "model.safetensors")
    place.learner, place.state = learner, state
    assert place.publish().root == place.roots[STEPS]
    assert published.keys() == {name for name, _ in learner.policy.model.named_parameters()}


def test_lost_batch_makes_training_jump_to_the_published_weights(
    place: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    flip_bit(place.batches.folder / "step-00000004.npz")
    learner, state = place.resume(latest=STEPS)
    assert (state.step, state.trained_on, learner.updates) == (STEPS, (), STEPS - 1)
    assert "the batch of step 4 is lost" in caplog.text
    place.learner, place.state = learner, state
    assert place.publish().root == place.roots[STEPS]
    place.learn(STEPS + 1)
    following = place.publish()
    assert (following.manifest.kind, following.manifest.base) == (ManifestKind.DELTA, place.roots[STEPS])


def test_published_weights_that_are_damaged_are_not_needed(place: Workplace) -> None:
    flip_bit(place.open_store().checkpoint_path(place.roots[STEPS]) / "model.safetensors")
    learner, _ = place.resume(latest=STEPS)
    place.check_equals(learner)


def test_damage_on_both_sides_is_refused_by_name_and_nothing_is_moved(place: Workplace) -> None:
    flip_bit(place.checkpoints / "step-00000002" / "state.json")
    flip_bit(place.open_store().checkpoint_path(place.roots[STEPS]) / "model.safetensors")
    flip_bit(place.batches.folder / "step-00000003.npz")
    with pytest.raises(LocalError, match=r"published weights in .* are damaged too: tensors.*restore .*step-00000002"):
        place.prepare(latest=STEPS)
    assert place.names == ["step-00000000", "step-00000002"]


def test_where_no_checkpoint_is_whole_the_owner_is_asked_for_a_copy(place: Workplace) -> None:
    for path in list_checkpoints(place.checkpoints):
        flip_bit(path / "tensors" / "__0_0.distcp")
    with pytest.raises(LocalError, match=r"no checkpoint before step 4 is intact; restore .*step-00000002 from a copy"):
        place.prepare(latest=STEPS)


def test_damaged_first_checkpoint_is_replaced_by_what_was_published(tmp_path: Path) -> None:
    place = Workplace(tmp_path, steps=0)
    for path in list_checkpoints(place.checkpoints):
        flip_bit(path / "tensors" / "__0_0.distcp")
    learner, state = place.resume(latest=0)
    assert state.step == 0
    place.learner, place.state = learner, state
    assert place.publish().root == place.roots[0]
