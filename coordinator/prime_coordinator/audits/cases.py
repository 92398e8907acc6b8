"""A submission and what belongs to it, gathered for one decision. Pure.

When a slash is proposed, and how and when it ends. Pure: the ledger has the rules, this has the next entry.
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
        """Those that count now: all of them, or the appeal's own."""
        return self.submission.rounds[self.slash.rounds_before if self.slash else 0 :]

    @property
    def is_open(self) -> bool:
        """Whether it may still be judged."""
        return self.submission.outcome is None or self.slash is not None

    def make_task(self, deadline_ms: int, readers: tuple[NodeId, ...] = ()) -> AuditTask:
        """For the validators of the last round, or for who inspects what these readers saw."""
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


def propose_slash(scribe: EntryWriter, case: AuditCase, now_ms: int) -> None:
    """What the terms say, as far as there is stake."""
    position = (case.submission.owner, case.submission.node)
    amount_nano = min(case.terms.slash_nano, scribe.state.funds.slashable_nano(position))
    evidence = next(iter(case.submission.evidence))
    entry = SlashProposed(submission=case.name, amount_nano=amount_nano, evidence=evidence)
    scribe.append_own(entry, case.run_name, now_ms)


def compute_slash_end(
    state: LedgerState, case: AuditCase, now_ms: int, *, is_appealable: bool = False
) -> SlashExecuted | SlashOverturned | None:
    """The entry that ends an open slash, if it is time for one; not while a court may still hear an appeal."""
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
