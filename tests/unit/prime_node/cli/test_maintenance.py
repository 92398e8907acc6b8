"""What an owner needs now and then: the log read back, a bundle for a fault, a unit for systemd, a delegation."""

import json
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from prime_node.cli.diagnose import CONTENTS, SIGNATURE, SIGNATURE_PREFIX, redact, write_bundle
from prime_node.cli.setup import render_unit, unit_name
from prime_node.storage.keys import read_delegation, write_delegation
from prime_node.storage.log_file import LogFileFollower, format_line, read_last
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest, NetworkId, NodeId
from prime_protocol.wire.signing import Signature, WalletKey, recover_signer
from prime_protocol.wire.typed_data import Delegation
from prime_runtime.redaction import PUBLIC_MARK, Secret

KEY = WalletKey.from_secret(b"\x07" * 32)
NODE = NodeId(b"\x02" * 20)
NETWORK = NetworkId("devnet")

# --- The log --------------------------------------------------------------------------------------------------------


def test_the_last_lines_reach_back_into_rotated_files(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("e\nf\n")
    (tmp_path / "node.log.1").write_text("c\nd\n")
    (tmp_path / "node.log.2").write_text("a\nb\n")
    (tmp_path / "node.log.bak").write_text("x\n")
    assert read_last(path, 1) == ["f"]
    assert read_last(path, 3) == ["d", "e", "f"]
    assert read_last(path, 100) == ["a", "b", "c", "d", "e", "f"]
    assert read_last(path, 0) == []
    assert read_last(tmp_path / "absent", 5) == []


def test_following_gives_whole_lines_also_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("old\n")
    follower = LogFileFollower(path)
    assert list(follower.read()) == []
    with path.open("a") as file:
        file.write("one\nhal")
        file.flush()
        assert list(follower.read()) == ["one"]
        file.write("f\n")
        file.flush()
        assert list(follower.read()) == ["half"]
        file.write("last of the old\n")
    path.rename(tmp_path / "node.log.1")
    assert list(follower.read()) == ["last of the old"], "the next file is not there yet"
    path.write_text("first of the new\n")
    assert list(follower.read()) == ["first of the new"]
    follower.close()


def test_a_line_of_the_log_is_shown_for_people() -> None:
    record = {
        "time": "T",
        "level": "error",
        "message": "it failed",
        "fields": {"step": 3},
        "exception": [{"type": "OSError", "text": "no room", "frames": []}],
    }
    assert format_line(json.dumps(record)) == "T ERROR   it failed  step=3  [OSError: no room]"
    for strange in ("plain text", "{", "[]", '{"time": 1}', '"x"'):
        assert format_line(strange) == strange
    assert format_line("a\x1b[2Jb") == "a\\x1b[2Jb"


# --- The bundle -----------------------------------------------------------------------------------------------------


def test_a_bundle_is_whole_signed_and_free_of_secrets(tmp_path: Path) -> None:
    private, public = "ab" * 32, "0x" + "cd" * 32
    files = {
        "settings.txt": "password = correct horse battery\nrun = demo",
        "log.jsonl": f"the key is {private}\x1b",
        "status.json": f'{{"root": "{PUBLIC_MARK}{public}"}}',
    }
    clean = redact(files, [Secret("correct horse battery")])
    path = tmp_path / "bundle.tar.gz"
    names = write_bundle(path, clean, KEY)
    assert names == ["settings.txt", "log.jsonl", "status.json", CONTENTS, SIGNATURE]
    with tarfile.open(path) as bundle:
        found = {
            member.name.removeprefix("prime-node-diagnosis/"): bundle.extractfile(member).read()  # type: ignore[union-attr]
            for member in bundle.getmembers()
        }
    everything = b"".join(found.values())
    assert b"correct horse" not in everything
    assert private.encode() not in everything
    assert b"\x1b" not in everything
    assert json.loads(found["status.json"])["root"] == public, "what is known to be public stays whole"
    assert found["settings.txt"] == b"password = ***\nrun = demo"
    listing = json.loads(found[CONTENTS])
    assert listing == {name: sha256(found[name]).hexdigest() for name in files}
    node, signature = found[SIGNATURE].decode().split()
    assert (
        recover_signer(Digest(sha256(SIGNATURE_PREFIX + found[CONTENTS]).digest()), Signature.parse(signature))
        == KEY.node
    )
    assert node == str(KEY.node)
    with pytest.raises(LocalError, match="exists and is not overwritten"):
        write_bundle(path, clean, None)
    assert SIGNATURE not in write_bundle(tmp_path / "unsigned.tar.gz", clean, None)
    with pytest.raises(LocalError, match="cannot write"):
        write_bundle(tmp_path / "absent" / "x", clean, None)


# --- The unit -------------------------------------------------------------------------------------------------------


def test_a_unit_starts_the_node_of_one_folder() -> None:
    text = render_unit(Path("/opt/p/bin/prime-node"), Path("/home/a/prime-node"))
    assert "ExecStart=/opt/p/bin/prime-node start --folder /home/a/prime-node\n" in text
    assert "Restart=on-failure" in text
    assert "StartLimitIntervalSec=0" in text, "systemd gives up for good after a few failures otherwise"
    assert int(text.partition("RestartSec=")[2].split()[0]) >= 1, "and without a pause it would spin"
    odd = render_unit(Path("/opt/p/prime-node"), Path('/home/a b/50%"$'))
    assert 'ExecStart=/opt/p/prime-node start --folder "/home/a b/50%%\\"$$"\n' in odd
    with pytest.raises(LocalError, match="choose another folder"):
        render_unit(Path("/p"), Path("/a\nExecStartPre=/bin/evil"))


@pytest.mark.parametrize("name", ["", "../x", "A", "x y", "-x", "x" * 62])
def test_a_unit_has_a_plain_name(name: str) -> None:
    assert unit_name("prime-node") == "prime-node.service"
    with pytest.raises(LocalError, match="--name"):
        unit_name(name)


# --- The delegation -------------------------------------------------------------------------------------------------


def delegation(**changes: object) -> Delegation:
    usual = {"network": NETWORK, "owner": KEY.node, "node": NODE, "issued_at_ms": 1_000, "expires_at_ms": 9_000}
    return Delegation(**usual | changes)


def test_a_delegation_goes_by_file_from_owner_to_node(tmp_path: Path) -> None:
    path = tmp_path / "delegation.json"
    write_delegation(path, KEY, delegation())
    read = read_delegation(path, network=NETWORK, node=NODE, now_ms=5_000)
    assert read.delegation == delegation()


@pytest.mark.parametrize(
    ("given", "now_ms", "problem"),
    [
        ({}, 9_000, "not in force"),
        ({"node": NodeId(b"\x03" * 20)}, 5_000, "is for 0x0303"),
        ({"network": NetworkId("mainnet")}, 5_000, "on mainnet, this node"),
        ({"owner": NODE}, 5_000, "not valid"),
    ],
)
def test_a_delegation_that_is_not_for_this_node_now_is_refused(
    given: dict[str, object], now_ms: int, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "delegation.json"
    write_delegation(path, KEY, delegation(**given))
    with pytest.raises(LocalError, match=problem):
        read_delegation(path, network=NETWORK, node=NODE, now_ms=now_ms)


@pytest.mark.parametrize("text", ["", "[]", "{}", "5", '{"issued_at_ms": true, "expires_at_ms": 1}', "\xff" * 9000])
def test_a_damaged_delegation_is_told_as_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "delegation.json"
    path.write_text(text)
    with pytest.raises(LocalError, match="ask its owner for a new one"):
        read_delegation(path, network=NETWORK, node=NODE, now_ms=5_000)
    with pytest.raises(LocalError, match="cannot read the delegation"):
        read_delegation(tmp_path / "absent", network=NETWORK, node=NODE, now_ms=5_000)
