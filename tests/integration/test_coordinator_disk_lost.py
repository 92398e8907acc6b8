"""The coordinator's disk is lost in the middle of a run: a mirror and the keys bring it back, and nodes go on."""

import asyncio
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from prime_coordinator.config import CoordinatorConfig, LogWriterConfig
from prime_coordinator.home import CoordinatorHome
from prime_explorer.index.follower import MirrorFetcher
from prime_protocol.ledger.entries import LogRecord, Role, Withdrawn
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.wire.codec import decode
from prime_protocol.wire.messages import UploadPurpose
from prime_runtime.http.client import CallRefused
from prime_runtime.log_files import read_leaves, read_tree_head
from support.processes.coordinator import (
    CoordinatorProcess,
    Party,
    make_folder,
    party,
    publish,
    read_entries,
    running,
    terms,
    until_beacon,
)

COMMAND = Path(sys.executable).with_name("prime-coordinator")


def copy_keys(config: CoordinatorConfig, target: Path) -> None:
    target.mkdir()
    home = CoordinatorHome(config.folder)
    for path in (home.key, home.log_key, home.randomness_key, home.config):
        shutil.copy2(path, target / path.name)


async def mirror_all(process: CoordinatorProcess, mirror: Path, node: Party) -> int:
    """Follow the log until the mirror has everything that was acknowledged to the node; the mirror's size."""
    fetcher = MirrorFetcher(f"{process.server.url}/log", mirror)
    while True:
        await asyncio.to_thread(fetcher.fetch, lambda: True)
        size = TreeHead.parse(SignedNote.parse(read_tree_head(mirror)).text).size
        if size > max(index for index, _ in node.acknowledged):
            return size
        await asyncio.sleep(0.05)


def restore(folder: Path, mirror: Path, keys: Path) -> subprocess.CompletedProcess[str]:
    words = ["restore", "--from-mirror", mirror, "--keys", keys, "--settings", keys / "config.toml"]
    return subprocess.run([COMMAND, *words, "--folder", folder], capture_output=True, text=True, timeout=120)


async def test_a_mirror_brings_the_coordinator_back_and_nodes_go_on(tmp_path: Path) -> None:
    config = await make_folder(tmp_path / "coordinator", books=LogWriterConfig(head_ms=50))
    keys, mirror = tmp_path / "keys", tmp_path / "mirror"
    copy_keys(config, keys)
    async with AsyncExitStack() as stack, running(config) as process:
        trainer, worker, late = [
            await stack.enter_async_context(party(process, name)) for name in ("trainer", "worker", "late")
        ]
        await worker.join(Role.WORKER)
        published = await publish(trainer, 0)
        beacon = await until_beacon(worker)
        lease = await worker.lease()
        await worker.write(Withdrawn(amount_nano=1))  # after the lease, so that the mirror has the lease too
        size = await mirror_all(process, mirror, worker)
        await late.join(Role.WORKER)
        await process.kill()
        shutil.rmtree(config.folder)

        done = restore(config.folder, mirror, keys)
        assert done.returncode == 0, done.stderr
        assert "uploads that no entry names yet" in done.stderr
        leaves = list(read_leaves(CoordinatorHome(config.folder).mirror, size))
        for index, frame in worker.acknowledged:
            assert decode(LogRecord, leaves[index]).frame == frame, "the mirror had it, so it must be there"

        await process.start()
        assert [each.lease for each in (await worker.beat()).leases] in ([lease.lease], []), "it may have expired since"
        lease = await worker.lease()
        data, entry = worker.answer(lease, beacon=beacon, root=published.root, wanted=terms())
        assert (await worker.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)).stored
        assert (await worker.write(entry)).index > size
        assert (await worker.beat()).restored_size == size
        with pytest.raises(CallRefused, match="is not registered"):
            await late.beat()
        await late.join(Role.WORKER)
        await late.beat()
        assert await process.stop() == 0
    assert [(each["size"], len(each["root"])) for each in read_entries(config, "LogRestored")] == [(size, 66)]
    assert not CoordinatorHome(config.folder).restored.exists()


async def test_damaged_snapshots_cost_a_start_time_and_nothing_else(tmp_path: Path) -> None:
    config = await make_folder(tmp_path / "coordinator", books=LogWriterConfig(head_ms=50))
    async with AsyncExitStack() as stack, running(config) as process:
        worker = await stack.enter_async_context(party(process, "worker"))
        await worker.join(Role.WORKER)
        before = (await worker.beat()).account
        assert await process.stop() == 0
        snapshots = list((CoordinatorHome(config.folder).mirror / "snapshot").glob("*"))
        assert snapshots, "a clean stop writes one"
        for path in snapshots:
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        await process.start()
        assert any("is not used, so the start takes longer" in line for line in process.lines)
        assert (await worker.beat()).account == before
        assert (await worker.write(Withdrawn(amount_nano=1))).index > len(snapshots)
        assert await process.stop() == 0
