"""Verifying a mirror: from the start or from a noted snapshot, in one process or several, against a remembered head."""

from functools import cache
from pathlib import Path

import pytest

from prime_coordinator.log import verify
from prime_coordinator.log.summary import describe_log
from prime_coordinator.log.verify import VerifyOptions, verify_log
from prime_explorer.index.follower import LogFollower
from prime_explorer.index.store import IndexWriter
from prime_protocol.constants import TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Role, SnapshotNoted
from prime_protocol.ledger.snapshots.snapshot import SNAPSHOT_FORMAT, compute_snapshot_digest, encode_snapshot
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, sign_tree_head
from prime_runtime.log_files import snapshot_path
from support.ledger_network import NETWORK, World, digest, verifier
from support.log_store import LOG_KEY, make_world
from support.mirrors import write_mirror
from support.rotated_log import RotatedLog

SIZE, SNAPSHOT_AT = 600, 300


@cache
def make_log() -> tuple[World, bytes, list[bytes]]:
    """A log with one noted snapshot, the snapshot, and the signed head of each size."""
    world = make_world(SNAPSHOT_AT)
    heads = [sign(world)]
    snapshot = encode_snapshot(NETWORK, world.state)
    world.register("between", Role.WORKER)
    note_snapshot(world, snapshot)
    while world.state.size < SIZE:
        world.register(f"late-{world.state.size}", Role.WORKER)
        heads.append(sign(world))
    return world, snapshot, heads


def note_snapshot(world: World, snapshot: bytes, *, format_: int = SNAPSHOT_FORMAT) -> None:
    world.coordinate(SnapshotNoted(size=SNAPSHOT_AT, digest=compute_snapshot_digest(snapshot), format=format_))


def sign(world: World, **changes: object) -> bytes:
    head = {"origin": ORIGIN_PREFIX + NETWORK, "size": world.state.size, "root": world.state.frontier.root()}
    return sign_tree_head(TreeHead(**head | changes), LOG_KEY)  # type: ignore[arg-type]


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    world, snapshot, _ = make_log()
    write_mirror(tmp_path, world.leaves, sign(world))
    (tmp_path / "snapshot").mkdir()
    (tmp_path / snapshot_path(SNAPSHOT_AT)).write_bytes(snapshot)
    return tmp_path


