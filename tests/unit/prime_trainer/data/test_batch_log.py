"""Batches on disk: what is read is what was written, and a damaged one is none."""

from hashlib import sha256
from pathlib import Path

import numpy as np

from prime_protocol.wire.ids import Digest
from prime_trainer.data.batch_log import BatchLog
from prime_trainer.data.rollout_buffer import TrainingBatch
from support.training_samples import flip_bit, make_sample

NAMES = tuple(Digest(sha256(text.encode()).digest()) for text in ("a", "b", "c"))
SAMPLES = tuple(make_sample(number, prompt=1 + number, output=2 + number % 3) for number in range(4))


def test_batch_is_read_as_it_was_written(tmp_path: Path) -> None:
    batches = BatchLog(tmp_path / "batches")
    assert batches.read(1) is None
    batches.write(1, TrainingBatch(NAMES[:2], SAMPLES, {"groups": 3, "reward_mean": 0.1}))
    batches.write(2, TrainingBatch((), (), {}))
    found = batches.read(1)
    assert found is not None
    assert (found.submissions, found.metrics) == (NAMES[:2], {"groups": 3, "reward_mean": 0.1})
    for mine, other in zip(SAMPLES, found.samples, strict=True):
        assert (mine.advantage, mine.temperature) == (other.advantage, other.temperature)
        for name in ("prompt_tokens", "output_tokens", "sampled_logprobs"):
            assert getattr(mine, name).dtype == getattr(other, name).dtype
            assert np.array_equal(getattr(mine, name), getattr(other, name))
    empty = batches.read(2)
    assert empty is not None
    assert (empty.submissions, empty.samples) == ((), ())


def test_damaged_batch_ends_the_lineage(tmp_path: Path) -> None:
    batches = BatchLog(tmp_path)
    for step, name in enumerate(NAMES, 4):
        batches.write(step, TrainingBatch((name,), SAMPLES, {}))
    assert batches.read_lineage(3) == {name: step for step, name in enumerate(NAMES, 4)}
    flip_bit(tmp_path / "step-00000005.npz")
    assert batches.read(5) is None
    assert batches.read_lineage(3) == {NAMES[0]: 4}


def test_steps_before_a_checkpoint_and_after_the_log_are_removed(tmp_path: Path) -> None:
    batches = BatchLog(tmp_path)
    for step in range(1, 6):
        batches.write(step, TrainingBatch((), (), {}))
    batches.remove(before=2)
    batches.remove(after=4)
    assert batches.list_steps() == [3, 4]
