"""How a run goes: tokens a slot takes, milliseconds a step takes, and until when a result is of use. Pure."""

from dataclasses import dataclass

from prime_coordinator.constants import TOKENS_PER_SLOT_FIRST, TOKENS_PER_SLOT_KEEP
from prime_protocol.ids import Step
from prime_protocol.state import RunState, SubmissionState


@dataclass(slots=True)
class Pace:
    """Of one run."""

    tokens_per_slot: float
    published_ms: int | None = None
    step_ms: float | None = None

    @classmethod
    def recover(cls, run: RunState) -> "Pace":
        """As the log tells it."""
        terms = run.terms
        pace = cls(max(1.0, TOKENS_PER_SLOT_FIRST * terms.output_tokens_max * terms.samples_per_slot))
        for step in sorted(run.checkpoints):
            pace.published(run.checkpoints[step].place.at_ms)
        for submission in run.submissions.values():
            pace.submitted(submission)
        return pace

    def published(self, now_ms: int) -> None:
        if self.published_ms is not None:
            took_ms = now_ms - self.published_ms
            self.step_ms = took_ms if self.step_ms is None else (self.step_ms + took_ms) / 2
        self.published_ms = now_ms

    def submitted(self, submission: SubmissionState) -> None:
        seen = submission.output_tokens / len(submission.slots)
        self.tokens_per_slot = TOKENS_PER_SLOT_KEEP * self.tokens_per_slot + (1 - TOKENS_PER_SLOT_KEEP) * seen

    def time_left_ms(self, run: RunState, checkpoint_step: int, now_ms: int) -> float | None:
        """Until the trainer will be past the lag of what is generated with that checkpoint; None where nobody knows.

        A step that takes longer than those before it waits for work, so nothing is too late for it.
        """
        if self.step_ms is None or self.published_ms is None:
            return None
        age = max(0, run.latest - checkpoint_step)
        left_ms = self.published_ms + (run.terms.lag_max + 1 - age) * self.step_ms - now_ms
        step = run.steps.get(Step(run.latest))
        is_awaited = step is None or not step.pending
        return None if left_ms <= 0 or is_awaited else left_ms
