"""EIP-712 documents, against eth-account."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import Range
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.signing import Signature, WalletKey
from prime_protocol.wire.typed_data import (
    EMBEDDED_DOMAIN,
    Domain,
    compute_document_digest,
    compute_struct_hash,
    sign_document,
    solidity_type,
    verify_document,
)

KEY, OTHER = WalletKey.from_secret(b"k" * 32), WalletKey.from_secret(b"o" * 32)
CHAIN = Domain(8453, NodeId(b"\xc0" * 20))


@dataclass(frozen=True, slots=True)
class Document:
    """One field of every kind that a document may have."""

    run_name: RunId
    plain_text: str
    first_step: Step
    some_count: Annotated[int, Range(0, 9)]
    the_owner: NodeId
    file_digest_value: Digest


DOCUMENT = Document(RunId("run-1"), "hellö", Step(7), 5, NodeId(b"n" * 20), Digest(b"d" * 32))


def test_the_struct_has_the_fields_in_their_order_in_camel_case() -> None:
    assert solidity_type(Document) == (
        "Document(string runName,string plainText,uint64 firstStep,uint64 someCount,address theOwner,"
        "bytes32 fileDigestValue)"
    )


@pytest.mark.parametrize("domain", [EMBEDDED_DOMAIN, CHAIN])
def test_a_signature_is_eth_accounts_to_the_byte(domain: Domain) -> None:
    columns = [column.split(" ") for column in solidity_type(Document)[len("Document(") : -1].split(",")]
    signable = encode_typed_data(
        {
            "name": "prime-swarm",
            "version": "1",
            "chainId": domain.chain_id,
            "verifyingContract": str(domain.contract),
        },
        {"Document": [{"type": solidity, "name": name} for solidity, name in columns]},
        {
            "runName": "run-1",
            "plainText": "hellö",
            "firstStep": 7,
            "someCount": 5,
            "theOwner": "0x" + "6e" * 20,
            "fileDigestValue": b"d" * 32,
        },
    )
    signature = sign_document(KEY, DOCUMENT, domain)
    assert signature == Account.from_key(KEY.secret()).sign_message(signable).signature
    assert signable.body == compute_struct_hash(DOCUMENT)
    verify_document(DOCUMENT, signature, signer=KEY.node, domain=domain)


def test_a_document_counts_for_its_signer_its_domain_and_its_words_only() -> None:
    signature = sign_document(KEY, DOCUMENT, CHAIN)
    changed = Document(RunId("run-2"), "hellö", Step(7), 5, NodeId(b"n" * 20), Digest(b"d" * 32))
    for document, signer, domain in [
        (DOCUMENT, OTHER.node, CHAIN),
        (DOCUMENT, KEY.node, EMBEDDED_DOMAIN),
        (DOCUMENT, KEY.node, Domain(CHAIN.chain_id + 1, CHAIN.contract)),
        (DOCUMENT, KEY.node, Domain(CHAIN.chain_id, NodeId(bytes(20)))),
        (changed, KEY.node, CHAIN),
    ]:
        with pytest.raises(RemoteError, match=r"^Document\.signature: is by 0x[0-9a-f]{40}, expected"):
            verify_document(document, signature, signer=signer, domain=domain)


def test_a_signature_that_is_none_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^signature: "):
        verify_document(DOCUMENT, Signature(bytes(65)), signer=KEY.node, domain=CHAIN)


def test_a_field_without_a_solidity_type_is_a_bug() -> None:
    @dataclass(frozen=True)
    class Bad:
        ratio: float

    with pytest.raises(AssertionError, match="has no Solidity type"):
        compute_document_digest(Bad(0.5), EMBEDDED_DOMAIN)


def test_a_domain_is_read_back_from_how_it_prints_and_nothing_else_is_one() -> None:
    domain = Domain(31337, NodeId(b"\x07" * 20))
    assert Domain.parse(str(domain)) == domain
    for text in ("", "1", "x:" + str(domain.contract), "\u0663:" + str(domain.contract), "1:0x12", "9" * 19 + ":0x"):
        with pytest.raises(RemoteError):
            Domain.parse(text)
