"""One process in one folder, told by name, and a look at the lock keeps nobody out."""

import resource
import threading
from pathlib import Path

import pytest

from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock
from prime_runtime.lock import hold_file_lock, hold_process_lock, is_held, read_lock_info


def test_a_second_holder_is_refused_with_the_first_ones_number(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert (is_held(path), read_lock_info(path)) == (False, {})
    with hold_process_lock(path, "node", advice="make it"):
        assert is_held(path)
        pid = read_lock_info(path)["pid"]
        with (
            pytest.raises(LocalError, match=f"another node runs in .*, process {pid}"),
            hold_process_lock(path, "node", advice="make it"),
        ):
            pass
    assert (is_held(path), read_lock_info(path)) == (False, {})


def test_what_the_holder_notes_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold_process_lock(path, "node", advice="make it") as lock:
        lock.write_url("http://127.0.0.1:5", token="secret")
        assert read_lock_info(path)["url"] == "http://127.0.0.1:5"
        assert read_lock_info(path)["token"] == "secret"
        assert path.stat().st_mode & 0o077 == 0


def test_a_folder_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(LocalError, match="make it first"),
        hold_process_lock(tmp_path / "no" / "lock", "node", advice="make it first"),
    ):
        pass


def test_looking_at_a_lock_all_the_time_keeps_nobody_out(tmp_path: Path) -> None:
    path, stop = tmp_path / "lock", threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_held(path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(50):
            with hold_process_lock(path, "node", advice="make it"):
                pass
    finally:
        stop.set()
        watcher.join()


def test_a_full_disk_is_told_as_one_and_the_lock_falls(tmp_path: Path) -> None:
    path, limits = tmp_path / "lock", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(LocalError, match="make room"), hold_process_lock(path, "node", advice="make it"):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not is_held(path)


async def test_turns_come_one_after_the_other_and_do_not_wait_for_ever(tmp_path: Path) -> None:
    path, clock = tmp_path / "chain" / "book.lock", SystemClock()
    async with hold_file_lock(path, clock, wait_ms=1, tries=1):
        with pytest.raises(LocalError, match="another process has held"):
            async with hold_file_lock(path, clock, wait_ms=1, tries=3):
                raise AssertionError("both have it")
    async with hold_file_lock(path, clock, wait_ms=1, tries=1):
        assert is_held(path)
    assert not is_held(path)
