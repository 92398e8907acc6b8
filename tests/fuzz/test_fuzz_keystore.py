"""Hostile keystore files: the user is told, and the machine stays up."""

import json
from pathlib import Path

import pytest

from fuzz.harness import assert_survives
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire import keystore
from prime_protocol.wire.keystore import decrypt_key, encrypt_key
from prime_protocol.wire.signing import WalletKey

pytestmark = pytest.mark.fuzz

KEY = WalletKey.from_secret(b"k" * 32)
OURS = encrypt_key(KEY, "p", salt=b"s" * 8, iv=b"i" * 16, file_id="id", scrypt_n=2)
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "keystore.json").read_text())["accepted"]
THEIRS = next(vector for vector in VECTORS if vector["file"]["crypto"]["kdfparams"].get("c") == 1000)


@pytest.mark.parametrize(
    ("file", "password"), [(OURS, "p"), (json.dumps(THEIRS["file"]), THEIRS["password"])], ids=["scrypt", "pbkdf2"]
)
def test_keystore_files_survive_and_never_give_a_key_they_do_not_name(
    file: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Cheap limits, so that a mutated cost is refused and 100,000 inputs take seconds.
    monkeypatch.setattr(keystore, "KEYSTORE_SCRYPT_MEMORY_BYTES_MAX", 2**16)
    monkeypatch.setattr(keystore, "KEYSTORE_PBKDF2_ROUNDS_MAX", 1000)
    honest = decrypt_key(file, password)

    def parse(raw: bytes) -> None:
        try:
            key = decrypt_key(raw.decode("utf-8", "surrogateescape"), password)
        except LocalError as error:
            raise RemoteError("keystore", str(error)) from None
        assert key == honest or b'"address"' not in raw

    assert_survives(parse, [file.encode()])
