"""A submission and what belongs to it, gathered for one decision. Pure."""

from dataclasses import dataclass

from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.messages import AuditTask
from prime_protocol.state import Round, RunState, SlashState, State, SubmissionState
from prime_protocol.terms import RunTerms

Name = tuple[RunId, Digest]
"""A submission of a run."""


@dataclass(frozen=True, slots=True)
class Case:
    """One submission of a run."""

    run_name: RunId
    run: RunState
    name: Digest
    submission: SubmissionState

    @classmethod
    def of(cls, state: State, run: RunId, name: Digest) -> "Case":
        return cls(run, state.runs[run], name, state.runs[run].submissions[name])

    @property
    def terms(self) -> RunTerms:
        return self.run.terms_of(self.submission)

    @property
    def slash(self) -> SlashState | None:
        return self.run.slashes.get(self.name)

    @property
    def rounds(self) -> list[Round]:
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
