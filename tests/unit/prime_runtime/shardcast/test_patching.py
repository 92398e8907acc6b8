"""The next checkpoint out of an old one and a delta: from file to file, and in a copy; on a disk and in memory."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import TRAINER, ShardHost, write_checkpoint
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import Manifest
from prime_protocol.weights.manifest_builder import DELTA_FILE
from prime_runtime.shardcast import patching
from prime_runtime.shardcast.checkpoint_files import map_checkpoint, verify_checkpoint
from prime_runtime.shardcast.patching import patch_checkpoint, patch_copy, preallocate_checkpoint
from support.shard_hosts import change, make_tensors

MODEL = "model.safetensors"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder that has no disk behind it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


class Step:
    """Two checkpoints and the delta between them."""

    def __init__(self, folder: Path) -> None:
        origin = ShardHost(folder, "origin", key=TRAINER)
        tensors = make_tensors(1)
        self.old = write_checkpoint(folder / "c0", tensors)
        self.new = write_checkpoint(folder / "c1", change(tensors, 2))
        origin.publish(self.old, 0)
        (signed,) = origin.publish(self.new, 1)
        self.manifest: Manifest = signed.manifest
        self.records = memoryview((origin.store.shard_sets[signed.digest].folder / DELTA_FILE).read_bytes())

    def assert_next(self, folder: Path) -> None:
        assert (folder / MODEL).read_bytes() == (self.new / MODEL).read_bytes()
        assert (folder / "config.json").read_bytes() == (self.old / "config.json").read_bytes()
        verify_checkpoint(map_checkpoint(folder), self.manifest, threads=2)


@pytest.fixture
async def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


async def test_from_file_to_file_and_the_base_stays(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patching, "is_in_memory", lambda folder: False)
    before, target = (step.old / MODEL).read_bytes(), tmp_path / "next"
    assert preallocate_checkpoint(step.old, target) is None
    assert (target / MODEL).stat().st_size == len(before)
    (target / "other").write_text("goes")
    patch_checkpoint(step.old, target, step.manifest, step.records, threads=2)
    assert not (target / "other").exists()
    step.assert_next(target)
    assert (step.old / MODEL).read_bytes() == before


async def test_what_is_not_the_base_gives_nothing(step: Step, tmp_path: Path) -> None:
    target = tmp_path / "next"
    target.mkdir()
    with pytest.raises(RemoteError, match="digest"):
        patch_checkpoint(step.new, target, step.manifest, step.records, threads=2)
    os.truncate(step.new / MODEL, 5000)
    with pytest.raises(LocalError, match="not a safetensors file"):
        patch_checkpoint(step.new, target, step.manifest, step.records, threads=2)


async def test_in_memory_a_copy_is_made_ahead_and_patched_in_place(step: Step, memory: Path) -> None:
    before = (step.old / MODEL).read_bytes()
    (memory / "next").mkdir()
    (memory / "next" / "other").write_text("of an attempt before: goes")
    copy = preallocate_checkpoint(step.old, memory / "next")
    assert copy is not None
    assert (memory / "next" / MODEL).read_bytes() == before
    patch_copy(copy, step.manifest, step.records, threads=2)
    step.assert_next(memory / "next")
    assert sorted(path.name for path in (memory / "next").iterdir()) == ["config.json", MODEL]
    assert (step.old / MODEL).read_bytes() == before


async def test_no_copy_takes_the_last_memory(step: Step, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in step.old.iterdir())
    monkeypatch.setattr(patching, "count_free_bytes", lambda folder: 2 * size - 1)
    with pytest.raises(LocalError, match="memory that is needed"):
        preallocate_checkpoint(step.old, memory / "next")
    monkeypatch.setattr(patching, "count_free_bytes", lambda folder: 2 * size)
    assert preallocate_checkpoint(step.old, memory / "next") is not None


async def test_a_copy_stops_where_others_take_the_memory(
    step: Step, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(path.stat().st_size for path in step.old.iterdir())
    looks = iter([2 * size, 2 * size, size])
    monkeypatch.setattr(patching, "PIECE_BYTES", 4096)
    monkeypatch.setattr(patching, "count_free_bytes", lambda folder: next(looks))
    with pytest.raises(LocalError, match="memory that is needed"):
        preallocate_checkpoint(step.old, memory / "next")
    assert next(looks, None) is None


async def test_a_copy_of_something_else_is_refused(step: Step, memory: Path) -> None:
    copy = preallocate_checkpoint(step.new, memory / "other")
    assert copy is not None
    with pytest.raises(RemoteError, match="digest"):
        patch_copy(copy, step.manifest, step.records, threads=2)
    longer = write_checkpoint(memory / "longer", make_tensors(1, size=300_002))
    with pytest.raises(RemoteError, match="size"):
        patch_copy(map_checkpoint(longer, writable=True), step.manifest, step.records, threads=2)
    fewer = write_checkpoint(memory / "fewer", make_tensors(1, tensors=3))
    with pytest.raises(RemoteError, match="not in both"):
        patch_copy(map_checkpoint(fewer, writable=True), step.manifest, step.records, threads=2)
