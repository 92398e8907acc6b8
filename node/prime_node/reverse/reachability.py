"""Whether others can connect to this node: whom to ask, and what follows from the answers. Pure.

An answer is not believed. If a server says that it reached this node, its request must have arrived here with a secret
that only this server knew; otherwise it lies. If it says that it did not, it may lie too, so several are asked, of
different networks, and a single request that arrives from outside proves that the port is open. So a liar can bring
about nothing unless all that are asked lie.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from prime_protocol.wire.ids import NodeId

VOTES_MIN = 3
"""Answers without a connection before the port counts as closed; fewer where fewer servers are known."""
VALID_MS = 3_600_000
"""How long an answer counts."""
ASK_FIRST_MS, ASK_AGAIN_MS = 15_000, 900_000
"""Pause between two questions while it is unknown, and afterwards."""
LIARS_MAX = 256


class Reachability(StrEnum):
    """What is known."""

    UNKNOWN = "unknown"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class DialBackVote:
    """The answer of one server."""

    at_ms: int
    group: str
    """Network of its address: many servers of one operator have one vote."""
    has_arrived: bool
    """A connection with the server's secret came in."""
    problem: str


class ReachabilityVotes:
    """The answers that count."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._votes: dict[NodeId, DialBackVote] = {}
        self._liars: dict[NodeId, None] = {}
        self._asked_ms: int | None = None

    def choose(self, servers: Collection[NodeId], now_ms: int) -> NodeId | None:
        """Whom to ask now, if anybody: first those that have not answered yet."""
        pause_ms = ASK_FIRST_MS if self.judge(servers, now_ms) is Reachability.UNKNOWN else ASK_AGAIN_MS
        if self._asked_ms is not None and now_ms - self._asked_ms < pause_ms:
            return None
        honest = [node for node in sorted(servers) if node not in self._liars]
        fresh = [node for node in honest if node not in self._votes]
        if not honest:
            return None
        self._asked_ms = now_ms
        return self._rng.choice(fresh or honest)

    def add(self, node: NodeId, group: str, *, claims: bool, has_arrived: bool, problem: str, now_ms: int) -> None:
        """A signed answer. `claims`: the server says that it connected."""
        if claims and not has_arrived:
            self._liars[node] = None
            self._votes.pop(node, None)
            if len(self._liars) > LIARS_MAX:
                del self._liars[next(iter(self._liars))]
            return
        self._votes[node] = DialBackVote(now_ms, group, has_arrived, problem)

    def judge(self, servers: Collection[NodeId], now_ms: int) -> Reachability:
        self._votes = {node: vote for node, vote in self._votes.items() if now_ms - vote.at_ms < VALID_MS}
        if any(vote.has_arrived for vote in self._votes.values()):
            return Reachability.OPEN
        groups = {vote.group for vote in self._votes.values()}
        honest = sum(node not in self._liars for node in servers)
        is_enough = len(groups) >= VOTES_MIN or (bool(groups) and len(self._votes) >= honest)
        return Reachability.CLOSED if is_enough else Reachability.UNKNOWN

    @property
    def false_claims(self) -> int:
        """Servers that said that they connected, and did not."""
        return len(self._liars)

    @property
    def problem(self) -> str:
        """What the last server that could not connect says; by its own words."""
        failed = [vote for vote in self._votes.values() if not vote.has_arrived]
        return max(failed, key=lambda vote: vote.at_ms).problem if failed else ""
