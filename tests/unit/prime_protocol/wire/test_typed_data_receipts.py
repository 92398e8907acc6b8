"""Delegations and receipts: their digests on every chain, and when a delegation is in force."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.constants import DELEGATION_LIFE_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.signing import Signature, WalletKey
from prime_protocol.wire.typed_data import (
    EMBEDDED_DOMAIN,
    Delegation,
    Domain,
    SubmissionReceipt,
    VerdictReceipt,
    compute_document_digest,
    compute_receipt_id,
    parse_receipt,
    sign_document,
    solidity_type,
    verify_delegation,
    verify_document,
)

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "receipts.json").read_text())
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Delegation, SubmissionReceipt, VerdictReceipt)}
OWNER, NODE = WalletKey.from_secret(b"o" * 32), WalletKey.from_secret(b"n" * 32)
CHAIN = Domain(8453, NodeId(b"\xc0" * 20))


def read(kind: type, values: dict[str, Any]) -> Any:
    """A document from a vector's camel-case fields."""
    types = {"network": NetworkId, "run": RunId}
    found = {}
    for field in fields(kind):
        value = values[re.sub(r"_(.)", lambda match: match[1].upper(), field.name)]
        if isinstance(value, str) and value.startswith("0x"):
            value = (NodeId if len(value) == 42 else Digest).parse(value)
        found[field.name] = types.get(field.name, lambda same: same)(value)
    return kind(**found)


@pytest.mark.parametrize("vector", VECTORS["receipts"], ids=lambda vector: vector["type"])
def test_a_receipt_has_the_hashes_and_signature_that_eth_account_gives_it(vector: dict[str, Any]) -> None:
    document = read(KINDS[vector["type"]], vector["fields"])
    domain = Domain(vector["domain"]["chainId"], NodeId.parse(vector["domain"]["verifyingContract"]))
    key = WalletKey.from_secret(bytes.fromhex(VECTORS["secret"]))
    assert solidity_type(type(document)) == VECTORS["types"][vector["type"]]
    assert compute_receipt_id(document).hex() == vector["struct_hash"]
    assert compute_document_digest(document, domain).hex() == vector["digest"]
    assert sign_document(key, document, domain).hex() == vector["signature"]
    verify_document(document, Signature(bytes.fromhex(vector["signature"])), signer=key.node, domain=domain)
    assert decode(type(document), encode(document)) == document


def delegation(issued_at_ms: int = 1000, life_ms: int = 500) -> Delegation:
    return Delegation(
        network=NetworkId("main"),
        owner=OWNER.node,
        node=NODE.node,
        issued_at_ms=issued_at_ms,
        expires_at_ms=issued_at_ms + life_ms,
    )


def test_a_delegation_is_in_force_from_issue_until_just_before_expiry() -> None:
    signature = sign_document(OWNER, delegation(), EMBEDDED_DOMAIN)
    for now_ms in (1000, 1499):
        verify_delegation(delegation(), signature, EMBEDDED_DOMAIN, now_ms)
    for now_ms in (0, 999, 1500, 10**12):
        with pytest.raises(RemoteError, match=r"^Delegation\.expires_at_ms: is 1500, now is \d+: not in force$"):
            verify_delegation(delegation(), signature, EMBEDDED_DOMAIN, now_ms)


def test_a_delegation_that_the_owner_did_not_sign_is_refused() -> None:
    for signature in (sign_document(NODE, delegation(), EMBEDDED_DOMAIN), sign_document(OWNER, delegation(), CHAIN)):
        with pytest.raises(RemoteError, match=r"^Delegation\.signature: "):
            verify_delegation(delegation(), signature, EMBEDDED_DOMAIN, 1000)


@pytest.mark.parametrize("life_ms", [-1, 0, DELEGATION_LIFE_MS_MAX + 1])
def test_a_delegation_without_a_sensible_life_is_refused(life_ms: int) -> None:
    with pytest.raises(RemoteError, match=rf"^expires_at_ms: is {life_ms} ms after issue"):
        delegation(life_ms=life_ms)


def test_a_delegation_may_last_a_year() -> None:
    assert delegation(life_ms=DELEGATION_LIFE_MS_MAX).expires_at_ms == 1000 + DELEGATION_LIFE_MS_MAX


def test_a_receipt_with_a_negative_number_never_gets_as_far_as_hashing() -> None:
    receipt = SubmissionReceipt(
        network=NetworkId("main"),
        run=RunId("r"),
        step=Step(-1),
        lease=0,
        node=NODE.node,
        checkpoint_root=Digest(bytes(32)),
        file_digest=Digest(bytes(32)),
        rollout_root=Digest(bytes(32)),
    )
    with pytest.raises(RemoteError, match=r"^SubmissionReceipt\.step: is -1"):
        decode(SubmissionReceipt, encode(receipt))


def test_a_receipt_is_read_from_the_json_of_its_entry() -> None:
    facts = {
        "network": "main",
        "run": "r",
        "step": 3,
        "lease": 7,
        "node": str(NODE.node),
        "checkpoint_root": str(Digest(b"c" * 32)),
        "file_digest": str(Digest(b"f" * 32)),
        "rollout_root": str(Digest(b"r" * 32)),
    }
    receipt = parse_receipt(facts)
    assert (receipt.run, receipt.step, receipt.lease, receipt.node) == ("r", 3, 7, NODE.node)
    for wrong in (True, "3", -1, 2**63):
        with pytest.raises(ValueError, match="step is"):
            parse_receipt(facts | {"step": wrong})
