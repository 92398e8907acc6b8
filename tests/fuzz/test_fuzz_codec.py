"""Hostile bytes into the codec: what decodes is canonical, and everything else is refused by name."""

from typing import Any

import pytest

from fuzz.harness import assert_survives
from prime_protocol.constants import READ_PROOF_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import RelayPollReply
from prime_protocol.ledger.entries import (
    CheckpointPublished,
    Delegated,
    Inspected,
    LogRecord,
    NodeRegistered,
    Outcome,
    Role,
    VerdictGiven,
)
from prime_protocol.ledger.entry_values import InspectedVerdict, Metric
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.signing import Signature, WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Delegation, VerdictReceipt, verify_document

pytestmark = pytest.mark.fuzz

KEY = WalletKey.from_secret(b"k" * 32)
MAIN, RUN = NetworkId("main"), RunId("run-1")
RECEIPT = VerdictReceipt(
    network=MAIN,
    run=RUN,
    submission=Digest(b"s" * 32),
    validator=KEY.node,
    outcome=2,
    evidence=Digest(bytes(32)),
)
MESSAGES: list[Any] = [
    LogRecord(1_800_000_000_000, b"\x00" * 200),
    NodeRegistered(roles=(Role.RELAY, Role.WORKER), hardware="one GPU, 24 GB, in Zürich"),
    CheckpointPublished(
        step=Step(70_000),
        root=Digest(b"r" * 32),
        manifest=Digest(b"m" * 32),
        trained_on=tuple(Digest(bytes([n]) * 32) for n in range(20)),
        trained_on_root=Digest(b"t" * 32),
        trained_on_count=20,
    ),
    Delegated(
        delegation=Delegation(
            network=MAIN, owner=KEY.node, node=NodeId(b"n" * 20), issued_at_ms=0, expires_at_ms=86_400_000
        ),
        signature=Signature(b"g" * 65),
    ),
    RelayPollReply(
        cursor=1_800_000_000_000,
        trainer=KEY.node,
        nodes=12,
        peers=(f"/ip4/10.0.0.1/tcp/4001/p2p/{KEY.peer_id()}",),
        frames=tuple(bytes([n]) * 200 for n in range(10)),
    ),
    VerdictGiven(
        receipt=RECEIPT,
        signature=Signature(b"g" * 65),
        outcome=Outcome.FRAUDULENT,
        reason="the tokens are not those of the checkpoint",
        metrics=tuple(Metric(name=f"metric_{n}", value=n / 7) for n in range(5)),
        read_proof=bytes(range(READ_PROOF_BYTES)),
    ),
    Inspected(
        submission=Digest(b"s" * 32),
        seen=tuple(
            InspectedVerdict(reader=NodeId(bytes([n]) * 20), read_proof=bytes(range(n, n + READ_PROOF_BYTES)))
            for n in range(3)
        ),
    ),
]


@pytest.mark.parametrize("example", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_and_what_decodes_is_canonical(example: Any) -> None:
    kind = type(example)

    def parse(raw: bytes) -> None:
        try:
            message = decode(kind, raw)
        except RemoteError as error:
            assert error.field.startswith(kind.__name__)
            assert str(error).isprintable()
            raise
        assert encode(message) == raw

    assert_survives(parse, [encode(example)])


def test_hostile_receipts_survive_hashing_and_recovery() -> None:
    """Whatever the codec lets through, EIP-712 must be able to hash."""
    signature = KEY.sign(Digest(bytes(32)))

    def parse(raw: bytes) -> None:
        receipt = decode(VerdictReceipt, raw)
        try:
            verify_document(receipt, signature, signer=KEY.node, domain=EMBEDDED_DOMAIN)
        except RemoteError as error:
            assert error.field == "VerdictReceipt.signature"

    assert_survives(parse, [encode(RECEIPT)])
