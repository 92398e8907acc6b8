"""Keystore files: ours open elsewhere, those of others open here, and damaged ones say so."""

import hashlib
import json
from pathlib import Path
from typing import Any

import eth_keyfile
import pytest
from eth_account import Account

from prime_protocol.constants import KEYSTORE_BYTES_MAX, KEYSTORE_PBKDF2_ROUNDS_MAX
from prime_protocol.errors import LocalError
from prime_protocol.wire.keystore import decrypt_key, encrypt_key, read_keystore_address
from prime_protocol.wire.signing import WalletKey, keccak

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "keystore.json").read_text())
KEY = WalletKey.from_secret(b"k" * 32)
PASSWORD = "correct horse 漢"
FILE_ID = "00000000-0000-4000-8000-000000000001"


def encrypted(password: str = PASSWORD) -> str:
    return encrypt_key(KEY, password, salt=b"s" * 32, iv=b"i" * 16, file_id=FILE_ID, scrypt_n=1024)


def test_a_key_comes_back_with_its_password_only() -> None:
    assert decrypt_key(encrypted(), PASSWORD) == KEY
    assert decrypt_key(encrypted(), PASSWORD).secret() == KEY.secret()
    for wrong in ("", "correct horse", PASSWORD + " "):
        with pytest.raises(LocalError, match=r"^wrong password"):
            decrypt_key(encrypted(), wrong)


def test_the_address_needs_no_password_and_a_file_without_one_says_so() -> None:
    assert read_keystore_address(encrypted()) == KEY.node
    document = json.loads(encrypted())
    for damaged in ({**document, "address": "0x12"}, {**document, "address": 5}, {"version": 3}):
        with pytest.raises(LocalError, match="names no address"):
            read_keystore_address(json.dumps(damaged))


def test_the_file_is_the_same_for_the_same_salt_and_holds_no_secret() -> None:
    assert encrypted() == encrypted()
    assert KEY.secret().hex() not in encrypted()
    assert json.loads(encrypted())["address"] == KEY.node.hex()


def test_our_file_opens_in_another_wallet() -> None:
    assert bytes(Account.decrypt(json.loads(encrypted()), PASSWORD)) == KEY.secret()


@pytest.mark.parametrize(("kdf", "iterations"), [("scrypt", 1024), ("pbkdf2", 1000)])
def test_the_file_of_another_wallet_opens_here(kdf: str, iterations: int) -> None:
    file = eth_keyfile.create_keyfile_json(KEY.secret(), PASSWORD.encode(), kdf=kdf, iterations=iterations)
    assert decrypt_key(json.dumps(file), PASSWORD) == KEY
    with pytest.raises(LocalError, match=r"^wrong password"):
        decrypt_key(json.dumps(file), "wrong")


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=["spec", "scrypt", "pbkdf2", "ethers"])
def test_every_accepted_vector_opens(vector: dict[str, Any]) -> None:
    assert decrypt_key(json.dumps(vector["file"]), vector["password"]).secret().hex() == vector["secret"]


@pytest.mark.parametrize("why", VECTORS["refused"])
def test_every_refused_vector_is_refused_as_ours_to_mend(why: str) -> None:
    with pytest.raises(LocalError):
        decrypt_key(json.dumps(VECTORS["refused"][why]), VECTORS["refused_password"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "3",
        '"text"',
        "{}",
        '{"version": 3}',
        '{"version": 3, "crypto": null}',
        "{" * 5,
        "[" * 15_000,
        '{"a":' * 3_000,
        "x" * (KEYSTORE_BYTES_MAX + 1),
        '{"version": ' + "9" * 10_000 + "}",
        encrypted().replace("1024", "NaN"),
        encrypted().replace("1024", "Infinity"),
        encrypted().replace("1024", "null"),
    ],
    ids=lambda text: text[:20],
)
def test_a_damaged_file_is_a_local_error_whatever_it_holds(text: str) -> None:
    with pytest.raises(LocalError, match=r"^the keystore file is damaged"):
        decrypt_key(text, PASSWORD)


def test_a_file_that_holds_no_key_is_refused() -> None:
    """The right password, but the decrypted bytes are zero: the key stream itself as the ciphertext."""
    file = json.loads(encrypted())
    stream = bytes(a ^ b for a, b in zip(bytes.fromhex(file["crypto"]["ciphertext"]), KEY.secret(), strict=True))
    file["crypto"]["ciphertext"] = stream.hex()
    file["crypto"]["mac"] = _mac(stream)
    with pytest.raises(LocalError, match="not a valid secp256k1 private key"):
        decrypt_key(json.dumps(file), PASSWORD)


def test_a_file_without_an_address_opens() -> None:
    file = json.loads(encrypted())
    del file["address"]
    assert decrypt_key(json.dumps(file), PASSWORD) == KEY


def test_a_file_that_would_take_the_machine_down_is_refused_at_once() -> None:
    file = eth_keyfile.create_keyfile_json(KEY.secret(), b"p", kdf="pbkdf2", iterations=1)
    for rounds in (0, -1, KEYSTORE_PBKDF2_ROUNDS_MAX + 1):
        file["crypto"]["kdfparams"]["c"] = rounds
        with pytest.raises(LocalError, match="is not read here"):
            decrypt_key(json.dumps(file), "p")
    file["crypto"]["kdfparams"]["c"] = 1
    file["crypto"]["kdfparams"]["prf"] = "hmac-md5"
    with pytest.raises(LocalError, match="is not read here"):
        decrypt_key(json.dumps(file), "p")


def test_scrypt_parameters_that_openssl_refuses_are_named_as_such() -> None:
    file = VECTORS["refused"]["n of 2^16 or more with r of 1"]
    with pytest.raises(LocalError, match=r"^scrypt with n=262144 r=1 cannot be computed here"):
        decrypt_key(json.dumps(file), "testpassword")


def _mac(sealed: bytes) -> str:
    derived = hashlib.scrypt(PASSWORD.encode(), salt=b"s" * 32, n=1024, r=8, p=1, dklen=32)
    return keccak(derived[16:] + sealed).hex()
