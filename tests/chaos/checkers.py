"""What must hold after everything, read from the log as a stranger reads it and from what nodes were told. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import decode_entry
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tree_head import TreeHead
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.typed_data import compute_receipt_id


@dataclass(slots=True)
class Told:
    """What the log says, counted by another way than the ledger's."""

    leases: dict[int, e.LeaseGranted] = field(default_factory=dict)
    submitted: dict[Digest, int] = field(default_factory=dict)
    """Lease of each submission."""
    settled: dict[Digest, list[Outcome]] = field(default_factory=dict)
    credited: Counter[Digest] = field(default_factory=Counter)
    slashed: dict[Digest, NodeId] = field(default_factory=dict)
    """Submissions for which a slash was proposed, and whose they are."""
    steps: list[int] = field(default_factory=list)
    """Of checkpoints, in order."""


def read(leaves: Iterable[bytes]) -> Told:
    told = Told()
    for leaf in leaves:
        _, letter = decode_leaf(leaf)
        take(told, decode_entry(letter))
    return told


def take(told: Told, entry: Any) -> None:
    match entry:
        case e.LeaseGranted(lease=lease):
            told.leases[lease] = entry
        case e.Submitted(receipt=receipt):
            told.submitted[compute_receipt_id(receipt)] = receipt.lease
        case e.AcceptedUnaudited(submissions=names):
            for name in names:
                told.settled.setdefault(name, []).append(Outcome.ACCEPT)
            told.credited.update(entry.list_credited())
        case e.Settled(settled=settled):
            for each in settled:
                told.settled.setdefault(each.submission, []).append(each.outcome)
            told.credited.update(entry.list_credited())
        case e.Credited(submission=name):
            told.credited[name] += 1
        case e.SlashProposed(submission=name):
            told.slashed[name] = told.leases[told.submitted[name]].node
        case e.CheckpointPublished(step=step):
            told.steps.append(int(step))


def list_faults(told: Told, acknowledged: Set[Digest], *, steps_min: int) -> Iterator[str]:
    """Everything that was lost, counted twice or punished without cause. Everybody was honest."""
    for name in sorted(acknowledged - told.submitted.keys()):
        yield f"submission {name} was acknowledged to its worker and is not in the log"
    for name in told.submitted:
        if len(told.settled.get(name, ())) != 1:
            yield f"submission {name} was settled {len(told.settled.get(name, ()))} times"
    for name, times in told.credited.items():
        if times != 1 or told.settled.get(name) != [Outcome.ACCEPT]:
            yield f"submission {name} was credited {times} times, settled {told.settled.get(name)}"
    yield from list_shared_slots(told)
    for name, node in told.slashed.items():
        yield f"the honest node {node} had a slash proposed for {name}"
    if told.steps != list(range(len(told.steps))):
        yield f"checkpoints were published as {told.steps}, not one after the other"
    if len(told.steps) < steps_min:
        yield f"training made {len(told.steps)} checkpoints, and should have made {steps_min}"


def list_shared_slots(told: Told) -> Iterator[str]:
    """No slot of a step is credited to two submissions."""
    owner: dict[tuple[int, int], Digest] = {}
    for name in told.credited:
        lease = told.leases[told.submitted[name]]
        for slot in range(lease.first_slot, lease.first_slot + lease.slots):
            other = owner.setdefault((int(lease.step), slot), name)
            if other != name:
                yield f"slot {slot} of step {lease.step} was credited for {other} and for {name}"


def list_forks(
    leaves: Sequence[bytes], heads: Iterable[bytes], open_head: Callable[[bytes], TreeHead]
) -> Iterator[str]:
    """Heads that somebody was shown and that are not of this history."""
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
    for note in heads:
        head = open_head(note)
        if head.size > len(leaves):
            yield f"a head over {head.size} entries was shown, and {len(leaves)} are left"
        elif head.root != compute_root(head.size, tree.get_node):
            yield f"a head over {head.size} entries was shown that is not of this log"


def list_missing(leaves: Sequence[bytes], kept: Iterable[Sequence[bytes]]) -> Iterator[str]:
    """After each restore the log begins with all that the mirror had, and says next that it was restored."""
    for part in kept:
        if list(leaves[: len(part)]) != list(part):
            yield f"the first {len(part)} entries are not those that the mirror had"
        elif decode_leaf(leaves[len(part)])[1].kind != e.LogRestored.__name__:
            yield f"entry {len(part)} does not say that the log was restored"
