"""Hostile text and bytes into ids, names, peer ids and signatures."""

import pytest

from fuzz.harness import assert_survives
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.signing import Signature, WalletKey, compute_peer_address, recover_signer

pytestmark = pytest.mark.fuzz

KEYS = [WalletKey.from_secret(bytes([number]) * 32) for number in range(1, 5)]
DIGEST = Digest(b"d" * 32)


def text_of(raw: bytes) -> str:
    """Also strings that no honest decoder gives: a parser of text must survive them too."""
    return raw.decode("utf-8", "surrogateescape")


def test_peer_ids_survive() -> None:
    assert_survives(lambda raw: compute_peer_address(text_of(raw)), [key.peer_id().encode() for key in KEYS])


def test_signatures_survive() -> None:
    assert_survives(lambda raw: recover_signer(DIGEST, Signature(raw)), [key.sign(DIGEST) for key in KEYS])


def test_ids_survive_and_what_parses_prints_the_same() -> None:
    def parse(raw: bytes) -> None:
        kind = Digest if len(raw) > 50 else NodeId
        assert str(kind.parse(text_of(raw))) == text_of(raw)

    assert_survives(parse, [str(KEYS[0].node).encode(), str(DIGEST).encode()])


def test_names_survive() -> None:
    assert_survives(lambda raw: RunId(text_of(raw)), [b"a", b"run-1", b"intellect-2-run-17", b"x" * 40])
