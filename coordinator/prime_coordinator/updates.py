"""What each worker has yet to hear about its submissions, and what each trainer may train on. Pure.

Every entry passes through `record`, so a reply costs what is new, not what is in the log. After a restart the ledger
gives the present stage of every submission that it still has; nodes and trainers hear those again, which is harmless.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice

from prime_coordinator.constants import UPDATES_KEPT_MAX
from prime_protocol.constants import ACCEPTED_LISTED_MAX, RESTORE_GAP, UPDATES_LISTED_MAX
from prime_protocol.ledger.entries import (
    AcceptedUnaudited,
    Appealed,
    CheckpointPublished,
    Credited,
    Entry,
    FindingDismissed,
    FindingFiled,
    FindingUpheld,
    Outcome,
    Settled,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
    SubmissionsListed,
    Submitted,
    VerdictGiven,
)
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.state import RunState, SubmissionState
from prime_protocol.ledger.terms import TrainOn
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.messages import AcceptedSubmission, SubmissionStage, SubmissionUpdate
from prime_protocol.wire.typed_data import SubmissionReceipt, compute_receipt_id

NUMBERS_PER_ENTRY = 2**20
"""Numbers between those of two entries. One payout ends fewer submissions, and fewer wait for the trainer."""

NO_QUORUM = "no quorum of validators accepted it"
FINAL = (SubmissionStage.CREDITED, SubmissionStage.INVALID, SubmissionStage.SLASHED)
"""After these stages the reason of a rejection is not told again."""


def get_stage(run: RunState, name: Digest) -> SubmissionStage:
    """The stage of a submission that the ledger still has."""
    submission = run.submissions[name]
    match submission.outcome:
        case None:
            is_checked = any(each.verdicts for each in submission.rounds)
            return SubmissionStage.CHECKED if is_checked else SubmissionStage.RECEIVED
        case Outcome.ACCEPT if not submission.credited:
            return SubmissionStage.ACCEPTED
        case Outcome.ACCEPT:
            return SubmissionStage.PAID if run.steps[submission.step].paid else SubmissionStage.CREDITED
        case Outcome.INVALID:
            return SubmissionStage.INVALID
        case Outcome.FRAUDULENT:
            has_ended = submission.slashed and name not in run.slashes
            return SubmissionStage.SLASHED if has_ended else SubmissionStage.FRAUDULENT


class SubmissionUpdates:
    """The updates of one coordinator."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Half a step above the number of any update that an earlier process made from the same entries. A number names
        # an update of one node, so those of different nodes may have the same.
        self._recovered_number = self._compute_first_number() + NUMBERS_PER_ENTRY // 2
        self._number = self._recovered_number + UPDATES_KEPT_MAX
        self._unread: dict[tuple[RunId, NodeId], dict[Digest, SubmissionUpdate]] = {}
        """By number. Only the newest update about a submission is kept."""
        self._reasons: dict[Digest, str] = {}
        """The first rejection of each submission that has not ended."""
        self._accepted: dict[RunId, dict[Digest, int]] = {}
        """Credited submissions that no checkpoint was trained on, with their numbers."""
        self._recovered: dict[tuple[RunId, NodeId], list[Digest]] = {}
        """The newest submissions that the start found in the state. The updates of a node are made when they are first
        needed: a state has up to a million submissions, and a start should not wait for that."""
        for name in ledger.state.runs:
            self._recover(name)

    def _recover(self, name: RunId) -> None:
        run, found = self._ledger.state.runs[name], defaultdict[NodeId, list[Digest]](list)
        for submission, node in run.submissions.iter_labels():
            found[node].append(submission)
        for node, names in found.items():
            self._recovered[(name, node)] = names[-UPDATES_KEPT_MAX:]
        for submission, known in run.list_recent():
            if known.credited and self._is_open(name, submission):
                self._add_credited(name, submission)

    def record(self, entry: Entry, run: RunId | None) -> None:
        """The ledger has applied this entry."""
        if run is None:
            return
        match entry:
            case Submitted(receipt=receipt):
                self._update(run, compute_receipt_id(receipt))
            case VerdictGiven(receipt=verdict):
                self._record_reason(entry)
                self._update(run, verdict.submission)
            case AcceptedUnaudited(submissions=names):
                self._record_settled(run, names, entry.list_credited())
            case Settled(settled=settled):
                self._record_settled(run, [each.submission for each in settled], entry.list_credited())
            case (
                SlashProposed(submission=name)
                | Appealed(submission=name)
                | SlashExecuted(submission=name)
                | SlashOverturned(submission=name)
            ):
                self._update(run, name)
            case FindingFiled(submission=name) | FindingUpheld(submission=name):
                self._update(run, name)
            case Credited(submission=name) | FindingDismissed(submission=name):
                # A dismissed finding makes an audited submission of one that was not drawn.
                self._update(run, name)
                self._add_credited(run, name)
            case CheckpointPublished() | SubmissionsListed():
                self._accepted[run] = {
                    name: number for name, number in self._accepted.get(run, {}).items() if self._is_open(run, name)
                }

    def _record_settled(self, run: RunId, names: Iterable[Digest], credited: Iterable[Digest]) -> None:
        """Submissions that share an entry are settled, and some of them credited."""
        for name in names:
            self._update(run, name)
        for name in credited:
            self._add_credited(run, name)

    def record_payout(self, run: RunId, submissions: dict[Digest, SubmissionState]) -> None:
        """The step of these submissions was paid."""
        for name, submission in submissions.items():
            if submission.credited:
                self._make_recovered(run, submission.node)
                paid = SubmissionUpdate(
                    number=self._next_number(),
                    submission=name,
                    stage=SubmissionStage.PAID,
                    reason="",
                    appeal_until_ms=0,
                )
                self._add_update(run, submission.node, paid)

    def take_updates(self, run: RunId, node: NodeId, seen: int) -> tuple[SubmissionUpdate, ...]:
        """The oldest updates after `seen`. The node has those up to it, so they are dropped."""
        self._make_recovered(run, node)
        unread = self._unread.get((run, node))
        if not unread:
            return ()
        for name in [name for name, update in unread.items() if update.number <= seen]:
            del unread[name]
        if not unread:
            del self._unread[(run, node)]
        return tuple(islice(unread.values(), UPDATES_LISTED_MAX))

    def list_accepted(self, run: RunId, after: int) -> tuple[AcceptedSubmission, ...]:
        """The oldest submissions that may be trained on and came after this number."""
        new: list[tuple[Digest, int]] = []
        for name, number in reversed(self._accepted.get(run, {}).items()):
            if number <= after:
                break
            new.append((name, number))
        return tuple(islice(self._make_accepted(run, new[::-1]), ACCEPTED_LISTED_MAX))

    def _make_accepted(self, run: RunId, found: list[tuple[Digest, int]]) -> Iterator[AcceptedSubmission]:
        state = self._ledger.state.runs[run]
        for name, number in found:
            if not self._is_open(run, name):
                continue
            submission = state.submissions[name]
            receipt = SubmissionReceipt(
                network=self._ledger.network,
                run=run,
                step=submission.step,
                lease=submission.lease,
                node=submission.node,
                checkpoint_root=state.checkpoints[submission.checkpoint_step].root,
                file_digest=submission.file_digest,
                rollout_root=submission.rollout_root,
            )
            slots = submission.slots
            yield AcceptedSubmission(number=number, receipt=receipt, first_slot=slots.start, slots=len(slots))

    def _is_open(self, run: RunId, name: Digest) -> bool:
        """Whether the next checkpoint can be trained on it: the ledger drops submissions whose step is over."""
        state = self._ledger.state.runs[run]
        submission = state.submissions.get(name)
        if submission is None or submission.outcome is not Outcome.ACCEPT or submission.trained_into is not None:
            return False
        is_enough = submission.judged is Outcome.ACCEPT or state.terms.train_on is TrainOn.ACCEPTED
        return is_enough and state.latest - submission.checkpoint_step <= state.terms.lag_max

    def _add_credited(self, run: RunId, name: Digest) -> None:
        submission = self._ledger.state.runs[run].submissions[name]
        if submission.trained_into is None:
            self._accepted.setdefault(run, {})[name] = self._next_number()

    def _record_reason(self, verdict: VerdictGiven) -> None:
        if verdict.outcome is not Outcome.ACCEPT:
            reason = verdict.reason or "no reason was given"
            text = f"{verdict.outcome}: {reason}; evidence {verdict.receipt.evidence}"
            self._reasons.setdefault(verdict.receipt.submission, text)

    def _make_recovered(self, run: RunId, node: NodeId) -> None:
        """Make the updates of the submissions that the start found, if that is not done yet."""
        recovered = self._recovered.pop((run, node), None)
        if recovered is None:
            return
        known = self._ledger.state.runs[run].submissions
        known.unpack(name for name in recovered if name in known)
        self._unread[(run, node)] = {
            name: self._make_update(run, name, number)
            for number, name in enumerate(recovered, self._recovered_number + 1)
            if name in known
        }

    def _update(self, run: RunId, name: Digest) -> None:
        node = self._ledger.state.runs[run].submissions[name].node
        self._make_recovered(run, node)
        self._add_update(run, node, self._make_update(run, name, self._next_number()))

    def _make_update(self, run: RunId, name: Digest, number: int) -> SubmissionUpdate:
        state = self._ledger.state.runs[run]
        stage, slash = get_stage(state, name), state.slashes.get(name)
        reason = ""
        if stage in (SubmissionStage.INVALID, SubmissionStage.FRAUDULENT, SubmissionStage.SLASHED):
            is_undecided = state.submissions[name].judged is None
            reason = self._reasons.get(name) or (NO_QUORUM if is_undecided else "")
        if stage in FINAL:
            self._reasons.pop(name, None)
        until_ms = slash.appeal_until_ms if slash is not None and slash.appealed_at_ms is None else 0
        return SubmissionUpdate(number=number, submission=name, stage=stage, reason=reason, appeal_until_ms=until_ms)

    def _add_update(self, run: RunId, node: NodeId, update: SubmissionUpdate) -> None:
        unread = self._unread.setdefault((run, node), {})
        unread.pop(update.submission, None)
        unread[update.submission] = update
        if len(unread) > UPDATES_KEPT_MAX:
            del unread[next(iter(unread))]

    def _next_number(self) -> int:
        self._number = max(self._number + 1, self._compute_first_number())
        return self._number

    def _compute_first_number(self) -> int:
        """Of the next entry. After a restore it is above the numbers of all entries that may have been lost."""
        state = self._ledger.state
        return (state.size + state.restores * RESTORE_GAP) * NUMBERS_PER_ENTRY
