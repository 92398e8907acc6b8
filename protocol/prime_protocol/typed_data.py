"""EIP-712: typed documents that a wallet shows to its owner and a contract can check.

A document is a frozen dataclass of flat fields; its Solidity struct has the same name and its fields in camel case, in
the order they stand. Envelopes do not use this: they are read by programs only (envelope.py).
"""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId
from prime_protocol.signing import Signature, WalletKey, keccak, recover

DOMAIN_NAME = "prime-swarm"
DOMAIN_VERSION = "1"
CHAIN_ID_DIGITS_MAX = 18
DOMAIN_TYPE = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


@dataclass(frozen=True, slots=True)
class Domain:
    """Where a document counts: one contract on one chain. Embedded settlement uses chain 0 and address 0."""

    chain_id: int
    contract: NodeId

    def __str__(self) -> str:
        return f"{self.chain_id}:{self.contract}"

    @classmethod
    def parse(cls, text: str) -> "Domain":
        """From what `str` gives."""
        number, _, contract = text.partition(":")
        if not (number.isascii() and number.isdigit() and len(number) <= CHAIN_ID_DIGITS_MAX):
            raise RemoteError("domain", f"{text[:80]!r} is not a chain's number, a colon and an address")
        return cls(int(number), NodeId.parse(contract))


EMBEDDED = Domain(0, NodeId(bytes(20)))


def sign_document(key: WalletKey, document: Any, domain: Domain) -> Signature:
    """The wallet signature over a document."""
    return key.sign(document_digest(document, domain))


def check_document(document: Any, signature: Signature, *, signer: NodeId, domain: Domain) -> None:
    """Refuse a document that `signer` did not sign for this domain."""
    found = recover(document_digest(document, domain), signature)
    if found != signer:
        raise RemoteError(f"{type(document).__name__}.signature", f"is by {found}, expected {signer}")


def document_digest(document: Any, domain: Domain) -> Digest:
    """What the wallet signs."""
    return keccak(b"\x19\x01" + _domain_separator(domain) + struct_hash(document))


def struct_hash(document: Any) -> Digest:
    """EIP-712 hashStruct of a flat document."""
    kind: Any = type(document)
    words = [_word(getattr(document, name), solidity) for name, solidity in _columns(kind)]
    return keccak(_type_hash(kind) + b"".join(words))


def solidity_type(kind: type) -> str:
    """The struct's type string, as the contract states it."""
    return f"{kind.__name__}({','.join(f'{solidity} {_camel(name)}' for name, solidity in _columns(kind))})"


@cache
def _columns(kind: type) -> tuple[tuple[str, str], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, _solidity_name(hints[field.name])) for field in fields(kind))


def _solidity_name(annotation: Any) -> str:
    annotation = getattr(annotation, "__supertype__", annotation)  # Step, Slot and the like are integers
    if annotation is NodeId:
        return "address"
    if annotation is Digest:
        return "bytes32"
    if annotation is int:
        return "uint64"
    assert issubclass(annotation, str), f"{annotation} has no Solidity type here"
    return "string"


def _word(value: Any, solidity: str) -> bytes:
    if solidity == "string":
        return keccak(value.encode())
    if solidity == "uint64":
        return int(value).to_bytes(32, "big")
    return bytes(value).rjust(32, b"\x00")


@cache
def _type_hash(kind: type) -> Digest:
    return keccak(solidity_type(kind).encode())


@cache
def _domain_separator(domain: Domain) -> Digest:
    return keccak(
        keccak(DOMAIN_TYPE)
        + keccak(DOMAIN_NAME.encode())
        + keccak(DOMAIN_VERSION.encode())
        + domain.chain_id.to_bytes(32, "big")
        + domain.contract.rjust(32, b"\x00")
    )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
