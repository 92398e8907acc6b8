"""The documents a contract may be shown: an owner's delegation, a worker's submission, a validator's verdict.

Each is signed as EIP-712 typed data by the key it binds. The ledger carries the same facts with the signature.
"""

from dataclasses import dataclass
from typing import Annotated

from prime_protocol.codec import Range
from prime_protocol.constants import DELEGATION_LIFE_MS_MAX
from prime_protocol.envelope import Uint
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.signing import Signature
from prime_protocol.typed_data import Domain, check_document, struct_hash


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
    """Worker: these bytes are my whole answer to this lease. What a slash for cheating rests on."""

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
    """Number of the Outcome: 0 accept, 1 soft reject, 2 hard reject."""
    evidence: Digest
    """SHA-256 of the evidence bundle; of the metrics where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """Node: that owner may put stake behind me. Only a chain asks for it, in the domain of its vault."""

    owner: NodeId
    node: NodeId
    nonce: Uint
    """The vault's count of this node's consents, so that each counts once."""


def receipt_id(receipt: SubmissionReceipt | VerdictReceipt | Delegation) -> Digest:
    """The name of what the receipt stands for, the same on every chain and in every domain."""
    return struct_hash(receipt)


def check_delegation(delegation: Delegation, signature: Signature, domain: Domain, now_ms: int) -> None:
    """Refuse a delegation that its owner did not sign, or that is not in force now."""
    if not delegation.issued_at_ms <= now_ms < delegation.expires_at_ms:
        raise RemoteError("Delegation.expires_at_ms", f"is {delegation.expires_at_ms}, now is {now_ms}: not in force")
    check_document(delegation, signature, signer=delegation.owner, domain=domain)
