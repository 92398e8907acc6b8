"""Rows from the entries of the log: what has ended, and the entries themselves. Pure: the caller reads the leaves.

A history is every entry that refers to one submission, oldest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prime_coordinator.api import schemas
from prime_coordinator.api.schemas import SlashProgress, SubmissionProgress
from prime_protocol.ledger.entries import (
    Appealed,
    AuditDrawn,
    CheckpointPublished,
    Credited,
    Entry,
    Inspected,
    Outcome,
    Settled,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
    Submitted,
    VerdictGiven,
)
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import ENTRY_TYPES
from prime_protocol.ledger.state import LedgerState, RunState
from prime_protocol.log.merkle import compute_leaf_hash
from prime_protocol.proofs.read_proofs import is_read_proof_refuted
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.typed_data import compute_receipt_id

PROGRESS_BY_OUTCOME = {
    Outcome.ACCEPT: SubmissionProgress.ACCEPTED,
    Outcome.INVALID: SubmissionProgress.INVALID,
    Outcome.FRAUDULENT: SubmissionProgress.FRAUDULENT,
}
SLASH_KINDS = ("SlashProposed", "Appealed", "SlashExecuted", "SlashOverturned")


@dataclass(frozen=True, slots=True)
class OpenedEntry:
    """A decoded leaf of our own log."""

    index: int
    at_ms: int
    payload: Payload
    entry: Entry
    leaf: bytes

    @property
    def position(self) -> dict[str, Any]:
        """The fields of a LoggedRow."""
        return {"index": self.index, "at_ms": self.at_ms, "run": self.run}

    @property
    def run(self) -> RunId:
        assert self.payload.run is not None, f"{self.payload.kind} is about the network"
        return self.payload.run


SubmissionHistory = Sequence[OpenedEntry]


def open_leaf(index: int, leaf: bytes) -> OpenedEntry:
    at_ms, payload = decode_leaf(leaf)
    return OpenedEntry(index, at_ms, payload, decode(ENTRY_TYPES[payload.kind], payload.body), leaf)


def entry_row(opened: OpenedEntry) -> schemas.EntryRow:
    return schemas.EntryRow(
        index=opened.index,
        at_ms=opened.at_ms,
        kind=opened.payload.kind,
        author=str(opened.payload.sender),
        run=opened.payload.run,
        body=schemas.to_json_value(opened.entry),
        leaf_hash=str(compute_leaf_hash(opened.leaf)),
    )


def checkpoint_row(state: LedgerState, opened: OpenedEntry) -> schemas.CheckpointRow:
    entry = opened.entry
    assert isinstance(entry, CheckpointPublished)
    beacon = state.runs[opened.run].checkpoints[entry.step].beacon
    return schemas.CheckpointRow(
        **opened.position,
        step=entry.step,
        root=str(entry.root),
        manifest=str(entry.manifest),
        beacon=str(beacon) if beacon else None,
        trained_on=len(entry.trained_on),
    )


def verdict_row(opened: OpenedEntry) -> schemas.VerdictRow:
    entry = opened.entry
    assert isinstance(entry, VerdictGiven)
    return schemas.VerdictRow(
        **opened.position,
        submission=str(entry.receipt.submission),
        validator=str(entry.receipt.validator),
        outcome=str(entry.outcome),
        reason=entry.reason,
        evidence=str(entry.receipt.evidence),
        metrics={metric.name: metric.value for metric in entry.metrics},
    )


# --- Slashes --------------------------------------------------------------------------------------------------------


def slash_progress(history: SubmissionHistory) -> SlashProgress | None:
    """State of the slash of a submission; None if none was proposed."""
    steps: dict[type, SlashProgress] = {
        SlashProposed: SlashProgress.PROPOSED,
        Appealed: SlashProgress.APPEALED,
        SlashExecuted: SlashProgress.EXECUTED,
        SlashOverturned: SlashProgress.OVERTURNED,
    }
    passed = [steps[type(each.entry)] for each in history if type(each.entry) in steps]
    return passed[-1] if passed else None


def slash_row(state: LedgerState, history: SubmissionHistory) -> schemas.SlashRow:
    """From the history of a submission whose slash was proposed."""
    (opened,) = (each for each in history if isinstance(each.entry, SlashProposed))
    assert isinstance(opened.entry, SlashProposed)
    slash = state.runs[opened.run].slashes.get(opened.entry.submission)
    ends = [each.index for each in history if isinstance(each.entry, SlashExecuted | SlashOverturned)]
    authors = [str(each.entry.receipt.node) for each in history if isinstance(each.entry, Submitted)]
    progress = slash_progress(history)
    assert progress is not None
    return schemas.SlashRow(
        **opened.position,
        submission=str(opened.entry.submission),
        node=authors[0],
        amount_nano=opened.entry.amount_nano,
        evidence=str(opened.entry.evidence),
        progress=progress,
        appeal_until_ms=slash.appeal_until_ms if slash else None,
        ended_index=ends[0] if ends else None,
    )


def appeal_row(history: SubmissionHistory) -> schemas.AppealRow:
    """From the history of a submission whose slash was appealed."""
    (opened,) = (each for each in history if isinstance(each.entry, Appealed))
    assert isinstance(opened.entry, Appealed)
    progress = slash_progress(history)
    assert progress is not None
    return schemas.AppealRow(
        **opened.position,
        submission=str(opened.entry.submission),
        author=str(opened.payload.sender),
        reason=opened.entry.reason,
        progress=progress,
    )


# --- Submissions that the state has dropped -------------------------------------------------------------------------


def ended_submission_detail(run: RunState, history: SubmissionHistory) -> schemas.SubmissionDetail:
    """From the history of a submission whose step is over."""
    opened = history[0]
    assert isinstance(opened.entry, Submitted), "a submission's history begins with its own entry"
    entry, receipt = opened.entry, opened.entry.receipt
    rounds = _rounds(history)
    summary = schemas.SubmissionRow(
        **opened.position,
        submission=str(compute_receipt_id(receipt)),
        step=receipt.step,
        node=str(receipt.node),
        owner=None,
        progress=_progress(history),
        lease=receipt.lease,
        first_slot=None,
        slots=None,
        output_tokens=entry.output_tokens,
        verdicts=sum(len(each.verdicts) for each in rounds),
        validators=sum(len(each.validators) for each in rounds),
        credited=any(isinstance(each.entry, Credited) for each in history),
        trained_into=None,
    )
    evidence = [each.entry.receipt.evidence for each in history if _is_fraudulent(each)]  # type: ignore[union-attr]
    return schemas.SubmissionDetail(
        summary=summary,
        file_digest=str(receipt.file_digest),
        checkpoint_step=_checkpoint_step(run, receipt.checkpoint_root),
        context_tokens=entry.context_tokens,
        rounds=tuple(rounds),
        evidence=tuple(dict.fromkeys(map(str, evidence))),
        refuted=tuple(map(str, sorted(_refuted(history)))),
        slash=slash_progress(history),
    )


def _refuted(history: SubmissionHistory) -> set[NodeId]:
    """Validators whose read proof differs from the inspector's."""
    said = {
        each.entry.receipt.validator: each.entry.read_proof for each in history if isinstance(each.entry, VerdictGiven)
    }
    seen = [seen for each in history if isinstance(each.entry, Inspected) for seen in each.entry.seen]
    return {each.reader for each in seen if is_read_proof_refuted(said[each.reader], each.read_proof)}


