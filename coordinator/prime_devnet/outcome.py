"""What a network's log says about who did what, read after the end by somebody who trusts nobody. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prime_protocol import entries as e
from prime_protocol.catalogue import read_letter
from prime_protocol.codec import decode
from prime_protocol.entries import Outcome
from prime_protocol.ids import Digest, NodeId
from prime_protocol.ledger import ENTRY_TYPES
from prime_protocol.looks import is_refuted
from prime_protocol.receipts import receipt_id


@dataclass(slots=True)
class Deeds:
    """What one node has done."""

    produced: int = 0
    """Rollouts."""
    settled: Counter[Outcome] = field(default_factory=Counter)
    """Rollouts by what became of them."""
    verdicts: int = 0
    inspected: int = 0
    """Verdicts whose looks an inspector compared."""
    refuted: int = 0
    """And found made up."""


@dataclass(frozen=True, slots=True)
class Slashed:
    """A slash that was executed."""

    node: NodeId
    submission: Digest
    amount_nano: int
    reason: str
    appealed: bool


@dataclass(slots=True)
class Story:
    """Everything that is counted."""

    deeds: dict[NodeId, Deeds] = field(default_factory=dict)
    makers: dict[Digest, NodeId] = field(default_factory=dict)
    """Who made which submission."""
    trained_on: set[Digest] = field(default_factory=set)
    manifests: list[Digest] = field(default_factory=list)
    """Of the checkpoints, in order."""
    slashed: list[Slashed] = field(default_factory=list)
    overturned: int = 0

    def trained_of(self, nodes: Iterable[NodeId]) -> int:
        """Submissions of these nodes that the model has learnt from."""
        wanted = set(nodes)
        return sum(self.makers[name] in wanted for name in self.trained_on)

    def slashed_of(self, nodes: Iterable[NodeId]) -> int:
        """How many of these nodes were slashed."""
        return len(set(nodes) & {each.node for each in self.slashed})


class Reader:
    """Reads a log from its first entry to its last."""

    def __init__(self, samples_per_slot: int) -> None:
        self.story = Story()
        self._samples = samples_per_slot
        self._leases: dict[int, int] = {}
        self._rows: dict[Digest, int] = {}
        self._reasons: dict[Digest, str] = {}
        self._proposed: dict[Digest, int] = {}
        self._appealed: set[Digest] = set()
        self._looks: dict[tuple[Digest, NodeId], bytes] = {}

    def read(self, leaf: bytes) -> None:
        _, letter = read_letter(leaf)
        self._take(letter.sender, decode(ENTRY_TYPES[letter.kind], letter.body))

    def _take(self, author: NodeId, entry: Any) -> None:
        story = self.story
        match entry:
            case e.LeaseGranted(lease=lease, slots=slots):
                self._leases[lease] = slots
            case e.Submitted(receipt=receipt):
                name, rows = receipt_id(receipt), self._leases[receipt.lease] * self._samples
                story.makers[name], self._rows[name] = author, rows
                story.deeds.setdefault(author, Deeds()).produced += rows
            case e.VerdictGiven(receipt=receipt, outcome=outcome, reason=reason, looks=looks):
                story.deeds.setdefault(author, Deeds()).verdicts += 1
                self._looks[receipt.submission, author] = looks
                if outcome is Outcome.HARD:
                    self._reasons.setdefault(receipt.submission, reason)
            case e.Inspected(submission=name, seen=seen):
                for each in seen:
                    deeds = story.deeds[each.reader]
                    deeds.inspected += 1
                    deeds.refuted += is_refuted(self._looks[name, each.reader], each.looks)
            case e.Settled(submission=name, outcome=outcome):
                story.deeds[story.makers[name]].settled[outcome] += self._rows[name]
            case e.CheckpointPublished(manifest=manifest, trained_on=trained_on):
                story.manifests.append(manifest)
                story.trained_on.update(trained_on)
            case e.SlashProposed(submission=name, amount_nano=amount_nano):
                self._proposed[name] = amount_nano
            case e.Appealed(submission=name):
                self._appealed.add(name)
            case e.SlashOverturned():
                story.overturned += 1
            case e.SlashExecuted(submission=name):
                reason = self._reasons.get(name, "")
                is_appealed = name in self._appealed
                story.slashed.append(Slashed(story.makers[name], name, self._proposed[name], reason, is_appealed))


def read_story(leaves: Iterable[bytes], samples_per_slot: int) -> Story:
    reader = Reader(samples_per_slot)
    for leaf in leaves:
        reader.read(leaf)
    return reader.story
