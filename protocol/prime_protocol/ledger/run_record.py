"""What a node's work in one run says of it: accepted submissions in a row, and evidence that adds up over files. Pure.

Every verdict states what the file weighs under each bet (proofs/margin_noise.py and the noise of completions). The
ledger takes the median of all verdicts on a settled submission, so that a lying minority moves nothing, and adds it to
the node's sums in this run. A sum below zero restarts there: honest files from before say nothing about the next one.
That is Page's test (CUSUM) again, over the files of a node, in integers, so that every replay gives the same.

The sums raise the audit rate first, then hold the node's pay. Where a file brings them to SUSPICION_CONVICTED, its
validators find it fraudulent, with quorum, evidence, slash and appeal as for any other file.

Nothing here counts in another run: trust that was earned cheaply would be spent where work is expensive.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from prime_protocol.constants import (
    EVIDENCE_BETS,
    EVIDENCE_FILE_MAX,
    SUSPICION_AUDITED,
    SUSPICION_CONVICTED,
    SUSPICION_HELD,
)
from prime_protocol.wire.ids import NodeId, Step

BetSums = tuple[int, ...]
"""One sum per bet, in tenths of a power of ten."""
NO_EVIDENCE: BetSums = (0,) * EVIDENCE_BETS


@dataclass(slots=True)
class RunRecord:
    """A node in one run."""

    streak: int = 0
    """Submissions accepted since the last one that was not."""
    evidence: BetSums = NO_EVIDENCE
    """Against it, so far."""
    is_held: bool = False
    """What it earns is not paid until its files look honest again, or the run has other bounds."""
    held_units: Counter[tuple[NodeId, Step]] = field(default_factory=Counter)
    """By the owner that earned them and the step."""
    restake_nano: int = 0
    """What its owner has to stake again before the node may work or judge in this run: it was slashed."""

    @property
    def suspicion(self) -> int:
        return max(self.evidence)

    def add(self, file: BetSums) -> None:
        """Count what one more file weighs."""
        self.evidence = add_evidence(self.evidence, file)
        if self.suspicion >= SUSPICION_HELD:
            self.is_held = True
        elif self.suspicion < SUSPICION_AUDITED:
            self.is_held = False

    def exclude(self, slashed_nano: int) -> None:
        """A slash was executed: until as much is staked again the node is out, and then it is on probation."""
        self.restake_nano += max(1, slashed_nano)
        self.streak = 0

    def take_released(self) -> Counter[tuple[NodeId, Step]]:
        """Units that were held and are not any more."""
        if self.is_held:
            return Counter()
        released, self.held_units = self.held_units, Counter()
        return released


def add_evidence(sums: BetSums, file: BetSums) -> BetSums:
    """The sums after one more file, which counts for no more than EVIDENCE_FILE_MAX either way."""
    return tuple(
        max(0, total + max(-EVIDENCE_FILE_MAX, min(weight, EVIDENCE_FILE_MAX)))
        for total, weight in zip(sums, file, strict=True)
    )


def convicts(sums: BetSums, file: BetSums) -> bool:
    """Whether this file brings its author's sums to where honest noise of no calibrated machine gets."""
    return max(add_evidence(sums, file)) >= SUSPICION_CONVICTED


def take_medians(reports: Iterable[BetSums]) -> BetSums | None:
    """The median of each bet over the verdicts that state any, the lower one of two; None where no verdict does."""
    known = [report for report in reports if report]
    if not known:
        return None
    return tuple(sorted(column)[(len(known) - 1) // 2] for column in zip(*known, strict=True))
