"""The coordinator's disk is lost and restored: a mirror of another process, the keys, and what is lost.

The rollout files stay: a network that fears for its disk keeps them in a bucket, and no mirror has them.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from chaos.parties import Stage
from chaos.schedule import TRAINER
from prime_coordinator.home import CoordinatorHome
from prime_protocol.errors import LocalError
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_runtime.log_files import read_leaves, read_tree_head


@dataclass(slots=True)
class MirrorCopy:
    """Somebody's copy of the log, made over the network by the follower of an explorer."""

    stage: Stage
    restored: list[int] = field(default_factory=list)
    """How many entries came back, each time."""
    kept: list[list[bytes]] = field(default_factory=list)
    """Which ones."""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self.stage.folder / "mirror-copy"

    def begin(self, variables: dict[str, str]) -> None:
        words = ["--mirror", str(self.folder / "mirror"), "--folder", str(self.folder / "index")]
        command = [sys.executable, "-m", "prime_explorer.index.follower", *words, "--source", f"{self.stage.url}/log"]
        with (self.stage.folder / "mirror-copy.log").open("ab") as log:
            prefix = self.stage.site.hosts[TRAINER].prefix
            self._process = subprocess.Popen(
                [*prefix, *command], stdin=subprocess.PIPE, stderr=log, stdout=log, env=variables
            )

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()

    async def lose_and_restore(self) -> None:
        """While the coordinator is down: delete its folder, and bring it back as an operator would."""
        home = CoordinatorHome(self.stage.home)
        keys, objects = self.stage.folder / "keys", self.stage.folder / "objects-elsewhere"
        keys.mkdir(exist_ok=True)
        for path in (home.key, home.log_key, home.randomness_key, home.config):
            shutil.copy2(path, keys / path.name)
        if home.objects.exists():
            await asyncio.to_thread(shutil.move, home.objects, objects)
        await asyncio.to_thread(delete_folder, home.folder)
        mirror = self.folder / "mirror"
        size = TreeHead.parse(SignedNote.parse(read_tree_head(mirror)).text).size
        words = ["--from-mirror", str(mirror), "--keys", str(keys), "--settings", str(keys / home.config.name)]
        command = [sys.executable, "-m", "prime_coordinator.cli", "restore", *words, "--folder", str(home.folder)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=dict(os.environ))
        if done.returncode:
            raise LocalError(f"the restore failed: {done.stdout}{done.stderr}")
        if objects.exists():
            await asyncio.to_thread(shutil.move, objects, home.objects)
        copied = TreeHead.parse(SignedNote.parse(read_tree_head(home.mirror)).text).size
        assert copied >= size
        self.restored.append(copied)
        self.kept.append(list(read_leaves(home.mirror, copied)))


def delete_folder(folder: Path) -> None:
    """A child of the dead coordinator may write its last file meanwhile."""
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
