"""The evidence of slashes and penalties as the court takes it: receipt, verdicts, the log's entry and its proof. Pure.

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
    ValidatorScored,
    VerdictGiven,
)
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import decode_entry
from prime_protocol.log.merkle import MerkleProof
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.chain.abi import compute_penalty_name

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
    bounty_to: NodeId | None = None

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
                self.bounty_to = entry.bounty_to if isinstance(entry, SlashExecuted) else None
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

    def end_bytes(self) -> bytes:
        """What the entry that ended it begins with, in its leaf."""
        return b"\x82\xa9bounty_to" if self.is_executed else b"\x81" + encode_submission(self.submission)

    def proposal_bytes(self) -> bytes:
        """Where the compared part of the proposal begins: the court does not read its amount."""
        assert self.evidence is not None
        return b"\xa8evidence\xc4\x20" + self.evidence + encode_submission(self.submission)


OPPOSITE = {Outcome.ACCEPT: Outcome.FRAUDULENT, Outcome.FRAUDULENT: Outcome.ACCEPT}
SCORE_BYTES = b"\x83\xacpenalty_nano"
"""What a ValidatorScored entry begins with, in its leaf."""


@dataclass(frozen=True, slots=True)
class PenaltyCase:
    """A penalty in the log, the refuted verdict, and those that refute it."""

    index: int
    entry: ValidatorScored
    verdict: VerdictGiven
    opposing: tuple[VerdictGiven, ...]

    @property
    def name(self) -> Digest:
        return compute_penalty_name(self.entry.submission, self.entry.validator)


def make_penalty_case(index: int, entry: ValidatorScored, verdicts: Sequence[VerdictGiven]) -> PenaltyCase:
    """From all verdicts on the submission."""
    own = next(given for given in verdicts if given.receipt.validator == entry.validator)
    opposite = OPPOSITE.get(own.outcome)
    return PenaltyCase(index, entry, own, tuple(given for given in verdicts if given.outcome is opposite))


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


def encode_submission(submission: Digest) -> bytes:
    """The field of an entry that names the submission."""
    return b"\xaasubmission\xc4\x20" + submission


def encode_logged_entry(leaf: bytes, index: int, size: int, proof: MerkleProof, begins: bytes) -> AbiTuple:
    """A LoggedEntry: the leaf, the offset of the bytes that the court compares, and its inclusion proof."""
    _, payload = decode_leaf(leaf)
    offset = leaf.find(begins)
    assert offset >= 0, "the entry is about this submission"
    times = (payload.issued_at_ms, payload.expires_at_ms)
    return (leaf, offset, *times, index, size, [bytes(each) for each in proof])
