"""A submission and what belongs to it, gathered for one decision. Pure."""

from dataclasses import dataclass

from prime_protocol.ids import Digest, RunId
from prime_protocol.state import Round, RunState, SlashState, State, SubmissionState
from prime_protocol.terms import RunTerms


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
