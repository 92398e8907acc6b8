"""The evidence of a slash in the form that the court takes: receipt, verdicts, the log's entry and its proof. Pure.

Values are tuples in the order of ICourt's structs.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from prime_protocol.ledger.entries import (
    OUTCOME_NUMBER,
    Appealed,
    Outcome,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
    Submitted,
    VerdictGiven,
)
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import decode_entry
from prime_protocol.log.merkle import MerkleProof
from prime_protocol.wire.ids import Digest, NodeId

END_ENTRIES = (SlashExecuted, SlashOverturned)
CASE_KINDS = tuple(kind.__name__ for kind in (Submitted, VerdictGiven, SlashProposed, Appealed, *END_ENTRIES))
AbiTuple = tuple[Any, ...]


@dataclass(slots=True)
class SlashCase:
    """Everything that the log says about one slash."""

    submission: Digest
    submitted: Submitted | None = None
    proposed: int = -1
    evidence: Digest | None = None
    verdicts: list[tuple[int, VerdictGiven]] = field(default_factory=list)
    appealed: int | None = None
    ended: int | None = None
    is_executed: bool = False

    def add_entry(self, index: int, leaf: bytes) -> None:
        """Add an entry of the submission; call in the order of the log."""
        _, payload = decode_leaf(leaf)
        entry: Any = decode_entry(payload)
        match entry:
            case Submitted():
                self.submitted = entry
            case VerdictGiven():
                self.verdicts.append((index, entry))
            case SlashProposed(evidence=evidence):
                self.proposed, self.evidence = index, evidence
            case Appealed():
                self.appealed = index
            case SlashExecuted() | SlashOverturned():
                self.ended, self.is_executed = index, isinstance(entry, SlashExecuted)
            case _:
                pass

    def accusing(self) -> list[VerdictGiven]:
        """The verdicts that the slash is based on; the one that names its evidence comes first."""
        fraudulent = [
            given for index, given in self.verdicts if index < self.proposed and given.outcome is Outcome.FRAUDULENT
        ]
        return sorted(fraudulent, key=lambda given: given.receipt.evidence != self.evidence)

    def deciding(self) -> list[VerdictGiven]:
        """The verdicts that decided the appeal."""
        if self.appealed is None or self.ended is None:
            return []
        later = [given for index, given in self.verdicts if self.appealed < index < self.ended]
        return [given for given in later if (given.outcome is Outcome.FRAUDULENT) is self.is_executed]


def choose_judges(
    given: Sequence[VerdictGiven], is_fit: Callable[[NodeId], bool], barred: Collection[NodeId], quorum: int
) -> list[VerdictGiven]:
    """A quorum of verdicts, sorted as the court requires; fewer if there are not enough."""
    fit = [each for each in given if each.receipt.validator not in barred and is_fit(each.receipt.validator)]
    return sorted(fit[:quorum], key=lambda each: each.receipt.validator)


def encode_receipt(submitted: Submitted) -> AbiTuple:
    receipt = submitted.receipt
    names = (receipt.checkpoint_root, receipt.file_digest, receipt.rollout_root)
    return (int(receipt.step), receipt.lease, receipt.node, *names, bytes(submitted.signature))


def encode_verdict(given: VerdictGiven) -> AbiTuple:
    outcome = OUTCOME_NUMBER[given.outcome]
    return (given.receipt.validator, outcome, given.receipt.evidence, bytes(given.signature))


def encode_logged_entry(
    leaf: bytes, index: int, size: int, proof: MerkleProof, submission: Digest, evidence: Digest | None
) -> AbiTuple:
    """A LoggedEntry: the leaf, the offset of the entry's last fields in it, and its inclusion proof."""
    _, payload = decode_leaf(leaf)
    name = b"\xaasubmission\xc4\x20" + submission
    sought = b"\x81" + name if evidence is None else b"\xa8evidence\xc4\x20" + evidence + name
    offset = leaf.find(sought)
    assert offset >= 0, "the entry is about this submission"
    times = (payload.issued_at_ms, payload.expires_at_ms)
    return (leaf, offset, *times, index, size, [bytes(each) for each in proof])
