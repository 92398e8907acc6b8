"""A submission with everything that one decision about it needs, and the proposal and end of its slash. Pure.

The ledger has the rules; this module finds the next entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prime_coordinator.entry_writer import EntryWriter
from prime_protocol.ledger.audits import compute_verdict_ms, get_open_rounds, tally_outcome
from prime_protocol.ledger.entries import (
    FindingDismissed,
    FindingUpheld,
    Outcome,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
)
from prime_protocol.ledger.findings import get_bounty_account
from prime_protocol.ledger.state import (
    AuditRoundState,
    FindingState,
    LedgerState,
    RunState,
    SlashState,
    SubmissionState,
)
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.proofs.read_proofs import ReadCoverage
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.messages import AuditTask

SubmissionKey = tuple[RunId, Digest]
"""A submission of a run."""


@dataclass(frozen=True, slots=True)
class AuditCase:
    """One submission of a run."""

    run_name: RunId
    run: RunState
    name: Digest
    submission: SubmissionState

    @classmethod
    def of(cls, state: LedgerState, run: RunId, name: Digest) -> "AuditCase":
        return cls(run, state.runs[run], name, state.runs[run].submissions[name])

    @property
    def terms(self) -> RunTerms:
        return self.run.get_terms(self.submission)

    @property
    def verdict_ms(self) -> int:
        return compute_verdict_ms(self.terms, self.submission)

    @property
    def slash(self) -> SlashState | None:
        return self.run.slashes.get(self.name)

    @property
    def finding(self) -> FindingState | None:
        """The one that is not decided yet."""
        return self.run.get_open_finding(self.name)

    @property
    def rounds(self) -> Sequence[AuditRoundState]:
        """The rounds that count now: all of them, or those of an open appeal or finding."""
        return get_open_rounds(self.run, self.name)

    @property
    def is_open(self) -> bool:
        """Whether verdicts may still come."""
        return self.submission.outcome is None or self.slash is not None or self.finding is not None

    def make_task(
        self, deadline_ms: int, readers: tuple[ReadCoverage, ...] = (), *, is_ruling: bool = False
    ) -> AuditTask:
        """For the validators of the last round, for an inspector of these readers, or for one that is to decide."""
        submission = self.submission
        return AuditTask(
            submission=self.name,
            round=len(submission.rounds) - 1,
            seed=submission.rounds[-1].seed,
            file_digest=submission.file_digest,
            lease=submission.lease,
            node=submission.node,
            step=submission.step,
            checkpoint_root=self.run.checkpoints[submission.checkpoint_step].root,
            first_slot=submission.slots.start,
            slots=len(submission.slots),
            deadline_ms=deadline_ms,
            readers=readers,
            is_ruling=is_ruling,
            sums=self.run.get_record(submission.node).evidence,
            commit=not readers and not is_ruling and submission.rounds[-1].is_committed_first,
        )


def propose_slash(entry_writer: EntryWriter, case: AuditCase, now_ms: int) -> None:
    """Propose the slash of the terms, limited to the stake that is left."""
    position = (case.submission.owner, case.submission.node)
    amount_nano = min(case.terms.slash_nano, entry_writer.state.funds.slashable_nano(position))
    evidence = next(iter(case.submission.evidence))
    entry = SlashProposed(submission=case.name, amount_nano=amount_nano, evidence=evidence)
    entry_writer.append_own(entry, case.run_name, now_ms)


def compute_finding_end(state: LedgerState, case: AuditCase, now_ms: int) -> FindingUpheld | FindingDismissed | None:
    """The entry that decides an open finding if it is due."""
    assert case.finding is not None
    outcome = tally_outcome(state, case.run, case.name, now_ms)
    if outcome is Outcome.FRAUDULENT:
        return FindingUpheld(submission=case.name)
    if outcome is not None or now_ms >= case.finding.judged_until_ms:
        return FindingDismissed(submission=case.name)
    return None


def compute_slash_end(
    state: LedgerState, case: AuditCase, now_ms: int, *, is_appealable: bool = False
) -> SlashExecuted | SlashOverturned | None:
    """The entry that ends an open slash if it is due; None while the court may still get an appeal."""
    slash = case.slash
    assert slash is not None
    execution = SlashExecuted(submission=case.name, bounty_to=get_bounty_account(case.run, case.name))
    if slash.appealed_at_ms is None:
        is_due = now_ms >= slash.appeal_until_ms and not is_appealable
        return execution if is_due else None
    outcome = tally_outcome(state, case.run, case.name, now_ms)
    if outcome is Outcome.FRAUDULENT:
        return execution
    if outcome is not None or now_ms >= slash.appealed_at_ms + slash.long_stop_ms:
        return SlashOverturned(submission=case.name)
    return None
