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
from prime_protocol.ledger.replay import check_leaf_alone, read_leaf_version
from prime_protocol.log.merkle import compute_leaf_hash, verify_inclusion
from prime_protocol.log.tree_head import SignedNote, TreeHead, VerifierKey, open_tree_head
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
    CLAIM = "claim"
    """The entry is in the log. Whether it breaks a rule depends on the entries before it, or on a clock."""


def judge_accusation(
    accusation: Accusation, *, log_key: VerifierKey, network: NetworkId, coordinator: NodeId
) -> AccusationProof:
    """RemoteError: the log's key did not sign the head, so the accusation is not about this log."""
    open_tree_head(accusation.note, [log_key])
    if not accusation.leaf:
        return AccusationProof.CLAIM
    try:
        check_leaf_alone(accusation.leaf, network, coordinator=coordinator)
    except RemoteError:
        # A newer version may have entries that this one does not know.
        is_newer = read_leaf_version(accusation.leaf) > PROTOCOL_VERSION
        return AccusationProof.CLAIM if is_newer else AccusationProof.CONVICTS
    return AccusationProof.CLAIM
