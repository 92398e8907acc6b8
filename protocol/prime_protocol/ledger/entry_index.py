"""What an entry of the log can be found by: kind, author, run, and the things it speaks of. Pure.

The database keeps these beside each leaf. They follow from the leaf, so losing them loses nothing.
"""

from dataclasses import dataclass
from typing import Any

from prime_protocol.constants import LOG_ENTRY_BYTES_MAX, SIGNATURE_BYTES
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import FindingDismissed, FindingFiled, FindingUpheld, LogRecord
from prime_protocol.ledger.replay import decode_entry
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import NodeId, RunId
from prime_protocol.wire.typed_data import compute_receipt_id


@dataclass(frozen=True, slots=True)
class EntryKeys:
    """One entry's place in the listings."""

    at_ms: int
    kind: str
    author: NodeId
    run: RunId | None
    subjects: tuple[str, ...]
    """Addresses and digests as they print, leases as `lease <run> <number>`; each once, sorted."""


def decode_leaf(leaf: bytes) -> tuple[int, Payload]:
    """When a leaf of our own log was taken in, and what its author wrote. The signature is not checked again."""
    record = decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
    return record.at_ms, decode(Payload, record.frame[SIGNATURE_BYTES:])


def compute_entry_keys(leaf: bytes) -> EntryKeys:
    """From a leaf of our own log."""
    at_ms, payload = decode_leaf(leaf)
    entry = decode_entry(payload)
    subjects = tuple(sorted(set(list_subjects(payload.run, entry))))
    return EntryKeys(at_ms, payload.kind, payload.sender, find_run(payload.run, entry), subjects)


def find_run(run: RunId | None, entry: Any) -> RunId | None:
    """The run that an entry is about: its payload's, or the one whose pool has what came in."""
    return entry.run if isinstance(entry, e.Deposited) else run


def lease_subject(run: RunId | None, lease: int) -> str:
    return f"lease {run} {lease}"


def list_subjects(run: RunId | None, entry: Any) -> list[str]:
    """What an entry speaks of; the first is what it is about."""
    match entry:
        case e.Deposited(account=account, reference=reference):
            return [str(account), str(reference)]
        case e.Delegated(delegation=delegation):
            return [str(delegation.owner), str(delegation.node)]
        case e.Staked(node=node) | e.Unbonded(node=node) | e.Released(node=node):
            return [str(node)]
        case e.NodeStatusSet(node=node) | e.DelegationRevoked(node=node):
            return [str(node)]
        case e.SubmissionsListed(submissions=names):
            return [str(names[0])]  # the entry is found by it; 1,500 rows in each index would be too many
        case e.CheckpointPublished(root=root, manifest=manifest):
            return [str(root), str(manifest)]
        case e.LeaseGranted(lease=lease, node=node):
            return [lease_subject(run, lease), str(node)]
        case e.LeaseEnded(lease=lease):
            return [lease_subject(run, lease)]
        case e.Submitted(receipt=receipt):
            return [str(compute_receipt_id(receipt)), str(receipt.file_digest), lease_subject(run, receipt.lease)]
        case e.AuditDrawn(submission=submission, validators=validators):
            return [str(submission), *map(str, validators)]
        case e.VerdictCommitted(submission=name):
            return [str(name)]
        case e.VerdictGiven(receipt=receipt):
            return [str(receipt.submission), str(receipt.evidence)]
        case e.ValidatorScored(submission=submission, validator=validator):
            return [str(submission), str(validator)]
        case e.Inspected(submission=submission, seen=seen):
            return [str(submission), *(str(each.reader) for each in seen)]
        case e.RulingGiven(submission=submission, evidence=evidence):
            return [str(submission), str(evidence)]
        case e.AcceptedUnaudited(submissions=names):
            return [str(name) for name in names]
        case e.Settled(settled=settled):
            return [str(each.submission) for each in settled]
        case e.Credited(submission=name) | e.SlashProposed(submission=name):
            return [str(name)]
        case e.Appealed(submission=name) | e.SlashExecuted(submission=name) | e.SlashOverturned(submission=name):
            return [str(name)]
        case FindingFiled(submission=name, evidence=evidence):
            return [str(name), str(evidence)]
        case FindingUpheld(submission=name) | FindingDismissed(submission=name):
            return [str(name)]
        case _:
            return []
