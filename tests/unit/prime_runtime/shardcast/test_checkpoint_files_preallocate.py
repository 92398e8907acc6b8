"""Room for weights: taken ahead on a disk, looked for ahead in memory, and a full one is said before the first byte."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_protocol.errors import LocalError
from prime_runtime.shardcast import checkpoint_files as room
from prime_runtime.shardcast.checkpoint_files import (
    count_folder_bytes,
    count_free_bytes,
    is_in_memory,
    preallocate_file,
    read_available_bytes,
)

SIZE = 1_000_000


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder that has no disk behind it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def count_backed(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_disk_is_told_from_memory() -> None:
    assert is_in_memory(Path("/dev/shm"))
    assert not is_in_memory(Path("/proc"))


def test_a_disk_gives_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "is_in_memory", lambda folder: False)
    preallocate_file(tmp_path / "file", SIZE)
    assert (tmp_path / "file").stat().st_size == SIZE <= count_backed(tmp_path / "file")


def test_memory_is_taken_as_it_is_written(memory: Path) -> None:
    path = memory / "file"
    preallocate_file(path, SIZE)
    assert path.stat().st_size == SIZE
    assert count_backed(path) == 0
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"here", 5_000)
    assert 4 <= count_backed(path) < SIZE // 2


def test_in_memory_no_more_is_free_than_the_machine_has(memory: Path) -> None:
    assert 0 < count_free_bytes(memory) <= read_available_bytes() + 2**30, "it changes between two looks"
    assert count_free_bytes(Path("/proc")) == 0


def test_too_little_room_is_said_and_leaves_nothing(memory: Path) -> None:
    with pytest.raises(LocalError, match="no space for"):
        preallocate_file(memory / "file", count_free_bytes(memory) + 2**40)
    with pytest.raises(LocalError, match="no space for"):
        preallocate_file(Path("/proc/nowhere"), SIZE)
    assert list(memory.iterdir()) == []


def test_bytes_are_counted_once_for_each_file_while_folders_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "one").write_bytes(bytes(100))
    (tmp_path / "kept" / "other name").hardlink_to(tmp_path / "kept" / "one")
    (tmp_path / "kept" / "link").symlink_to(tmp_path / "kept" / "one")
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            draft = tmp_path / "room.draft"
            draft.mkdir()
            (draft / "empty").touch()
            shutil.rmtree(draft)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert {count_folder_bytes(tmp_path) for _ in range(60)} == {100}
    finally:
        stop.set()
        thread.join()
