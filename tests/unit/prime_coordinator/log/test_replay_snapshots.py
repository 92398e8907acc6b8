"""A snapshot of the state saves folding, and is never believed against the log."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prime_coordinator.log.snapshots import SNAPSHOTS_KEPT, SnapshotWriter
from prime_coordinator.log.store import open_log_store
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Role, SnapshotNoted
from prime_protocol.ledger.replay import Ledger, replay
from prime_protocol.ledger.snapshots.snapshot import compute_snapshot_digest, encode_snapshot
from prime_runtime.log_files import list_snapshots, read_local_snapshot, snapshot_path, write_local_snapshot
from support.ledger_network import NETWORK, World
from support.log_store import Rig, make_rig, make_world, recovered


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    store = open_log_store(f"sqlite:///{tmp_path / 'log.db'}")
    yield make_rig(store, tmp_path / "mirror")
    store.close()


async def keep(rig: Rig, leaves: list[bytes], *, signed: int) -> None:
    """The leaves in the database, the first of them under a signed head."""
    rig.writer.enqueue(leaves[:signed])
    await rig.writer.flush()
    await rig.writer.sign_head()
    rig.writer.enqueue(leaves[signed:])
    await rig.writer.flush()


async def write_snapshot(rig: Rig, world: World) -> SnapshotNoted:
    """As the coordinator does: by a child, then into the log and the mirror."""
    writer = SnapshotWriter(rig.mirror, NETWORK, entries=10)
    noted = await writer.write(world.state)
    world.coordinate(noted)
    writer.publish(noted)
    return noted


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every leaf that a start folds without looking at signatures."""
    seen: list[bytes] = []
    restore = Ledger.restore

    def note(ledger: Ledger, leaf: bytes) -> object:
        seen.append(leaf)
        return restore(ledger, leaf)

    monkeypatch.setattr(Ledger, "restore", note)
    return seen


async def test_a_child_writes_the_state_as_it_was_at_the_fork(rig: Rig) -> None:
    world = make_world(20)
    at_fork = encode_snapshot(NETWORK, world.state)
    writer = SnapshotWriter(rig.mirror, NETWORK, entries=10)
    writing = asyncio.create_task(writer.write(world.state))
    await asyncio.sleep(0)
    world.register("later", Role.WORKER)
    noted = await writing
    writer.publish(noted)
    assert (noted.size, noted.digest) == (20, compute_snapshot_digest(at_fork))
    assert (rig.mirror / snapshot_path(20)).read_bytes() == at_fork


async def test_a_stop_ends_the_child(rig: Rig) -> None:
    writing = asyncio.create_task(SnapshotWriter(rig.mirror, NETWORK, entries=10).write(make_world(20).state))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


async def test_a_start_folds_only_what_came_after_the_snapshot(rig: Rig, folded: list[bytes]) -> None:
    world = make_world(25)
    await write_snapshot(rig, world)
    for number in range(10):
        world.register(f"late-{number}", Role.WORKER)
    await keep(rig, world.leaves, signed=30)
    ledger, tree = await recovered(rig)
    assert folded == world.leaves[25:30]
    assert ledger.state == world.state
    assert encode_snapshot(NETWORK, ledger.state) == encode_snapshot(NETWORK, world.state)
    assert (tree.size, tree.root()) == (36, world.state.frontier.root())


async def test_a_snapshot_past_the_last_head_is_not_used(rig: Rig, folded: list[bytes]) -> None:
    world = make_world(25)
    await write_snapshot(rig, world)
    await keep(rig, world.leaves, signed=24)
    ledger, _ = await recovered(rig)
    assert (len(folded), ledger.state) == (24, world.state)


async def test_a_damaged_snapshot_costs_an_older_one_and_all_damaged_a_full_replay(
    rig: Rig, folded: list[bytes]
) -> None:
    world = make_world(10)
    for _ in range(2):
        await write_snapshot(rig, world)
        for _ in range(9):
            world.register(f"node after {world.state.size}", Role.WORKER)
    await keep(rig, world.leaves, signed=30)
    for size, replayed in ((20, 20), (10, 30)):
        path = rig.mirror / snapshot_path(size)
        good = path.read_bytes()
        for bad in (b"", good[:-1], good + b"\x00", bytes([good[0] ^ 1]) + good[1:]):
            path.write_bytes(bad)
            folded.clear()
            ledger, _ = await recovered(rig)
            assert (len(folded), ledger.state) == (replayed, world.state)
        path.unlink()


async def test_a_snapshot_that_the_log_does_not_note_is_not_used(rig: Rig, folded: list[bytes]) -> None:
    world = make_world(30)
    await keep(rig, world.leaves, signed=30)
    writer = SnapshotWriter(rig.mirror, NETWORK, entries=10)
    writer.publish(await writer.write(replay(NETWORK, world.leaves[:20]).state))
    await recovered(rig)
    assert len(folded) == 30


async def test_only_the_newest_snapshots_stay(rig: Rig) -> None:
    world = make_world(5)
    for _ in range(SNAPSHOTS_KEPT + 2):
        await write_snapshot(rig, world)
    assert list_snapshots(rig.mirror) == [9, 8, 7]
    assert SnapshotWriter(rig.mirror, NETWORK, entries=2).is_due(world.state) is False
    assert SnapshotWriter(rig.mirror, NETWORK, entries=1).is_due(world.state) is True


async def test_a_full_disk_is_an_error_and_no_snapshot(rig: Rig) -> None:
    rig.mirror.mkdir()
    (rig.mirror / "snapshot").write_text("a file where the folder should be")
    with pytest.raises(LocalError, match="could not be written"):
        await SnapshotWriter(rig.mirror, NETWORK, entries=1).write(make_world(5).state)


def test_a_local_snapshot_comes_back_or_is_ignored(tmp_path: Path) -> None:
    path, state = tmp_path / "state", World.started().state
    assert read_local_snapshot(path, NETWORK) is None
    write_local_snapshot(path, NETWORK, state)
    assert read_local_snapshot(path, NETWORK) == state
    assert path.stat().st_mode & 0o077 == 0
    good = path.read_bytes()
    for bad in (b"", good[:-1], good[:40], good[:-9] + b"?" + good[-8:], b"x" + good):
        path.write_bytes(bad)
        assert read_local_snapshot(path, NETWORK) is None
