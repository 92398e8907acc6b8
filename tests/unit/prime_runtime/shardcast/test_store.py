"""The store: what is on disk is what its digests say, after anything that can happen to a disk."""

import os
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import NETWORK, RUN, TRAINER, ShardHost, make_key, write_checkpoint
from prime_protocol.errors import LocalError
from prime_protocol.weights.manifest import ManifestKind
from prime_runtime.shardcast.checkpoint_files import preallocate_file
from prime_runtime.shardcast.store import ShardStore
from support.shard_hosts import change, make_tensors


def open_store(folder: Path) -> ShardStore:
    return ShardStore(folder, network=NETWORK, run=RUN, trainer=TRAINER.node)


@pytest.fixture
async def origin(tmp_path: Path) -> ShardHost:
    return ShardHost(tmp_path, "origin", key=TRAINER)


async def test_a_published_keyframe_is_whole_and_linked_not_copied(origin: ShardHost, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "c0", make_tensors(1))
    (signed,) = origin.publish(checkpoint, 0)
    stock = origin.store.shard_sets[signed.digest]
    assert stock.is_complete
    assert all(stock.is_intact(index) for index in range(stock.shards))
    assert (stock.folder / "model.safetensors").samefile(checkpoint / "model.safetensors")


async def test_the_second_step_is_a_delta_and_asking_again_publishes_nothing(origin: ShardHost, tmp_path: Path) -> None:
    tensors = make_tensors(1)
    origin.publish(write_checkpoint(tmp_path / "c0", tensors), 0)
    second = write_checkpoint(tmp_path / "c1", change(tensors, 2))
    made = origin.publish(second, 1, keyframe=True)
    assert [signed.manifest.kind for signed in made] == [ManifestKind.DELTA, ManifestKind.KEYFRAME]
    assert len({signed.root for signed in made}) == 1
    assert set(origin.publish(second, 1)) == set(made)
    assert set(open_store(origin.store.folder).shard_sets) == set(origin.store.shard_sets)


async def test_what_was_published_last_stays_mapped_until_the_next_and_a_rest(
    origin: ShardHost, tmp_path: Path
) -> None:
    tensors, maps = make_tensors(1), []
    for step in range(2):
        (signed,) = origin.publish(write_checkpoint(tmp_path / f"c{step}", change(tensors, step)), step)
        mapped = origin.kept.get(origin.store, signed, 1)
        assert mapped is not None
        maps.append(mapped)
        assert origin.kept.get(origin.store, signed, 1) is mapped
    assert [file.path for file in maps[1].files] == sorted((tmp_path / "c1").iterdir())
    spent = weakref.ref(maps[0].files[-1].data)
    maps.clear()
    del mapped
    assert spent() is not None
    origin.kept.release()
    assert spent() is None, "its pages are given back"


