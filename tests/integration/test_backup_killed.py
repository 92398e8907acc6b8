"""kill -9 in the midst of a backup of a running coordinator: no half backup has a name, and nobody else notices."""

import os
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from prime_coordinator.home import CoordinatorHome
from prime_protocol.ledger.entries import Role
from prime_protocol.wire.ids import Digest
from prime_runtime.objects.store import content_key
from support.processes.coordinator import CoordinatorProcess, make_folder, party, running
from support.processes.coordinator_main import PASSWORD

BIN = Path(sys.executable).with_name("prime-coordinator")
FILES = 2_000
"""Each is brought to the disk by itself, so that copying them takes many times longer than noticing the first."""


def command(process: CoordinatorProcess, *words: str | Path) -> list[str]:
    return [str(BIN), *map(str, words), "--folder", str(process.config.folder)]


def fill(objects: Path, files: int) -> None:
    for number in range(files):
        data = f"file {number}".encode()
        path = objects / content_key("files", Digest(sha256(data).digest()))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def kill_in_the_midst(backup: subprocess.Popen[str], draft: Path) -> None:
    while not list(draft.glob("objects/files/*/*")):
        assert backup.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    backup.kill()
    backup.wait()


async def test_a_killed_backup_is_none_and_the_next_one_says_what_is_in_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIME_PASSWORD", PASSWORD)
    target, draft = tmp_path / "backup", tmp_path / "backup.draft"
    async with running(await make_folder(tmp_path / "coordinator")) as process, party(process, "worker") as worker:
        objects = CoordinatorHome(process.config.folder).objects
        fill(objects, FILES)
        await worker.join(Role.WORKER)
        whole = command(process, "backup", target, "--keys", "--objects")
        kill_in_the_midst(subprocess.Popen(whole, text=True), draft)
        copied = len(list(draft.glob("objects/files/*/*")))
        assert 0 < copied < FILES
        assert not target.exists()
        await worker.beat()  # the coordinator goes on

        again = subprocess.run(whole, capture_output=True, text=True, check=False)
        assert again.returncode == 1
        assert "remove it" in again.stderr
        subprocess.run(["rm", "-r", draft, objects / "files"], check=True)
        fill(objects, 20)
        subprocess.run(whole, check=True, capture_output=True)
        assert await process.stop() == 0
    restore = [BIN, "restore", target, "--folder", tmp_path / "restored"]
    subprocess.run(restore, check=True, capture_output=True)
    restored = CoordinatorHome(tmp_path / "restored")
    assert len(list(restored.objects.glob("files/*/*"))) == 20
    assert os.path.getsize(restored.database) > 0
