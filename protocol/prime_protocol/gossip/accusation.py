"""A signed accusation: an entry of the log breaks a rule. What it says, and what a receiver can verify by itself.

The message proves that the entry is in the log: it carries a signed head and the entry's inclusion proof. Whether the
entry breaks a rule usually depends on the entries before it. Then the message is a claim of its sender, and the
receiver's own replay decides. A leaf that breaks a rule by itself, such as a wrong author, convicts the log at once.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from prime_protocol.constants import (
    ACCUSATION_CHARS_MAX,
    ACCUSED_LEAF_BYTES_MAX,
    GOSSIP_NOTE_BYTES_MAX,
    PROOF_HASHES_MAX,
    PROTOCOL_VERSION,
)
from prime_protocol.errors import RemoteError
from prime_protocol.keys.chain import KeyChain
from prime_protocol.ledger.replay import check_leaf_alone, open_leaf, read_leaf_version
from prime_protocol.log.merkle import compute_leaf_hash, verify_inclusion
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.wire.codec import Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NetworkId, NodeId


class BrokenRule(StrEnum):
    """What an accused entry breaks."""

    LEDGER = "ledger"
    """A rule of the ledger: `Ledger.apply` refuses the entry after those before it."""
    CLOCK = "clock"
    """Its time is not the time at which it appeared, by the accuser's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """Node: this entry of the log breaks a rule. The sender of the envelope is the accuser."""

    note: Annotated[bytes, Size(1, GOSSIP_NOTE_BYTES_MAX)]
    """A signed tree head that covers the entry."""
    index: Uint
    """Number of the entry in the log."""
    leaf_hash: Digest
    leaf: Annotated[bytes, Size(0, ACCUSED_LEAF_BYTES_MAX)]
    """The entry; empty if it is longer than ACCUSED_LEAF_BYTES_MAX."""
    proof: Annotated[tuple[Digest, ...], Size(0, PROOF_HASHES_MAX)]
    """Inclusion proof of the leaf in the head of `note`."""
    rule: BrokenRule
    problem: Annotated[str, Size(1, ACCUSATION_CHARS_MAX)]
    """The refusal, in words."""

    def __post_init__(self) -> None:
        if self.leaf and compute_leaf_hash(self.leaf) != self.leaf_hash:
            raise RemoteError("leaf_hash", "is not the hash of the leaf")
        try:
            head = self.head
            verify_inclusion(self.leaf_hash, self.proof, index=self.index, size=head.size, root=head.root)
        except RemoteError as error:
            raise RemoteError("proof", f"does not show that the entry is in the log: {error}") from None

    @property
    def head(self) -> TreeHead:
        """As claimed: no signature is verified."""
        return TreeHead.parse(SignedNote.parse(self.note).text)


class AccusationProof(StrEnum):
    """How much of an accusation a receiver can verify without the rest of the log."""

    CONVICTS = "convicts"
    """The leaf breaks a rule by itself, and the log's key has signed a head that contains it."""
    UNKNOWN_AUTHOR = "unknown author"
    """As CONVICTS, unless an entry that the receiver does not know has rotated the coordinator's key."""
    CLAIM = "claim"
    """The entry is in the log. Whether it breaks a rule depends on the entries before it, or on a clock."""


def judge_accusation(accusation: Accusation, keys: KeyChain, *, known_size: int) -> AccusationProof:
    """RemoteError: the log's key did not sign the head, so the accusation is not about this log.

    `keys` are all keys of the first `known_size` entries.
    """
    keys.open_head(accusation.note)
    leaf, network = accusation.leaf, keys.network
    if not leaf or _is_sound(leaf, network, keys.get_coordinator(accusation.index)):
        return AccusationProof.CLAIM
    # A newer version may have entries that this one does not know.
    if read_leaf_version(leaf) > PROTOCOL_VERSION:
        return AccusationProof.CLAIM
    if accusation.index >= known_size and _is_sound(leaf, network, None):
        return AccusationProof.UNKNOWN_AUTHOR
    return AccusationProof.CONVICTS


def _is_sound(leaf: bytes, network: NetworkId, coordinator: NodeId | None) -> bool:
    """Whether a leaf keeps every rule that it could break by itself. None: its author may be the coordinator."""
    try:
        check_leaf_alone(leaf, network, coordinator=coordinator or open_leaf(leaf, network)[1].sender)
    except RemoteError:
        return False
    return True
