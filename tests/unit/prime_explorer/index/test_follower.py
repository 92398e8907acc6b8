"""A mirror is followed from head to head, and whatever does not hold is said and not shown."""

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_explorer.index.follower import LogFollower
from prime_explorer.index.store import IndexWriter
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.log.merkle import Frontier, compute_leaf_hash
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, VerifierKey, sign_tree_head
from support.explorer_index import follower, mirror, signed_head
from support.ledger_network import NETWORK, World
from support.log_store import LOG_KEY
from support.mirrors import write_mirror

OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"\x09" * 32)


@pytest.fixture
def world() -> World:
    return World.started()


def grow(world: World, count: int) -> None:
    for _ in range(count):
        world.register(f"more-{world.state.size}", Role.RELAY)


def test_an_index_follows_head_after_head(tmp_path: Path, world: World) -> None:
    following, index = follower(tmp_path)
    sizes = []
    for count in (0, 1, 300, 5):
        grow(world, count)
        mirror(tmp_path / "log", world.leaves)
        assert following.advance(now_ms=7)
        assert not following.advance(now_ms=8), "the same head is nothing new"
        sizes.append(index.get("head_size"))
    assert sizes[-1] == index.size == len(world.leaves)
    assert (index.get("problem"), index.get("network"), index.get("head_ms")) == ("", NETWORK, 7)
    following.close()


def test_a_new_process_goes_on_where_the_last_one_ended(tmp_path: Path, world: World) -> None:
    mirror(tmp_path / "log", world.leaves)
    for number in range(4):
        following, index = follower(tmp_path)
        assert following.advance(number)
        assert index.size == len(world.leaves)
        if number < 2:
            following.close()
        else:
            index.close()  # killed: no snapshot of the last entries
        if number == 2:
            (tmp_path / "state.snapshot").unlink()
        world.settled("ann", Outcome.ACCEPT, number)
        mirror(tmp_path / "log", world.leaves)
    following, index = follower(tmp_path)
    following.advance(9)
    row = index._connection.execute("SELECT units, accepted FROM nodes WHERE node=?", (world.id("ann"),)).fetchone()
    assert row == (80, 4)
    following.close()


def test_an_index_of_another_format_is_made_anew(tmp_path: Path, world: World) -> None:
    mirror(tmp_path / "log", world.leaves)
    following, _ = follower(tmp_path)
    following.advance(1)
    following.close()
    following, index = follower(tmp_path, made_by="later code")
    assert index.size == 0
    following.advance(1)
    assert index.size == len(world.leaves)
    following.close()
    (tmp_path / "index.db").write_bytes(b"no database at all" * 100)
    following, index = follower(tmp_path)
    following.advance(1)
    assert index.size == len(world.leaves), "it is made again from the log"
    following.close()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalError, match="cannot keep the explorer's index"):
        IndexWriter.open(tmp_path / "file" / "index.db", "test")


def stays(folder: Path, following: LogFollower, index: IndexWriter, size: int, field: str) -> None:
    """What is there now is refused, the index says so, and nothing of it is shown."""
    with pytest.raises(RemoteError) as caught:
        following.advance(1)
    assert caught.value.field.startswith(field), caught.value
    assert index.get("problem") == str(caught.value)
    assert index.size == size


def test_a_tampered_tile_is_found(tmp_path: Path, world: World) -> None:
    grow(world, 300)
    mirror(tmp_path / "log", world.leaves)
    tile = tmp_path / "log/tile/0/000"
    good = tile.read_bytes()
    tile.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    following, index = follower(tmp_path)
    stays(tmp_path, following, index, 0, "tile/0/000")
    tile.write_bytes(good)
    assert following.advance(2)
    assert (index.size, index.get("problem")) == (len(world.leaves), "")
    following.close()


def test_a_tampered_entry_is_found(tmp_path: Path, world: World) -> None:
    mirror(tmp_path / "log", world.leaves)
    (bundle,) = (tmp_path / "log/tile/entries").rglob("*/*")
    data = bundle.read_bytes()
    bundle.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    following, index = follower(tmp_path)
    stays(tmp_path, following, index, 0, "tree_head.root")
    index.close()


def test_a_log_that_tells_another_history_is_found(tmp_path: Path, world: World) -> None:
    other = world.fork()
    grow(world, 10)
    mirror(tmp_path / "log", world.leaves)
    following, index = follower(tmp_path)
    following.advance(1)
    for number in range(20):
        other.register(f"another-{number}", Role.WORKER)
    shutil.rmtree(tmp_path / "log")
    mirror(tmp_path / "log", other.leaves)
    stays(tmp_path, following, index, len(world.leaves), "tree_head.root")
    following.close()
    following, index = follower(tmp_path)
    stays(tmp_path, following, index, len(world.leaves), "tile/0")
    shutil.rmtree(tmp_path / "log")
    mirror(tmp_path / "log", world.leaves[:-1])
    stays(tmp_path, following, index, len(world.leaves), "tree_head.size")
    index.close()


def test_a_head_of_another_key_is_refused(tmp_path: Path, world: World) -> None:
    root = Frontier().append_many(compute_leaf_hash(leaf) for leaf in world.leaves).root()
    head = TreeHead(ORIGIN_PREFIX + NETWORK, len(world.leaves), root)
    write_mirror(tmp_path / "log", world.leaves, sign_tree_head(head, OTHER_KEY))
    following, index = follower(tmp_path)
    stays(tmp_path, following, index, 0, "note.signatures")
    index.close()
    mirror(tmp_path / "log", world.leaves)
    index = IndexWriter.open(tmp_path / "given.db", "test")
    other = VerifierKey.of(ORIGIN_PREFIX + NETWORK, OTHER_KEY)
    following = LogFollower(tmp_path / "log", index, snapshot=tmp_path / "given.snapshot", key=other)
    stays(tmp_path, following, index, 0, "note.signatures")
    index.close()


def test_an_entry_against_the_rules_ends_what_is_shown(tmp_path: Path, world: World) -> None:
    good = len(world.leaves)
    leaves = [*world.leaves, world.seal("ann", e.PaidOut(step=0)), world.seal("bob", e.Withdrawn(amount_nano=1))]
    write_mirror(tmp_path / "log", leaves, signed_head(leaves))
    following, index = follower(tmp_path)
    stays(tmp_path, following, index, good, f"entry {good}")
    following.close()


def test_another_networks_log_is_not_mixed_in(tmp_path: Path, world: World) -> None:
    mirror(tmp_path / "log", world.leaves)
    following, _ = follower(tmp_path)
    following.advance(1)
    following.close()
    root = Frontier().append_many(compute_leaf_hash(leaf) for leaf in world.leaves).root()
    head = TreeHead(ORIGIN_PREFIX + "othernet", len(world.leaves), root)
    write_mirror(tmp_path / "log", world.leaves, sign_tree_head(head, LOG_KEY))
    following, index = follower(tmp_path)
    with pytest.raises(LocalError, match="choose another folder"):
        following.advance(1)
    index.close()
