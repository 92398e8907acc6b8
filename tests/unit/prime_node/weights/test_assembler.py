"""Shards become checkpoints, with room made ahead or without: a base stays good, and what is wrong gets no name."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import TRAINER, ShardHost, write_checkpoint
from prime_node.weights.assembler import CheckpointAssembler
from prime_protocol.errors import RemoteError
from prime_protocol.weights.manifest import SignedManifest
from prime_protocol.weights.manifest_builder import DELTA_FILE
from prime_runtime.shardcast.store import ShardStore
from support.shard_hosts import change, make_tensors

STEPS = 4
MODEL = "model.safetensors"


class Scene:
    """A trainer's checkpoints, and a node that has all shards of them and the first checkpoint."""

    def __init__(self, folder: Path) -> None:
        origin = ShardHost(folder, "origin", key=TRAINER)
        self.store = ShardHost(folder, "node").store
        self.assembler = CheckpointAssembler(self.store, threads=2)
        tensors, self.signed, self.models = make_tensors(1), list[SignedManifest](), list[bytes]()
        for step in range(STEPS):
            checkpoint = write_checkpoint(folder / f"c{step}", tensors)
            self.models.append((checkpoint / MODEL).read_bytes())
            (signed,) = origin.publish(checkpoint, step)
            self.signed.append(signed)
            names = [file.name for file in signed.manifest.files]
            self.store.add(signed, {name: origin.store.shard_sets[signed.digest].folder / name for name in names})
            tensors = change(tensors, step + 2)
        self.assembler.build(self.signed[:1])

    def read(self, step: int) -> bytes:
        return (self.store.checkpoint_path(self.signed[step].root) / MODEL).read_bytes()

    @property
    def drafts(self) -> list[str]:
        return sorted(path.name for path in self.store.preallocated_path.parent.glob("*.draft"))


@pytest.fixture(params=["memory", "disk"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr("prime_runtime.shardcast.patching.is_in_memory", lambda folder: request.param == "memory")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if request.param == "memory" else tmp_path) as name:
        yield Scene(Path(name))


async def test_every_step_is_built_in_the_folder_preallocated_after_the_last_one(scene: Scene) -> None:
    for step in range(1, STEPS):
        scene.assembler.preallocate_next()
        scene.assembler.preallocate_next()
        assert scene.drafts == ["preallocated.draft"]
        scene.assembler.build(scene.signed[step : step + 1])
        assert scene.drafts == []
        assert [scene.read(number) for number in (step - 1, step)] == scene.models[step - 1 : step + 1]
        scene.assembler.remove_old()
        assert len(scene.store.checkpoints()) == 2


async def test_a_folder_preallocated_for_another_base_is_used_and_then_replaced(scene: Scene) -> None:
    scene.assembler.preallocate_next()
    scene.store.checkpoints()
    scene.assembler.build(scene.signed[1:3])
    assert [scene.read(step) for step in range(3)] == scene.models[:3], "one in the room, one in its own"
    scene.assembler.preallocate_next()
    scene.store.publish(copy_of(scene, 3), scene.signed[3])
    scene.assembler.preallocate_next()
    assert scene.drafts == ["preallocated.draft"]
    scene.store.remove_checkpoint(scene.signed[3].root)
    scene.assembler.build(scene.signed[3:])
    assert scene.read(3) == scene.models[3]


def copy_of(scene: Scene, step: int) -> Path:
    """A draft of a checkpoint that came another way."""
    draft = scene.store.draft_path(scene.signed[step].root)
    draft.mkdir()
    (draft / MODEL).write_bytes(scene.models[step])
    return draft


async def test_a_damaged_preallocated_folder_fails_the_build_and_keeps_the_base(scene: Scene) -> None:
    scene.assembler.preallocate_next()
    room = scene.store.preallocated_path / MODEL
    if any(room.read_bytes()):
        with room.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x55")
        with pytest.raises(RemoteError, match="digest"):
            scene.assembler.build(scene.signed[1:2])
        assert scene.signed[1].root not in scene.store.checkpoints()
    assert scene.read(0) == scene.models[0]
    scene.assembler.build(scene.signed[1:2])
    assert scene.read(1) == scene.models[1]


async def test_a_process_killed_while_it_patched_leaves_nothing_that_counts(scene: Scene) -> None:
    scene.assembler.preallocate_next()
    scene.store.preallocated_path.rename(scene.store.draft_path(scene.signed[1].root))
    old = scene.store
    again = ShardStore(old.folder, network=old.network, run=old.run, trainer=old.trainer)
    assert list(again.checkpoints()) == [scene.signed[0].root]
    assert scene.drafts == []
    CheckpointAssembler(again, threads=2).build(scene.signed[1:2])
    assert scene.read(1) == scene.models[1]


async def test_a_failed_preallocation_leaves_nothing_and_the_build_works_without(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(checkpoint: Path, folder: Path) -> None:
        folder.mkdir()
        raise OSError("no space left")

    monkeypatch.setattr("prime_node.weights.assembler.preallocate_checkpoint", fail)
    scene.assembler.preallocate_next()
    assert scene.drafts == []
    scene.assembler.build(scene.signed[1:2])
    assert scene.read(1) == scene.models[1]
    assert DELTA_FILE not in [path.name for path in scene.store.checkpoint_path(scene.signed[1].root).iterdir()]