def test_a_sound_log_verifies_and_its_noted_state_is_compared(mirror: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = verify_log(mirror, VerifyOptions(on_progress=lambda done, total: seen.append((done, total))))
    assert (found.head.size, found.first, found.snapshots) == (SIZE, 0, 1)
    assert found.ledger.state == make_log()[0].state
    assert seen[-1] == (SIZE, SIZE)


def test_several_processes_find_the_same(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "POOL_ENTRIES_MIN", 1)
    monkeypatch.setattr(verify, "BUNDLES_PER_CHUNK", 1)
    found = verify_log(mirror, VerifyOptions(processes=2))
    assert found.ledger.state == make_log()[0].state


def test_the_first_wrong_entry_is_named_whatever_is_wrong(tmp_path: Path) -> None:
    world, _, _ = make_log()
    leaves = [*world.leaves[:5], world.leaves[7], *world.leaves[6:]]
    leaves[9] = leaves[9][:-1] + bytes([leaves[9][-1] ^ 1])
    write_mirror(tmp_path, leaves, sign(world))
    with pytest.raises(RemoteError, match=r"entry 7: Payload\.sequence"):
        verify_log(tmp_path)


def test_from_a_snapshot_only_the_later_entries_are_verified(mirror: Path) -> None:
    found = verify_log(mirror, VerifyOptions(is_from_snapshot=True))
    assert found.first == SNAPSHOT_AT
    assert found.ledger.state == make_log()[0].state
    assert any(f"NOT verified: the first {SNAPSHOT_AT} entries" in line for line in describe_log(found))


def test_a_snapshot_that_is_not_the_noted_one_is_refused(mirror: Path) -> None:
    path = mirror / snapshot_path(SNAPSHOT_AT)
    path.write_bytes(path.read_bytes() + b"\x00")
    with pytest.raises(RemoteError, match="the log notes"):
        verify_log(mirror, VerifyOptions(is_from_snapshot=True))
    path.unlink()
    with pytest.raises(LocalError, match="no snapshot that its log notes"):
        verify_log(mirror, VerifyOptions(is_from_snapshot=True))


def test_a_noted_digest_that_is_not_the_states_is_named(tmp_path: Path) -> None:
    world = make_world(SNAPSHOT_AT)
    note_snapshot(world, b"another state")
    write_mirror(tmp_path, world.leaves, sign(world))
    with pytest.raises(RemoteError, match=f"entry {SNAPSHOT_AT}: digest"):
        verify_log(tmp_path)


def test_a_noted_digest_of_another_format_is_said_not_to_be_compared(tmp_path: Path) -> None:
    world = make_world(SNAPSHOT_AT)
    note_snapshot(world, b"", format_=9)
    write_mirror(tmp_path, world.leaves, sign(world))
    found = verify_log(tmp_path)
    assert (found.snapshots, found.unknown_snapshots) == (0, 1)
    assert any("NOT compared: 1" in line for line in describe_log(found))


# --- A remembered head ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_from_snapshot", [False, True])
def test_a_log_that_extends_the_remembered_head_passes(mirror: Path, is_from_snapshot: bool) -> None:
    _, _, heads = make_log()
    for note in (heads[0], heads[40], heads[-1]):
        found = verify_log(mirror, VerifyOptions(remembered=note, is_from_snapshot=is_from_snapshot))
        assert found.remembered is not None


@pytest.mark.parametrize("is_from_snapshot", [False, True])
@pytest.mark.parametrize("size", [100, SNAPSHOT_AT, 500])
def test_a_forked_copy_is_named_as_such(mirror: Path, size: int, is_from_snapshot: bool) -> None:
    note = sign(make_log()[0], size=size, root=digest("another history"))
    with pytest.raises(RemoteError, match="the log has forked"):
        verify_log(mirror, VerifyOptions(remembered=note, is_from_snapshot=is_from_snapshot))


def test_an_older_copy_and_a_bad_signature_are_named_as_such(mirror: Path) -> None:
    newer = sign(make_log()[0], size=SIZE + 1)
    with pytest.raises(RemoteError, match="this copy is older"):
        verify_log(mirror, VerifyOptions(remembered=newer))
    note = bytearray((mirror / "checkpoint").read_bytes())
    note[-10] = ord("A") if note[-10] != ord("A") else ord("B")
    (mirror / "checkpoint").write_bytes(note)
    with pytest.raises(RemoteError, match="tree_head: has no valid signature"):
        verify_log(mirror)


# --- Superseded partial files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tile/0/000", "tile/entries/001"])
def test_superseded_partial_files_are_checked(mirror: Path, name: str) -> None:
    whole = (mirror / name).read_bytes()
    part = mirror / f"{name}.p" / str(TILE_HASHES // 2)
    part.parent.mkdir()
    part.write_bytes(whole[: TILE_HASHES // 2 * 32])
    assert verify_log(mirror).partial_files == 1
    part.write_bytes(bytes(len(part.read_bytes())))
    with pytest.raises(RemoteError, match="is not the beginning of the full file"):
        verify_log(mirror)


@pytest.mark.parametrize("is_folded", [False, True], ids=["from the start", "after heads of the old key"])
def test_a_head_of_a_rotated_key_is_refused_by_log_verify_and_by_the_explorer(tmp_path: Path, is_folded: bool) -> None:
    log, mirror = RotatedLog.begun(3), tmp_path / "mirror"
    index = IndexWriter.open(tmp_path / "index.db", "test")
    follower = LogFollower(mirror, index, snapshot=tmp_path / "state", key=verifier("first"))
    if is_folded:
        write_mirror(mirror, log.leaves, log.head())
        follower.advance(0)
    log.rotate_log_key("second")
    log.rotate_coordinator("next")
    log.grow(2)
    write_mirror(mirror, log.leaves, log.head(7, "first"))
    with pytest.raises(RemoteError, match="is by the key that was rotated at entry 3"):
        verify_log(mirror)
    with pytest.raises(RemoteError, match="is by the key that was rotated at entry 3"):
        follower.advance(0)
    write_mirror(mirror, log.leaves, log.head())
    verified = verify_log(mirror, VerifyOptions(key=verifier("first"), remembered=log.head(3, "first")))
    assert verified.keys == log.chain
    assert any("entry 3 rotated the log key" in line for line in describe_log(verified))
    assert follower.advance(0)
    follower.close()
    with pytest.raises(RemoteError, match="rotated at entry 3"):
        verify_log(mirror, VerifyOptions(remembered=log.head(5, "first")))
