"""Checkpoints on disk: mapped and proven."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import TRAINER, ShardHost, write_checkpoint
from prime_protocol.errors import LocalError, RemoteError
from prime_runtime.shardcast.checkpoint_files import list_files, map_checkpoint, verify_checkpoint
from prime_runtime.shardcast.publish import map_in_order
from support.shard_hosts import change, make_tensors


async def test_a_checkpoint_is_what_its_manifest_says_or_is_refused(tmp_path: Path) -> None:
    origin = ShardHost(tmp_path, "origin", key=TRAINER)
    tensors = make_tensors(1)
    old, new = write_checkpoint(tmp_path / "c0", tensors), write_checkpoint(tmp_path / "c1", change(tensors, 2))
    (first,) = origin.publish(old, 0)
    verify_checkpoint(map_checkpoint(old), first.manifest, threads=2)
    with pytest.raises(RemoteError, match="digest"):
        verify_checkpoint(map_checkpoint(new), first.manifest, threads=2)
    fewer = replace(first.manifest, tensors=first.manifest.tensors[1:])
    with pytest.raises(RemoteError, match="not in both"):
        verify_checkpoint(map_checkpoint(old), fewer, threads=2)


def test_hidden_files_folders_and_empty_files_are_left_out(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c0", make_tensors(1, size=100))
    (folder / ".hidden").write_text("x")
    (folder / "empty.txt").write_text("")
    (folder / "sub").mkdir()
    assert [path.name for path in list_files(folder)] == ["config.json", "model.safetensors"]
    (folder / "bad name?.txt").write_text("x")
    with pytest.raises(LocalError, match="rename it"):
        list_files(folder)


def test_a_file_that_cannot_be_mapped_is_said(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c0", make_tensors(1, size=100))
    os.symlink(tmp_path / "nowhere", folder / "link.json")
    assert len(map_checkpoint(folder).files) == 2, "what is no file is left out"
    os.truncate(folder / "model.safetensors", 20)
    with pytest.raises(LocalError, match="not a safetensors file"):
        map_checkpoint(folder)


def test_results_come_in_order_and_only_so_many_wait() -> None:
    taken = []

    def items() -> object:
        for number in range(20):
            taken.append(number)
            yield number

    with ThreadPoolExecutor(4) as pool:
        results = map_in_order(pool, 3, lambda n: (time.sleep(0.001 * (20 - n)), n)[1], items())  # type: ignore[arg-type]
        assert next(results) == 0
        assert len(taken) == 4
        assert list(results) == list(range(1, 20))
