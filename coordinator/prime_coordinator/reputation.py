"""Validators whose verdicts did not stand: when they leave the draw. Pure.

Who is wrong costs every submission it judges another round. Blame comes with each verdict that fell and goes with each
that stood, so an honest validator that was outvoted once loses nothing by it. A plain majority, where nobody was left
to ask, blames nobody: in a small network a few liars could drive out the others. Blame is forgotten at a restart; the
faults in the ledger are not.
"""

from collections import Counter

from prime_coordinator.constants import (
    BLAME_FALL,
    BLAME_MAX,
    FALL_WAIT_MS,
    FALL_WAIT_MS_MAX,
    UNREAD_WAIT_MS,
    UNREAD_WAIT_MS_MAX,
)
from prime_coordinator.recess import UNREAD, WRONG, Recess
from prime_coordinator.scribe import Scribe
from prime_protocol.ids import NodeId
from prime_protocol.state import SubmissionState


class Reputation:
    """How much each validator is to blame for, of late."""

    def __init__(self, recess: Recess, scribe: Scribe) -> None:
        self._recess = recess
        self._scribe = scribe
        self._blame: Counter[NodeId] = Counter()

    def judged(self, submission: SubmissionState, now_ms: int) -> None:
        """It is final, and clear, what stands. What the truth about a planted file refutes is no matter of opinion."""
        fall = BLAME_FALL if submission.planted is None else BLAME_MAX
        verdicts = {node: found for each in submission.rounds for node, found in each.verdicts.items()}
        for node, outcome in sorted(verdicts.items()):
            if outcome is submission.judged:
                self._stood(node)
            else:
                self._fell(node, fall, now_ms)

    def unread(self, node: NodeId, now_ms: int) -> None:
        """It judged what it had not read. That is never forgiven: the next recess is twice as long."""
        if self._can_spare(node):
            self._recess.begin(node, UNREAD, now_ms, wait_ms=UNREAD_WAIT_MS, wait_ms_max=UNREAD_WAIT_MS_MAX)

    def _stood(self, node: NodeId) -> None:
        if self._blame[node] > 1:
            self._blame[node] -= 1
        else:
            del self._blame[node]
            self._recess.forgive(node, WRONG)

    def _fell(self, node: NodeId, blame: int, now_ms: int) -> None:
        self._blame[node] = min(BLAME_MAX, self._blame[node] + blame)
        if self._blame[node] == BLAME_MAX and self._can_spare(node):
            self._recess.begin(node, WRONG, now_ms, wait_ms=FALL_WAIT_MS, wait_ms_max=FALL_WAIT_MS_MAX)

    def _can_spare(self, node: NodeId) -> bool:
        """Whether every run has two quorums and one more without it: so many may be asked before work is paid."""
        owners = self._scribe.state.owners
        return all(
            len({owners[each] for each in run.validators if each != node}) > 2 * run.terms.quorum
            for run in self._scribe.state.runs.values()
            if node in run.validators
        )
