"""What a checkpoint was trained on: a list of submissions of any length, and its Merkle root. Pure.

The list is in rising order of the submissions' names. Its root is that of a Merkle tree as in RFC 6962 (log/merkle.py)
with the names as entries, so that a proof of a few hundred bytes shows that a submission went into a checkpoint.
`SubmissionsListed` entries hold the first parts of a long list, and `CheckpointPublished` holds the rest, the root and
the length. Under rules 1 a list has at most LINEAGE_MAX names, in any order, and `CheckpointPublished` holds all of
them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prime_protocol.constants import LINEAGE_MAX
from prime_protocol.ledger.entries import CheckpointPublished, SubmissionsListed
from prime_protocol.log.merkle import Frontier, compute_leaf_hash
from prime_protocol.wire.ids import Digest, Step

LISTED_LINEAGE = 2
"""The rules from which on a checkpoint has the root of its list, and a list may be longer than one entry."""


@dataclass(slots=True)
class OpenLineage:
    """The parts of a list whose checkpoint is not in the log yet."""

    begun_ms: int
    submissions: list[Digest] = field(default_factory=list)
    frontier: Frontier = field(default_factory=Frontier)


def compute_lineage_root(submissions: Iterable[Digest]) -> Digest:
    """Of a list in rising order."""
    return extend_lineage(Frontier(), submissions).root()


def extend_lineage(frontier: Frontier, submissions: Iterable[Digest]) -> Frontier:
    return frontier.append_many(map(compute_leaf_hash, submissions))


def find_disorder(submissions: Sequence[Digest], last: Digest | None) -> int | None:
    """Place of the first name that is not above the one before it; `last` comes before the first."""
    for place, name in enumerate(submissions):
        if last is not None and name <= last:
            return place
        last = name
    return None


def make_checkpoint_entries(
    submissions: Iterable[Digest], *, step: Step, root: Digest, manifest: Digest
) -> tuple[tuple[SubmissionsListed, ...], CheckpointPublished]:
    """The parts of the list that are written ahead, and the entry of the checkpoint that was trained on it."""
    names = sorted(submissions)
    ahead = max(0, len(names) - 1) // LINEAGE_MAX * LINEAGE_MAX
    parts = tuple(
        SubmissionsListed(step=step, first=first, submissions=tuple(names[first : first + LINEAGE_MAX]))
        for first in range(0, ahead, LINEAGE_MAX)
    )
    checkpoint = CheckpointPublished(
        step=step,
        root=root,
        manifest=manifest,
        trained_on=tuple(names[ahead:]),
        trained_on_root=compute_lineage_root(names),
        trained_on_count=len(names),
    )
    return parts, checkpoint
