"""The keys of a log from its first entry on: who signs a head of a given size and writes a given entry.

A chain is read from the leaves of entry 0 and of the rotations, each of which is signed by the keys before it. It needs
no other entry of the log. So a program that trusts one key of a chain can follow it to the newest key, from a file of a
few hundred bytes for each rotation. Inclusion proofs under a head then show that the rotations are in the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

from prime_protocol.constants import KEY_FILE_BYTES_MAX, KEY_ROTATIONS_MAX, LOG_ENTRY_BYTES_MAX, SIGNATURE_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.keys.rotation import (
    CoordinatorKeyRotated,
    KeyKind,
    LogKeyRotated,
    verify_coordinator_rotation,
    verify_log_key_rotation,
)
from prime_protocol.ledger.entries import LogRecord, NetworkCreated
from prime_protocol.ledger.state import LedgerState
from prime_protocol.log.tree_head import SignedNote, TreeHead, VerifierKey, open_tree_head
from prime_protocol.wire.codec import Size, decode, encode
from prime_protocol.wire.envelope import Payload, open_envelope
from prime_protocol.wire.ids import NetworkId, NodeId

ROTATION_KINDS = (LogKeyRotated.__name__, CoordinatorKeyRotated.__name__)
ENCODED_KINDS = tuple(kind.encode() for kind in ROTATION_KINDS)


@dataclass(frozen=True, slots=True)
class LogKeyPeriod:
    """A log key, and the entry that brought it: it signs heads over more entries than that."""

    index: int
    key: VerifierKey


@dataclass(frozen=True, slots=True)
class CoordinatorPeriod:
    """A coordinator's key, and the entry that brought it: it writes the entries after that."""

    index: int
    key: NodeId


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What a coordinator serves as `keys`, beside the newest head."""

    leaves: Annotated[tuple[bytes, ...], Size(1, KEY_ROTATIONS_MAX + 1)]
    """Entry 0, then every rotation, in order."""

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        return decode(cls, raw, bytes_max=KEY_FILE_BYTES_MAX)

    def encode(self) -> bytes:
        return encode(self)


@dataclass(frozen=True, slots=True)
class KeyChain:
    """Every key that a log has had. The first of each kind is the one of entry 0."""

    network: NetworkId
    log_keys: tuple[LogKeyPeriod, ...]
    coordinators: tuple[CoordinatorPeriod, ...]

    @classmethod
    def begin(cls, leaf: bytes, network: NetworkId) -> Self:
        """From entry 0."""
        payload = _open_leaf(leaf, network)
        if payload.kind != NetworkCreated.__name__:
            raise RemoteError("Payload.kind", f"is {payload.kind}, but the first entry must be NetworkCreated")
        key = VerifierKey.parse(decode(NetworkCreated, payload.body).log_key)
        return cls(network, (LogKeyPeriod(0, key),), (CoordinatorPeriod(0, payload.sender),))

    @classmethod
    def of_leaves(cls, leaves: Sequence[bytes], network: NetworkId) -> Self:
        """From entry 0 and every rotation."""
        chain = cls.begin(leaves[0], network)
        for leaf in leaves[1:]:
            chain = chain.extend(leaf)
        return chain

    @classmethod
    def of_state(cls, network: NetworkId, state: LedgerState) -> Self:
        """As far as a ledger has been folded; it has at least entry 0."""
        assert state.coordinator is not None
        rotations = {kind: [each for each in state.key_rotations if each.kind is kind] for kind in KeyKind}
        log_key = rotations[KeyKind.LOG][0].old if rotations[KeyKind.LOG] else state.log_key
        first = NodeId.parse(rotations[KeyKind.COORDINATOR][0].old) if rotations[KeyKind.COORDINATOR] else None
        log_keys = [(0, log_key), *((each.index, each.new) for each in rotations[KeyKind.LOG])]
        later = ((each.index, NodeId.parse(each.new)) for each in rotations[KeyKind.COORDINATOR])
        return cls(
            network,
            tuple(LogKeyPeriod(index, VerifierKey.parse(text)) for index, text in log_keys),
            tuple(CoordinatorPeriod(*each) for each in ((0, first or state.coordinator), *later)),
        )

    def extend_if_rotation(self, index: int, leaf: bytes) -> Self:
        """With any entry of the log, in order; most rotate no key, which a search for two words tells."""
        if not any(kind in leaf for kind in ENCODED_KINDS):
            return self
        payload = decode(Payload, decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX).frame[SIGNATURE_BYTES:])
        if payload.kind not in ROTATION_KINDS:
            return self
        made = self.extend(leaf)
        if made.newest_index != index:
            raise RemoteError("index", f"is {made.newest_index}, this is entry {index}")
        return made

    def extend(self, leaf: bytes) -> Self:
        """With the next rotation. RemoteError: a key that must agree has not signed it."""
        payload = _open_leaf(leaf, self.network)
        if payload.sender != self.coordinator:
            raise RemoteError("Payload.sender", f"is {payload.sender}, the coordinator is {self.coordinator}")
        if payload.kind == LogKeyRotated.__name__:
            entry = decode(LogKeyRotated, payload.body)
            self._check_order(entry.index)
            key = verify_log_key_rotation(entry, self.network, index=entry.index, old=self.log_key)
            return replace(self, log_keys=(*self.log_keys, LogKeyPeriod(entry.index, key)))
        if payload.kind == CoordinatorKeyRotated.__name__:
            told = decode(CoordinatorKeyRotated, payload.body)
            self._check_order(told.index)
            node = verify_coordinator_rotation(told, self.network, index=told.index, old=self.coordinator)
            return replace(self, coordinators=(*self.coordinators, CoordinatorPeriod(told.index, node)))
        raise RemoteError("Payload.kind", f"is {payload.kind}, which rotates no key")

    def _check_order(self, index: int) -> None:
        if len(self.log_keys) + len(self.coordinators) - 2 >= KEY_ROTATIONS_MAX:
            raise RemoteError("key_rotations", f"are more than {KEY_ROTATIONS_MAX}")
        if index <= self.newest_index:
            raise RemoteError("index", f"is {index}, the rotation before it is entry {self.newest_index}")

    @property
    def newest_index(self) -> int:
        """Number of the newest entry that the chain comes from."""
        return max(self.log_keys[-1].index, self.coordinators[-1].index)

    @property
    def log_key(self) -> VerifierKey:
        """The newest."""
        return self.log_keys[-1].key

    @property
    def coordinator(self) -> NodeId:
        """The newest."""
        return self.coordinators[-1].key

    @property
    def founder(self) -> NodeId:
        """The author of entry 0."""
        return self.coordinators[0].key

    def get_indexes(self) -> list[int]:
        """Numbers of the entries that the chain comes from."""
        return sorted({each.index for each in self.log_keys} | {each.index for each in self.coordinators})

    def get_log_key(self, size: int) -> VerifierKey:
        """The key that signs heads over this many entries."""
        return next((each.key for each in reversed(self.log_keys) if each.index < size), self.log_keys[0].key)

    def get_coordinator(self, index: int) -> NodeId:
        """The key that signs the coordinator's entry of this number."""
        return next((each.key for each in reversed(self.coordinators) if each.index < index), self.founder)

    def has_log_key(self, key: VerifierKey) -> bool:
        return any(each.key == key for each in self.log_keys)

    def has_coordinator(self, node: NodeId) -> bool:
        return any(each.key == node for each in self.coordinators)

    def is_continued_by(self, other: "KeyChain") -> bool:
        """Whether the other chain is this one, or this one with later rotations."""
        return (
            other.network == self.network
            and other.log_keys[: len(self.log_keys)] == self.log_keys
            and other.coordinators[: len(self.coordinators)] == self.coordinators
        )

    def open_head(self, raw: bytes) -> TreeHead:
        """The head, if the log key of its size signed it; RemoteError says where a rotated key did."""
        rotated_at = self.find_rotated_signer(raw)
        if rotated_at is not None:
            raise RemoteError("note.signatures", f"is by the key that was rotated at entry {rotated_at}")
        return open_tree_head(raw, [self.get_log_key(_read_size(raw))])

    def is_by_rotated_key(self, raw: bytes) -> bool:
        """As `find_rotated_signer`, for any bytes."""
        try:
            return self.find_rotated_signer(raw) is not None
        except RemoteError:
            return False

    def find_rotated_signer(self, raw: bytes) -> int | None:
        """The rotation after which a key must not sign, if that key alone signed this head; None: no such key did."""
        size = _read_size(raw)
        signers = {each.key for each in SignedNote.parse(raw).verify_signatures(each.key for each in self.log_keys)}
        if self.get_log_key(size) in signers:
            return None
        for period, successor in zip(self.log_keys, self.log_keys[1:], strict=False):
            if period.key in signers and size > successor.index:
                return successor.index
        return None


def _read_size(raw: bytes) -> int:
    """As claimed: no signature is verified."""
    return TreeHead.parse(SignedNote.parse(raw).text).size


def _open_leaf(leaf: bytes, network: NetworkId) -> Payload:
    record = decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
    return open_envelope(record.frame, network=network, version_min=0).payload