def _is_fraudulent(opened: OpenedEntry) -> bool:
    return isinstance(opened.entry, VerdictGiven) and opened.entry.outcome is Outcome.FRAUDULENT


def _checkpoint_step(run: RunState, root: Digest) -> int:
    return next(step for step, checkpoint in run.checkpoints.items() if checkpoint.root == root)


def _progress(history: SubmissionHistory) -> SubmissionProgress:
    if any(isinstance(each.entry, SlashOverturned) for each in history):
        return (
            SubmissionProgress.ACCEPTED
            if any(isinstance(each.entry, Credited) for each in history)
            else SubmissionProgress.INVALID
        )
    for each in history:
        if isinstance(each.entry, Settled):
            return PROGRESS_BY_OUTCOME[each.entry.outcome]
    drawn = any(isinstance(each.entry, AuditDrawn) for each in history)
    return SubmissionProgress.AUDITING if drawn else SubmissionProgress.WAITING


def _rounds(history: SubmissionHistory) -> list[schemas.RoundRow]:
    found = {
        str(each.entry.receipt.validator): str(each.entry.outcome)
        for each in history
        if isinstance(each.entry, VerdictGiven)
    }
    rounds = []
    for each in history:
        if isinstance(each.entry, AuditDrawn):
            drawn = tuple(map(str, each.entry.validators))
            said = {node: found[node] for node in drawn if node in found}
            rounds.append(schemas.RoundRow(drawn_at_ms=each.at_ms, seed=None, validators=drawn, verdicts=said))
    return rounds
