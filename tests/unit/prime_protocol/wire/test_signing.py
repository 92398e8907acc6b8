"""Keys, signatures and peer ids, against eth-account and libp2p."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, NodeId, checksum_address, parse_address
from prime_protocol.wire.signing import (
    HALF_ORDER,
    Signature,
    WalletKey,
    compute_peer_address,
    compute_peer_id,
    keccak,
    recover_signer,
)

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "identity.json").read_text())
KEYS: list[dict[str, str]] = VECTORS["keys"]
KEY = WalletKey.from_secret(b"k" * 32)
DIGEST = Digest(sha256(b"something").digest())


@pytest.mark.parametrize("vector", KEYS, ids=lambda vector: vector["secret"][-4:])
def test_a_key_has_the_address_peer_id_and_signatures_that_others_give_it(vector: dict[str, str]) -> None:
    key = WalletKey.from_secret(bytes.fromhex(vector["secret"]))
    digest = Digest(bytes.fromhex(vector["digest"]))
    assert str(key.node) == vector["address"]
    assert checksum_address(key.node) == vector["checksum_address"]
    assert key.peer_id() == vector["peer_id"] == compute_peer_id(bytes.fromhex(vector["public_key"]))
    assert key.sign(digest).hex() == vector["signature"]
    assert recover_signer(digest, Signature(bytes.fromhex(vector["signature"]))) == key.node
    assert compute_peer_address(vector["peer_id"]) == key.node
    assert key.secret().hex() == vector["secret"]


def test_signatures_are_eth_accounts_to_the_byte_and_recover_there() -> None:
    for number in range(50):
        digest = Digest(sha256(bytes([number])).digest())
        key = WalletKey.from_secret(sha256(b"key" + bytes([number])).digest())
        signed = Account.from_key(key.secret()).unsafe_sign_hash(digest)
        assert key.sign(digest) == signed.signature
        assert Account._recover_hash(digest, signature=key.sign(digest)) == checksum_address(key.node)
        assert recover_signer(digest, Signature(signed.signature)) == key.node


def test_signing_is_deterministic_and_s_is_low() -> None:
    for number in range(50):
        signature = KEY.sign(Digest(sha256(bytes([number])).digest()))
        assert signature == KEY.sign(Digest(sha256(bytes([number])).digest()))
        assert int.from_bytes(signature[32:64], "big") <= HALF_ORDER
        assert signature[64] in (27, 28)


def test_a_signature_over_another_digest_gives_another_address() -> None:
    assert recover_signer(Digest(bytes(32)), KEY.sign(DIGEST)) != KEY.node


@pytest.mark.parametrize("why", VECTORS["refused_signatures"])
def test_a_signature_that_is_not_the_one_form_is_refused(why: str) -> None:
    digest = Digest(bytes.fromhex(KEYS[0]["digest"]))
    with pytest.raises(RemoteError, match=r"^signature: "):
        recover_signer(digest, Signature(bytes.fromhex(VECTORS["refused_signatures"][why])))


def test_s_at_half_the_order_is_the_last_one_taken() -> None:
    r = KEY.sign(DIGEST)[:32]
    assert recover_signer(DIGEST, Signature(r + HALF_ORDER.to_bytes(32, "big") + b"\x1b"))
    with pytest.raises(RemoteError, match="upper half"):
        recover_signer(DIGEST, Signature(r + (HALF_ORDER + 1).to_bytes(32, "big") + b"\x1b"))


def test_a_signature_of_another_length_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^Signature: is 64 bytes, expected 65$"):
        Signature(bytes(64))


@pytest.mark.parametrize("secret", VECTORS["refused_secrets"])
def test_bytes_that_are_no_key_are_refused(secret: str) -> None:
    with pytest.raises(LocalError, match="private key"):
        WalletKey.from_secret(bytes.fromhex(secret))


def test_a_key_never_prints_its_secret() -> None:
    assert repr(KEY) == f"WalletKey(node=NodeId({KEY.node}))"
    assert KEY.secret().hex() not in repr(KEY) + str(KEY)


@pytest.mark.parametrize("why", VECTORS["refused_peer_ids"])
def test_a_text_that_is_no_peer_id_of_a_wallet_key_is_refused(why: str) -> None:
    with pytest.raises(RemoteError, match=r"^peer_id: "):
        compute_peer_address(VECTORS["refused_peer_ids"][why])


@pytest.mark.parametrize("length", [*range(45, 60), 10_000])
def test_hostile_peer_ids_of_every_length_are_refused(length: int) -> None:
    for character in "1z6":
        with pytest.raises(RemoteError, match=r"^peer_id: "):
            compute_peer_address(character * length)


def test_keccak_is_ethereums_and_not_sha3() -> None:
    assert keccak(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


@pytest.mark.parametrize(
    "text",
    [
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
        "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
        "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
        "0x52908400098527886E0F7030069857D2E4169EE7",
        "0xde709f2102306220921060314715629080e2fb77",
    ],
)
def test_checksum_addresses_are_those_of_eip_55_and_people_may_write_them_or_lower_case(text: str) -> None:
    node = NodeId(bytes.fromhex(text[2:]))
    assert checksum_address(node) == text
    assert parse_address(text) == parse_address(text.lower()) == node


@pytest.mark.parametrize(
    "text", ["0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeD", "0x5AAEB6053f3e94c9b9a09f33669435e7ef1beaed"]
)
def test_an_address_with_a_wrong_digit_or_made_up_capitals_is_refused(text: str) -> None:
    with pytest.raises(RemoteError, match="fails the checksum of its capitals"):
        parse_address(text)
    with pytest.raises(RemoteError, match="40 lower-case hex digits"):
        parse_address(text[:-1])
