"""A snapshot of the state saves folding, and is never believed against the log."""

import os
import pickle
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from prime_coordinator.log.store import open_log_store
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.replay import Ledger, replay
from prime_runtime import log_files as snapshots
from prime_runtime.log_files import SNAPSHOT_MAGIC, compute_code_digest, read_snapshot, write_snapshot
from support.ledger_network import NETWORK, World
from support.log_store import Rig, make_leaves, make_rig, recovered


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    store = open_log_store(f"sqlite:///{tmp_path / 'log.db'}")
    yield make_rig(store, tmp_path / "mirror")
    store.close()


def snapshot_of(rig: Rig) -> Path:
    return rig.mirror.with_name("state.snapshot")


async def keep(rig: Rig, leaves: list[bytes], *, signed: int) -> None:
    """The leaves in the database, the first of them under a signed head."""
    rig.writer.enqueue(leaves[:signed])
    await rig.writer.flush()
    await rig.writer.sign_head()
    rig.writer.enqueue(leaves[signed:])
    await rig.writer.flush()


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


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    world = World.started()
    world.credit(world.settled("ann", Outcome.ACCEPT))
    world.convicted("bob", 3)
    write_snapshot(tmp_path / "state", world.state)
    write_snapshot(tmp_path / "state", world.state)
    assert read_snapshot(tmp_path / "state") == world.state
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    assert read_snapshot(tmp_path / "none") is None


async def test_a_start_folds_only_what_came_after_the_snapshot(rig: Rig, folded: list[bytes]) -> None:
    leaves = make_leaves(40)
    await keep(rig, leaves, signed=30)
    whole, _ = await recovered(rig)
    assert folded == leaves[:30]
    folded.clear()
    write_snapshot(snapshot_of(rig), replay(NETWORK, leaves[:25]).state)
    ledger, tree = await recovered(rig)
    assert folded == leaves[25:30]
    assert ledger.state == whole.state
    assert (tree.size, tree.root()) == (40, whole.state.frontier.root())


@pytest.mark.parametrize("size", [31, 40, 50])
async def test_a_snapshot_past_the_last_head_is_not_used(rig: Rig, folded: list[bytes], size: int) -> None:
    await keep(rig, make_leaves(50)[:40], signed=30)
    write_snapshot(snapshot_of(rig), replay(NETWORK, make_leaves(50)[:size]).state)
    ledger, _ = await recovered(rig)
    assert (len(folded), ledger.state.size) == (30, 40)


async def test_a_snapshot_of_another_log_is_not_used(rig: Rig, folded: list[bytes]) -> None:
    await keep(rig, make_leaves(40), signed=40)
    other = World.started().state
    write_snapshot(snapshot_of(rig), other)
    ledger, _ = await recovered(rig)
    assert len(folded) == 40
    assert ledger.state == replay(NETWORK, make_leaves(40)).state


def test_a_damaged_snapshot_or_one_of_another_release_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_snapshot(path, World.started().state)
    good = path.read_bytes()
    for bad in (b"", good[:-1], good[:40], good[:-9] + b"?" + good[-8:], b"x" + good):
        path.write_bytes(bad)
        assert read_snapshot(path) is None
    path.write_bytes(good)
    monkeypatch.setattr(snapshots, "compute_code_digest", lambda: bytes(32))
    assert read_snapshot(path) is None


class Bomb:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/prime-snapshot-bomb",)


@pytest.mark.parametrize("value", [Bomb(), {"not": "a state"}, print])
def test_a_snapshot_makes_states_and_runs_nothing(tmp_path: Path, value: object) -> None:
    body = pickle.dumps(value)
    path = tmp_path / "state"
    path.write_bytes(SNAPSHOT_MAGIC + compute_code_digest() + sha256(body).digest() + body)
    assert read_snapshot(path) is None
    assert not Path("/tmp/prime-snapshot-bomb").exists()
