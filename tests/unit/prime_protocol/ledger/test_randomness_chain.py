"""The randomness chain: drand's vectors, the times of rounds, and what is not a signature."""

from dataclasses import replace
from hashlib import sha256

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.randomness_chain import (
    QUICKNET,
    RandomnessChain,
    make_own_chain,
    parse_public_key,
    sign_round,
    verify_round,
)
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import NetworkId
from support.ledger_network import CHAIN, CHAIN_SECRET

QUICKNET_1000 = bytes.fromhex(
    "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"
)
INFINITY = bytes([0xC0]) + bytes(47)


def test_a_round_of_the_league_of_entropy_verifies() -> None:
    assert QUICKNET.compute_hash().hex() == "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971"
    randomness = verify_round(QUICKNET, 1000, QUICKNET_1000)
    assert randomness.hex() == "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd"


@pytest.mark.parametrize("number", [1, 999, 1001])
def test_a_signature_is_of_one_round_only(number: int) -> None:
    with pytest.raises(RemoteError, match=f"signature: is not the chain's signature of round {number}"):
        verify_round(QUICKNET, number, QUICKNET_1000)


def test_an_own_chain_uses_the_same_verifier_and_is_not_quicknet() -> None:
    signature = sign_round(CHAIN_SECRET, 7)
    assert verify_round(CHAIN, 7, signature) == sha256(signature).digest()
    with pytest.raises(RemoteError, match="is not the chain's"):
        verify_round(QUICKNET, 7, signature)
    another = make_own_chain(b"\x05" * 32, NetworkId("testnet"), genesis_s=CHAIN.genesis_s, period_s=1)
    with pytest.raises(RemoteError, match="is not the chain's"):
        verify_round(another, 7, signature)


@pytest.mark.parametrize(
    "signature",
    [b"", bytes(48), b"\xff" * 48, INFINITY, QUICKNET_1000[:-1], QUICKNET_1000[:-1] + b"\x00", QUICKNET_1000 + b"\x00"],
    ids=["empty", "zeros", "ones", "infinity", "short", "changed", "long"],
)
def test_other_bytes_are_no_signature(signature: bytes) -> None:
    with pytest.raises(RemoteError, match="signature"):
        verify_round(QUICKNET, 1000, signature)


@pytest.mark.parametrize("raw", [bytes(96), b"\xff" * 96, bytes([0xC0]) + bytes(95), QUICKNET.public_key[::-1]])
def test_other_bytes_are_no_public_key(raw: bytes) -> None:
    with pytest.raises(RemoteError, match=r"randomness\.public_key"):
        parse_public_key(raw)


def test_the_first_round_from_a_time_is_published_then_or_just_after() -> None:
    genesis_ms = 1000 * QUICKNET.genesis_s
    assert QUICKNET.first_round_from(0) == 1
    for at_ms in (genesis_ms, genesis_ms + 1, genesis_ms + 2_999, genesis_ms + 3_000, genesis_ms + 3_001):
        number = QUICKNET.first_round_from(at_ms)
        assert QUICKNET.round_time_ms(number) >= at_ms
        assert number == 1 or QUICKNET.round_time_ms(number - 1) < at_ms


def test_another_scheme_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"randomness\.scheme: is pedersen-bls-chained"):
        replace(QUICKNET, scheme="pedersen-bls-chained")


def test_a_description_travels_and_says_who_can_predict_it() -> None:
    assert decode(RandomnessChain, encode(QUICKNET)) == QUICKNET
    assert "League of Entropy" in QUICKNET.describe()
    assert "the operator can predict every round" in CHAIN.describe()
    private = replace(QUICKNET, beacon_id="default")
    assert "the holders of its key" in private.describe()
    assert private.compute_hash() != QUICKNET.compute_hash()
