"""When files become due for deletion. Pure: entries in, changes of the file table out.

A file that an entry names is *held* by the step that the entry is about. It has no due time while any step holds it.
A step lets go of its files when the ledger forgets it: it is paid, no slash or finding about it is open, and it is too
old to train on. In a closed run, which trains no more, the last of these is not waited for. So no rule of the ledger
can ask for a file that has a due time: its submission is not in the state any more, and no entry about it is accepted.

The due time is what the step's terms say, counted from the settlement of its last submission. Files about a slash are
counted from the end of the step instead, and are kept longest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from prime_coordinator.retention.object_names import FileKind
from prime_protocol.ledger.entries import (
    CheckpointPublished,
    FindingDismissed,
    FindingFiled,
    PaidOut,
    RulingGiven,
    RunStatus,
    RunStatusSet,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
    Submitted,
    VerdictGiven,
)
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.state import RunState, StepState
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import Digest, RunId, Step
from prime_protocol.wire.typed_data import compute_receipt_id

NO_SUBMISSION = ""
"""Of a file that is about a step as a whole: a manifest."""


class FileReason(StrEnum):
    """Why a file is kept, and so which term says how long."""

    UNCLAIMED = "unclaimed"
    """Uploaded, and no entry names it yet."""
    ROLLOUTS = "rollouts"
    EVIDENCE = "evidence"
    MANIFESTS = "manifests"
    SLASHES = "slashes"
    """Evidence and rollout files of submissions that were slashed."""


REASON_OF_KIND = {
    FileKind.ROLLOUTS: FileReason.ROLLOUTS,
    FileKind.EVIDENCE: FileReason.EVIDENCE,
    FileKind.MANIFESTS: FileReason.MANIFESTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileClaimed:
    """An entry names a file: the step holds it."""

    size: int
    """Entries of the log with the one that did it; the change is written together with that entry."""
    run: RunId
    step: Step
    digest: Digest
    submission: str = NO_SUBMISSION
    """The one that the file is about, as it prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReleased:
    """A step holds its files no longer; each is kept until one of these times."""

    size: int
    run: RunId
    step: Step
    until_ms: dict[FileReason, int]
    slashed: tuple[str, ...]
    """Submissions that were slashed, as they print. Their files are kept as SLASHES."""


FileChange = FileClaimed | StepReleased


def compute_until_ms(terms: RunTerms, *, settled_ms: int, released_ms: int) -> dict[FileReason, int]:
    """Until when the files of a step are kept."""
    return {
        FileReason.ROLLOUTS: max(settled_ms + terms.rollouts_kept_ms, released_ms),
        FileReason.EVIDENCE: max(settled_ms + terms.evidence_kept_ms, released_ms),
        FileReason.MANIFESTS: max(settled_ms + terms.checkpoints_kept_ms, released_ms),
        FileReason.SLASHES: released_ms + terms.slash_evidence_kept_ms,
    }


def find_claimed(entry: object) -> tuple[Digest | None, Digest] | None:
    """The submission that an entry is about, and the file that it names; None for the others."""
    match entry:
        case Submitted(receipt=receipt):
            return compute_receipt_id(receipt), receipt.file_digest
        case VerdictGiven(receipt=verdict):
            return verdict.submission, verdict.evidence
        case RulingGiven(submission=name, evidence=evidence) | FindingFiled(submission=name, evidence=evidence):
            return name, evidence
        case CheckpointPublished(manifest=manifest):
            return None, manifest
        case _:
            return None


RELEASING = (CheckpointPublished, FindingDismissed, PaidOut, RunStatusSet, SlashExecuted, SlashOverturned)
"""Entries after which a step may be one that nothing can be decided about."""


@dataclass(slots=True)
class HeldStep:
    """A step that still holds files."""

    state: StepState | None = None
    """The ledger's, kept when the ledger forgets it; None while the step has no lease."""
    slashed: dict[Digest, None] = field(default_factory=dict)


class RetentionSchedule:
    """The steps that hold files, and the changes that are not on disk yet."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: dict[RunId, dict[Step, HeldStep]] = {}
        self._changes: list[FileChange] = []
        for name, run in ledger.state.runs.items():
            for number in run.steps.keys() | {step for step in run.checkpoints if step >= run.oldest}:
                self._hold(name, number)
            for submission, known in run.submissions.list_unpacked():
                if known.slashed:  # so it is open, and was not packed
                    self._held[name][known.step].slashed[submission] = None
            self._release_ended(name)
        self._changes.clear()  # the table had them when their entries were written

    def record(self, entry: object, run: RunId | None) -> None:
        """The ledger has applied this entry."""
        if run is None:
            return
        claimed = find_claimed(entry)
        if claimed is not None:
            self._claim(run, *claimed, entry)
        elif isinstance(entry, SlashProposed):
            step = self._ledger.state.runs[run].submissions[entry.submission].step
            self._hold(run, step).slashed[entry.submission] = None
        if isinstance(entry, RELEASING):
            self._release_ended(run)

    def drain(self) -> list[FileChange]:
        """The changes since the last call, oldest first; they are written together with their entries."""
        changes, self._changes = self._changes, []
        return changes

    def is_held(self, run: RunId, step: Step) -> bool:
        return step in self._held.get(run, {})

    def release_forgotten(self, run: RunId, step: Step, now_ms: int) -> StepReleased:
        """Of a step that holds files in the table and that the ledger does not have: the table was rebuilt."""
        assert not self.is_held(run, step)
        terms = self._ledger.state.runs[run].terms
        until_ms = compute_until_ms(terms, settled_ms=now_ms, released_ms=now_ms)
        return StepReleased(size=self._ledger.state.size, run=run, step=step, until_ms=until_ms, slashed=())

    def _claim(self, run: RunId, submission: Digest | None, digest: Digest, entry: object) -> None:
        state = self._ledger.state.runs[run]
        if submission is None:
            assert isinstance(entry, CheckpointPublished)
            step, name = entry.step, NO_SUBMISSION
        else:
            step, name = state.submissions[submission].step, str(submission)
        self._hold(run, step)
        size = self._ledger.state.size
        self._changes.append(FileClaimed(size=size, run=run, step=step, digest=digest, submission=name))

    def _hold(self, run: RunId, step: Step) -> HeldStep:
        held = self._held.setdefault(run, {}).setdefault(step, HeldStep())
        held.state = held.state or self._ledger.state.runs[run].steps.get(step)
        return held

    def _release_ended(self, name: RunId) -> None:
        run, now_ms = self._ledger.state.runs[name], self._ledger.state.at_ms
        held = self._held.get(name, {})
        for number in list(_list_ended(run, held)):
            ended = held.pop(number)
            terms = ended.state.terms if ended.state else run.terms
            settled_ms = ended.state.settled_ms if ended.state else now_ms
            self._changes.append(
                StepReleased(
                    size=self._ledger.state.size,
                    run=name,
                    step=number,
                    until_ms=compute_until_ms(terms, settled_ms=settled_ms or now_ms, released_ms=now_ms),
                    slashed=tuple(map(str, ended.slashed)),
                )
            )


def _list_ended(run: RunState, held: dict[Step, HeldStep]) -> Iterator[Step]:
    """Held steps about which nothing can be decided any more."""
    is_closed = run.status is RunStatus.CLOSED
    for number, each in held.items():
        step = run.steps.get(number)
        each.state = step or each.state
        if step is None:
            if number < run.oldest or is_closed:
                yield number
        elif is_closed and step.paid and (run.slashes.keys() | run.findings).isdisjoint(step.submissions):
            yield number