async def test_a_copy_is_mapped_where_it_is_kept(
    origin: ShardHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError("another device")

    monkeypatch.setattr("os.link", fail)
    checkpoint = write_checkpoint(tmp_path / "c0", make_tensors(1))
    (signed,) = origin.publish(checkpoint, 0)
    shutil.rmtree(checkpoint)
    folder = origin.store.checkpoint_path(signed.root)
    mapped = origin.kept.get(origin.store, signed, 1)
    assert mapped is not None
    assert {file.path.parent for file in mapped.files} == {folder}


async def test_other_tensors_make_a_keyframe(origin: ShardHost, tmp_path: Path) -> None:
    origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c1", make_tensors(1, tensors=5)), 1)
    assert signed.manifest.kind is ManifestKind.KEYFRAME


async def test_what_cannot_be_published_says_why(origin: ShardHost, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"neither a \.safetensors file nor a folder"):
        origin.publish(tmp_path / "nowhere", 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LocalError, match=r"no \.safetensors"):
        origin.publish(tmp_path / "empty", 0)
    checkpoint = write_checkpoint(tmp_path / "c0", make_tensors(1))
    origin.publish(checkpoint, 5)
    with pytest.raises(LocalError, match="too late"):
        origin.publish(checkpoint, 4)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").write_bytes(b"garbage garbage garbage")
    with pytest.raises(LocalError, match="not a safetensors file"):
        origin.publish(checkpoint, 6)
    origin.key = make_key("stranger")
    with pytest.raises(LocalError, match="the trainer of"):
        origin.publish(checkpoint, 6)


async def test_damage_at_rest_is_found_and_costs_the_damaged_shard(origin: ShardHost, tmp_path: Path) -> None:
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    path = origin.store.shard_sets[signed.digest].folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(100_000)
        byte = file.read(1)
        file.seek(100_000)
        file.write(bytes([byte[0] ^ 1]))
    again = open_store(origin.store.folder).shard_sets[signed.digest]
    with ThreadPoolExecutor(1) as pool:
        assert await again.recheck(pool) == 1
    assert len(again.list_held()) == again.shards - 1
    assert len(open_store(origin.store.folder).shard_sets[signed.digest].list_held()) == again.shards - 1


async def test_a_file_that_is_gone_or_short_holds_no_shard(origin: ShardHost, tmp_path: Path) -> None:
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    folder = origin.store.shard_sets[signed.digest].folder
    os.truncate(folder / "model.safetensors", 1000)
    assert open_store(origin.store.folder).shard_sets[signed.digest].list_held() == []
    shutil.rmtree(folder)
    assert open_store(origin.store.folder).shard_sets[signed.digest].list_held() == []


async def test_a_damaged_manifest_goes_with_its_shards_and_a_foreign_one_stays(
    origin: ShardHost, tmp_path: Path
) -> None:
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    path = origin.store.folder / "manifests" / signed.digest.hex()
    (path.parent / "readme.txt").write_text("hello")
    stranger = ShardStore(origin.store.folder, network=NETWORK, run=RUN, trainer=make_key("stranger").node)
    assert stranger.shard_sets == {}
    assert stranger.remove_damaged() == 0
    assert set(open_store(origin.store.folder).shard_sets) == {signed.digest}, "it was not the stranger's to remove"
    path.write_bytes(path.read_bytes()[:-5])
    assert open_store(origin.store.folder).shard_sets == {}
    assert [each.name for each in path.parent.iterdir()] == ["readme.txt"]
    assert not (origin.store.folder / "transport" / signed.digest.hex()).exists()


async def test_a_checkpoint_without_a_good_manifest_goes_with_the_next_step(origin: ShardHost, tmp_path: Path) -> None:
    (first,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    path = origin.store.checkpoint_path(first.root) / ".manifest"
    path.write_bytes(path.read_bytes()[:-5])
    again = ShardHost(tmp_path, "origin", key=TRAINER)
    (second,) = again.publish(write_checkpoint(tmp_path / "c1", make_tensors(2)), 1)
    assert second.manifest.kind is ManifestKind.KEYFRAME, "there is no base any more"
    assert set(again.store.checkpoints()) == {second.root}
    assert not again.store.checkpoint_path(first.root).exists()


async def test_a_shard_that_rotted_is_found_when_it_is_first_asked_for(origin: ShardHost, tmp_path: Path) -> None:
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    path = origin.store.shard_sets[signed.digest].folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[100_000] ^= 1
    path.write_bytes(data)
    again = open_store(origin.store.folder).shard_sets[signed.digest]
    sound = [await again.verify_once(index) for index in range(again.shards)]
    assert sound.count(False) == 1
    assert again.list_held() == [index for index, is_sound in enumerate(sound) if is_sound]


async def test_files_have_their_full_size_before_the_first_byte(origin: ShardHost, tmp_path: Path) -> None:
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    stock = open_store(tmp_path / "other").add(signed)
    assert stock.list_held() == []
    assert sum(path.stat().st_size for path in stock.files()) == signed.manifest.transport_bytes


async def test_what_was_removed_is_not_found(origin: ShardHost, tmp_path: Path) -> None:
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    shard = signed.manifest.shards[0].digest
    assert origin.store.find(shard) is not None
    origin.store.remove(signed.digest)
    assert origin.store.find(shard) is None
    assert not list((origin.store.folder / "transport").iterdir())


async def test_another_process_sees_what_was_published_and_removed(origin: ShardHost, tmp_path: Path) -> None:
    other = open_store(origin.store.folder)
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    assert [stock.digest for stock in other.rescan()] == [signed.digest]
    assert other.shard_sets[signed.digest].is_complete
    origin.store.remove(signed.digest)
    assert other.rescan() == []
    assert other.shard_sets == {}


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot use the folder"):
        open_store(tmp_path / "file" / "store")


async def test_a_link_in_the_place_of_a_file_is_neither_read_nor_written(origin: ShardHost, tmp_path: Path) -> None:
    """Others on the machine may share a folder of weights; what they link to is not ours to send or to change."""
    checkpoint = write_checkpoint(tmp_path / "c0", make_tensors(1))
    (signed,) = origin.publish(checkpoint, 0)
    place = origin.store.shard_sets[signed.digest].folder / "model.safetensors"
    secret, text = tmp_path / "key", b"s" * place.stat().st_size
    secret.write_bytes(text)
    place.unlink()
    place.symlink_to(secret)
    stock = open_store(origin.store.folder).shard_sets[signed.digest]
    with pytest.raises(OSError, match="symbolic links"):
        [stock.is_intact(index) for index in range(stock.shards)]
    with pytest.raises(LocalError, match="no space"):
        preallocate_file(place, 100)
    assert secret.read_bytes() == text
    assert not place.exists(), "the link is gone, and what it led to is as it was"


async def test_a_checkpoint_of_links_is_published_as_the_files_they_lead_to(origin: ShardHost, tmp_path: Path) -> None:
    """As the cache of a model hub keeps them."""
    real = write_checkpoint(tmp_path / "blobs", make_tensors(1))
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for path in real.iterdir():
        (linked / path.name).symlink_to(path)
    (signed,) = origin.publish(linked, 0)
    stock = origin.store.shard_sets[signed.digest]
    assert all(stock.is_intact(index) for index in range(stock.shards))
    assert not any(path.is_symlink() for path in stock.files())
