"""A diagnosis bundle is signed, complete and free of secrets."""

import json
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from prime_node.cli.diagnose import CONTENTS, SIGNATURE, SIGNATURE_PREFIX, redact, write_bundle
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import Signature, WalletKey, recover_signer
from prime_runtime.redaction import PUBLIC_MARK, Secret

KEY = WalletKey.from_secret(b"\x07" * 32)


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
