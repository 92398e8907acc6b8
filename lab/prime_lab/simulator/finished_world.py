"""A world that has come to its end, as the invariants see it: its log, and the truth about files and nodes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prime_lab.simulator.coordinator_host import HONEST
from prime_lab.simulator.log_history import LoggedSubmission, LogHistory
from prime_lab.simulator.world import World
from prime_protocol.ledger.entries import Outcome
from prime_protocol.wire.ids import NodeId

INDEX_MAX = 2**62
"""An index after all others."""


@dataclass(frozen=True, slots=True)
class CountedVotes:
    """Verdicts of one judgement; how many of them honest and dishonest nodes gave."""

    votes: Counter[Outcome]
    honest: int
    dishonest: int

    def __str__(self) -> str:
        return f"{dict(self.votes)} of {self.honest} honest and {self.dishonest} dishonest"


@dataclass(frozen=True)
class FinishedWorld:
    """A finished world, and which nodes were honest."""

    world: World
    honest: frozenset[NodeId]
    """Nodes that followed the protocol throughout."""
    is_over: bool = True
    """All steps were trained and there was time to settle everything; else things may be open."""

    @property
    def history(self) -> LogHistory:
        return self.world.host.history

    def is_forged(self, logged: LoggedSubmission) -> bool:
        """Whether an honest audit would find the file dishonest."""
        file = self.world.files.get(logged.receipt.file_digest)
        return file is None or file.forgery != HONEST

    def count_votes(self, logged: LoggedSubmission, first: int = 0, end: int = INDEX_MAX) -> CountedVotes:
        """The verdicts whose index lies between two others."""
        given = [line for line in logged.verdicts if first <= line.index < end]
        honest = sum(line.author in self.honest for line in given)
        return CountedVotes(Counter(line.entry.outcome for line in given), honest, len(given) - honest)

    def count_first_votes(self, logged: LoggedSubmission) -> CountedVotes:
        """The verdicts before the outcome."""
        return self.count_votes(logged, 0, logged.settled[0].index if logged.settled else INDEX_MAX)

    def count_appeal_votes(self, logged: LoggedSubmission) -> CountedVotes:
        return self.count_votes(logged, logged.proposed[0].index if logged.proposed else INDEX_MAX)

    def count_finding_votes(self, logged: LoggedSubmission) -> Iterator[CountedVotes]:
        """Of each finding, the verdicts before it was decided."""
        for filed, end in logged.list_findings():
            yield self.count_votes(logged, filed.index, end.index if end else INDEX_MAX)
