"""`prime-coordinator log verify` on mirrors of a real log: sound ones pass, any damage is named and exits 3."""

import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, VerifierKey, sign_tree_head
from prime_protocol.wire.ids import Digest, NodeId
from support.ledger_network import DAY_MS, RANDOMNESS, World
from support.mirrors import write_mirror

COMMAND = Path(sys.executable).with_name("prime-coordinator")
LOG_KEY = Ed25519PrivateKey.from_private_bytes(sha256(b"log key of this test").digest())
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(sha256(b"another log key").digest())


def verify(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, "log", "verify", folder, *words], capture_output=True, text=True, timeout=60)


def write_log(folder: Path, entries: int = 300) -> World:
    """More than one bundle of entries, with a step of work among them."""
    world = World()
    origin = f"{ORIGIN_PREFIX}{world.ledger.network}"
    vkey = str(VerifierKey.of(origin, LOG_KEY))
    zeros = NodeId(bytes(20))
    world.coordinate(e.NetworkCreated(log_key=vkey, chain_id=0, contract=zeros, unbonding_ms=7 * DAY_MS, **RANDOMNESS))
    world.join("ann", Role.WORKER)
    for number in range(3):
        world.join(f"val-{number}", Role.VALIDATOR)
    world.create_run()
    world.publish()
    world.settled("ann", Outcome.ACCEPT)
    while world.state.size < entries:
        world.note_head()
    write_mirror(folder, world.leaves, sign_head(world, origin, LOG_KEY))
    return world


def sign_head(world: World, origin: str, key: Ed25519PrivateKey, root: Digest | None = None) -> bytes:
    return sign_tree_head(TreeHead(origin, world.state.size, root or world.state.frontier.root()), key)


def test_sound_log_verifies_and_its_books_come_out_as_json(tmp_path: Path) -> None:
    world = write_log(tmp_path)
    key = world.state.log_key
    done = verify(tmp_path, "--key", key, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    books = json.loads(done.stdout)
    assert books["entries"] == world.state.size
    assert books["root"] == str(world.state.frontier.root())
    assert books["value_nano"]["held"] == world.state.funds.total_nano()
    assert books["nodes"][str(world.id("ann"))]["settled"] == {"accept": 1, "invalid": 0, "fraudulent": 0}
    shown = verify(tmp_path).stdout
    assert "every signature, author, rule and tile is valid" in shown
    assert "the key the log itself names" in shown


def flip(pattern: str) -> Callable[[Path, World], None]:
    def damage(folder: Path, world: World) -> None:
        (path,) = folder.glob(pattern)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return damage


def forge_head(folder: Path, world: World) -> None:
    origin = f"{ORIGIN_PREFIX}{world.ledger.network}"
    (folder / "checkpoint").write_bytes(sign_head(world, origin, LOG_KEY, Digest(bytes(32))))


def sign_by_another(folder: Path, world: World) -> None:
    origin = f"{ORIGIN_PREFIX}{world.ledger.network}"
    (folder / "checkpoint").write_bytes(sign_head(world, origin, OTHER_KEY))


def rename_log(folder: Path, world: World) -> None:
    (folder / "checkpoint").write_bytes(sign_head(world, "elsewhere.example/log", LOG_KEY))


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        (flip("tile/entries/000"), "entry "),
        (flip("tile/entries/001.p/*"), "entry "),
        (flip("tile/0/000"), "tile/0/000"),
        (flip("tile/1/000.p/1"), "tile/1/000.p/1"),
        (forge_head, "tree_head.root"),
        (sign_by_another, "note.signatures"),
        (rename_log, "tree_head.origin"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path, World], None], hint: str) -> None:
    damage(tmp_path, write_log(tmp_path))
    done = verify(tmp_path)
    assert done.returncode == 3, done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_file_and_wrong_key_are_told_apart(tmp_path: Path) -> None:
    world = write_log(tmp_path)
    other = str(VerifierKey.of(f"{ORIGIN_PREFIX}{world.ledger.network}", OTHER_KEY))
    assert "note.signatures" in verify(tmp_path, "--key", other).stderr
    (tmp_path / "tile/entries/000").unlink()
    done = verify(tmp_path)
    assert done.returncode == 1
    assert "is the copy of the log complete" in done.stderr
