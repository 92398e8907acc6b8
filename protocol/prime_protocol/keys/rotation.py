"""The entries that rotate a key of the log, and the signatures in them.

The coordinator writes both entries with its own key. Beside that each holds what only the holders of the keys can make:
a rotation of the log key is signed by the old and the new log key, one of the coordinator's key by the new key, because
the old one signs the envelope. The statement names the entry's number, so it is valid in one place only.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from prime_protocol.constants import ED25519_SIGNATURE_BYTES, LOG_KEY_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.log.tree_head import ORIGIN_PREFIX, SignatureKind, VerifierKey
from prime_protocol.wire.codec import Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, digest_fields
from prime_protocol.wire.signing import Signature, WalletKey, recover_signer

LogKeySignature = Annotated[bytes, Size(ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)]


class KeyKind(StrEnum):
    """Which key of the log."""

    LOG = "log"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKeyRotated:
    """Coordinator: heads that cover this entry are signed with another key. The old and the new one agree."""

    index: Uint
    """Number of this entry. Heads over more entries than this have the new key."""
    log_key: Annotated[str, Size(1, LOG_KEY_CHARS_MAX)]
    """The new verifier key, in signed-note form."""
    old_signature: LogKeySignature
    new_signature: LogKeySignature


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorKeyRotated:
    """Coordinator, with its old key: the entries after this one that only the coordinator may write have a new author.

    The balance of the old account and what is left of its funding of runs pass to the new one.
    """

    index: Uint
    """Number of this entry."""
    coordinator: NodeId
    """The new key's address."""
    signature: Signature
    """By the new key."""


@dataclass(frozen=True, slots=True)
class KeyRotation:
    """A rotation as the ledger state keeps it."""

    index: int
    at_ms: int
    kind: KeyKind
    old: str
    """The key as it prints: a verifier key or an address."""
    new: str


def encode_log_key_statement(network: NetworkId, *, index: int, old: VerifierKey, new: VerifierKey) -> bytes:
    """What both log keys sign. No tree head and no cosignature begins like this."""
    return f"prime-swarm log key rotation/1\n{network}\n{index}\n{old}\n{new}\n".encode()


def digest_coordinator_statement(network: NetworkId, *, index: int, old: NodeId, new: NodeId) -> Digest:
    """What the coordinator's new key signs."""
    return digest_fields("coordinator key rotation/1", network.encode(), str(index).encode(), old, new)


def make_log_key_rotation(
    network: NetworkId, *, index: int, old: Ed25519PrivateKey, new: Ed25519PrivateKey
) -> LogKeyRotated:
    origin = ORIGIN_PREFIX + network
    key = VerifierKey.of(origin, new)
    statement = encode_log_key_statement(network, index=index, old=VerifierKey.of(origin, old), new=key)
    return LogKeyRotated(
        index=index, log_key=str(key), old_signature=old.sign(statement), new_signature=new.sign(statement)
    )


def make_coordinator_rotation(network: NetworkId, *, index: int, old: NodeId, new: WalletKey) -> CoordinatorKeyRotated:
    statement = digest_coordinator_statement(network, index=index, old=old, new=new.node)
    return CoordinatorKeyRotated(index=index, coordinator=new.node, signature=new.sign(statement))


def verify_log_key_rotation(entry: LogKeyRotated, network: NetworkId, *, index: int, old: VerifierKey) -> VerifierKey:
    """The new key, if the entry stands where it says and both keys signed it."""
    _check_index(entry.index, index)
    new = VerifierKey.parse(entry.log_key)
    if new.name != ORIGIN_PREFIX + network or new.kind is not SignatureKind.NOTE:
        raise RemoteError("log_key", f"is a key of {new.name}, and must sign the heads of {ORIGIN_PREFIX}{network}")
    statement = encode_log_key_statement(network, index=index, old=old, new=new)
    for field, key, signature in (
        ("old_signature", old, entry.old_signature),
        ("new_signature", new, entry.new_signature),
    ):
        try:
            Ed25519PublicKey.from_public_bytes(key.public_key).verify(signature, statement)
        except InvalidSignature:
            raise RemoteError(field, f"is not the signature of {key} on this rotation") from None
    return new


def verify_coordinator_rotation(entry: CoordinatorKeyRotated, network: NetworkId, *, index: int, old: NodeId) -> NodeId:
    """The new key's address, if the entry stands where it says and the new key signed it."""
    _check_index(entry.index, index)
    statement = digest_coordinator_statement(network, index=index, old=old, new=entry.coordinator)
    signer = recover_signer(statement, entry.signature)
    if signer != entry.coordinator:
        raise RemoteError("signature", f"is not the signature of {entry.coordinator} on this rotation")
    return entry.coordinator


def _check_index(claimed: int, index: int) -> None:
    if claimed != index:
        raise RemoteError("index", f"is {claimed}, this is entry {index}")
