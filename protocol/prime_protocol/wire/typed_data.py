"""EIP-712 typed data, and the documents that contracts verify: delegation, submission, verdict and consent.

A document is a frozen dataclass of flat fields. Its Solidity struct has the same name, and the same fields in camel
case in the same order. The key that a document binds signs it, and the ledger carries the same facts with the
signature. A wallet can show a document to its owner. Envelopes do not use typed data, because only programs read them
(envelope.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

from prime_protocol.constants import DELEGATION_LIFE_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import Range
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.signing import Signature, WalletKey, keccak, recover_signer

DOMAIN_NAME = "prime-swarm"
DOMAIN_VERSION = "1"
CHAIN_ID_DIGITS_MAX = 18
DOMAIN_TYPE = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


@dataclass(frozen=True, slots=True)
class Domain:
    """Where a document is valid: one contract on one chain. Embedded settlement uses chain 0 and address 0."""

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


EMBEDDED_DOMAIN = Domain(0, NodeId(bytes(20)))


def sign_document(key: WalletKey, document: Any, domain: Domain) -> Signature:
    """The wallet signature over a document."""
    return key.sign(compute_document_digest(document, domain))


def verify_document(document: Any, signature: Signature, *, signer: NodeId, domain: Domain) -> None:
    """Refuse a document that `signer` did not sign for this domain."""
    found = recover_signer(compute_document_digest(document, domain), signature)
    if found != signer:
        raise RemoteError(f"{type(document).__name__}.signature", f"is by {found}, expected {signer}")


def compute_document_digest(document: Any, domain: Domain) -> Digest:
    """What the wallet signs."""
    return keccak(b"\x19\x01" + _domain_separator(domain) + compute_struct_hash(document))


def compute_struct_hash(document: Any) -> Digest:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """Owner: this node key works for me, with the stake I put behind it, until then."""

    network: NetworkId
    owner: NodeId
    node: NodeId
    issued_at_ms: Uint
    expires_at_ms: Uint

    def __post_init__(self) -> None:
        life_ms = self.expires_at_ms - self.issued_at_ms
        if not 0 < life_ms <= DELEGATION_LIFE_MS_MAX:
            raise RemoteError("expires_at_ms", f"is {life_ms} ms after issue, allowed is 1 to {DELEGATION_LIFE_MS_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionReceipt:
    """Worker: these bytes are my whole answer to this lease. A slash for cheating is based on this document."""

    network: NetworkId
    run: RunId
    step: Step
    lease: Uint
    node: NodeId
    checkpoint_root: Digest
    file_digest: Digest
    """SHA-256 of the rollout file."""
    rollout_root: Digest
    """Merkle root over the file's rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReceipt:
    """Validator: I checked that submission and found this."""

    network: NetworkId
    run: RunId
    submission: Digest
    """`receipt_id` of the submission's receipt."""
    validator: NodeId
    outcome: Annotated[int, Range(0, 2)]
    """Number of the Outcome: 0 accept, 1 invalid reject, 2 fraudulent reject."""
    evidence: Digest
    """SHA-256 of the evidence bundle; of the metrics where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """Node: that owner may put stake behind me. Only a chain asks for it, in the domain of its vault."""

    owner: NodeId
    node: NodeId
    nonce: Uint
    """The vault's count of this node's consents, so that each counts once."""


def parse_receipt(facts: Mapping[str, Any]) -> SubmissionReceipt:
    """A receipt from the public JSON of its log entry; KeyError, ValueError or RemoteError if it is malformed.

    Its name is the digest of its fields, so a receipt that was changed on the way has another name.
    """
    for name in ("step", "lease"):
        # `type is`, because JSON's true is an int to isinstance.
        if type(facts[name]) is not int or not 0 <= facts[name] < 2**63:
            raise ValueError(f"{name} is {facts[name]!r}, not a whole number")
    return SubmissionReceipt(
        network=NetworkId(facts["network"]),
        run=RunId(facts["run"]),
        step=Step(facts["step"]),
        lease=facts["lease"],
        node=NodeId.parse(facts["node"]),
        checkpoint_root=Digest.parse(facts["checkpoint_root"]),
        file_digest=Digest.parse(facts["file_digest"]),
        rollout_root=Digest.parse(facts["rollout_root"]),
    )


def compute_receipt_id(receipt: SubmissionReceipt | VerdictReceipt | Delegation) -> Digest:
    """The id of a submission: the digest of its receipt, the same on every chain and in every domain."""
    return compute_struct_hash(receipt)


def verify_delegation(delegation: Delegation, signature: Signature, domain: Domain, now_ms: int) -> None:
    """Refuse a delegation that its owner did not sign, or that is not in force now."""
    if not delegation.issued_at_ms <= now_ms < delegation.expires_at_ms:
        raise RemoteError("Delegation.expires_at_ms", f"is {delegation.expires_at_ms}, now is {now_ms}: not in force")
    verify_document(delegation, signature, signer=delegation.owner, domain=domain)
