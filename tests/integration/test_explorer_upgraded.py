"""A release with another format makes its index beside the old one, which answers until the new one is complete."""

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prime_explorer.index.formats import SERVED_NAME, IndexFiles
from prime_explorer.index.schema import INDEX_FORMAT
from prime_explorer.index.store import IndexReader, IndexWriter, ReadTransaction
from support.explorer_index import mirror
from support.ledger_network import World

OLD = "0-older"


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = ["--mirror", str(folder / "log"), "--folder", str(folder / "explorer")]
    return subprocess.Popen(
        [sys.executable, "-m", "prime_explorer.index.follower", *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=30)


class Pages:
    """Reads the served index again and again, as the pages do: an index that cannot be read fails the test."""

    def __init__(self, folder: Path) -> None:
        self.reader = IndexReader(folder / SERVED_NAME)

    def ask(self) -> dict[str, object]:
        facts = self.reader.query_sync(ReadTransaction.read_meta)
        assert facts["size"], "the served index is not empty"
        return facts

    def until(self, holds: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            facts = self.ask()
            if holds(facts):
                return facts
        raise AssertionError(f"did not come: {facts}")


def make_older(folder: Path) -> None:
    """An index of the same log as another release would have left it."""
    index = IndexFiles(folder / "explorer").open()
    index.close()
    following = start(folder)
    wait_until_complete(folder)
    stop(following)
    explorer = folder / "explorer"
    connection = sqlite3.connect(explorer / f"index-{INDEX_FORMAT}.db")
    with connection:
        connection.execute("UPDATE meta SET value=? WHERE name='format'", (OLD,))
    connection.close()
    (explorer / f"index-{INDEX_FORMAT}.db").rename(explorer / f"index-{OLD}.db")
    (explorer / SERVED_NAME).unlink()
    (explorer / SERVED_NAME).symlink_to(f"index-{OLD}.db")
    (explorer / "state.snapshot").unlink()


def wait_until_complete(folder: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        index = IndexWriter.open(folder / "explorer" / f"index-{INDEX_FORMAT}.db")
        done = index.get("head_size")
        index.close()
        if done:
            return
        time.sleep(0.1)
    raise AssertionError("the index was not made")


def test_the_old_index_answers_until_the_new_one_is_complete_also_if_the_process_is_killed(tmp_path: Path) -> None:
    world = World.started()
    mirror(tmp_path / "log", world.leaves)
    make_older(tmp_path)
    pages = Pages(tmp_path / "explorer")
    assert pages.ask()["format"] == OLD
    for _ in range(2):
        process = start(tmp_path)
        pages.until(lambda facts: "its own has" in str(facts["local_error"]) or facts["format"] == INDEX_FORMAT)
        process.kill()
        stop(process)
    process = start(tmp_path)
    facts = pages.until(lambda facts: facts["format"] == INDEX_FORMAT)
    assert facts["head_size"] == len(world.leaves)
    assert not list((tmp_path / "explorer").glob(f"index-{OLD}*")), "the old one is deleted"
    stop(process)
    pages.reader.close()


def test_an_index_that_this_release_cannot_read_is_not_served(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / SERVED_NAME)
    connection.executescript("CREATE TABLE meta (name TEXT PRIMARY KEY, value);")
    connection.close()
    files = IndexFiles(tmp_path)
    files.open().close()
    assert files.is_served
    assert os.readlink(tmp_path / SERVED_NAME) == f"index-{INDEX_FORMAT}.db"


def test_an_explorer_whose_folder_is_deleted_does_not_make_it_again(tmp_path: Path) -> None:
    world = World.started()
    mirror(tmp_path / "log", world.leaves)
    process = start(tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "explorer" / SERVED_NAME).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.rmtree(tmp_path / "explorer")
    stop(process)
    assert not (tmp_path / "explorer").exists()
