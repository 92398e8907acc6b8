"""A submission with everything that one decision about it needs, and the proposal and end of its slash. Pure.

The ledger has the rules; this module finds the next entry.
"""

from dataclasses import dataclass

from prime_coordinator.entry_writer import EntryWriter
from prime_protocol.ledger.audits import tally_outcome
from prime_protocol.ledger.entries import Outcome, SlashExecuted, SlashOverturned, SlashProposed
from prime_protocol.ledger.state import AuditRoundState, LedgerState, RunState, SlashState, SubmissionState
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import Digest, NodeId, RunId
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
    def slash(self) -> SlashState | None:
        return self.run.slashes.get(self.name)

    @property
    def rounds(self) -> list[AuditRoundState]:
        """The rounds that count now: all of them, or those of the appeal."""
        return self.submission.rounds[self.slash.rounds_before if self.slash else 0 :]

    @property
    def is_open(self) -> bool:
        """Whether verdicts may still come."""
        return self.submission.outcome is None or self.slash is not None

    def make_task(self, deadline_ms: int, readers: tuple[NodeId, ...] = ()) -> AuditTask:
        """For the validators of the last round, or for an inspector of these readers."""
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
        )


def propose_slash(entry_writer: EntryWriter, case: AuditCase, now_ms: int) -> None:
    """Propose the slash of the terms, limited to the stake that is left."""
    position = (case.submission.owner, case.submission.node)
    amount_nano = min(case.terms.slash_nano, entry_writer.state.funds.slashable_nano(position))
    evidence = next(iter(case.submission.evidence))
    entry = SlashProposed(submission=case.name, amount_nano=amount_nano, evidence=evidence)
    entry_writer.append_own(entry, case.run_name, now_ms)


def compute_slash_end(
    state: LedgerState, case: AuditCase, now_ms: int, *, is_appealable: bool = False
) -> SlashExecuted | SlashOverturned | None:
    """The entry that ends an open slash if it is due; None while the court may still get an appeal."""
    slash = case.slash
    assert slash is not None
    if slash.appealed_at_ms is None:
        is_due = now_ms >= slash.appeal_until_ms and not is_appealable
        return SlashExecuted(submission=case.name) if is_due else None
    outcome = tally_outcome(state, case.run, case.name, now_ms)
    if outcome is Outcome.FRAUDULENT:
        return SlashExecuted(submission=case.name)
    if outcome is not None or now_ms >= slash.appealed_at_ms + slash.judgement_ms:
        return SlashOverturned(submission=case.name)
    return None
