"""Replays the ledger's rules over verified entries, and compares their times with when this node saw them. Pure.

`check_entries` proves that downloaded entries are those of a signed head. `LedgerReplay` folds them with the rules that
everyone has agreed on, and stops at the first entry that breaks one. `HeadSightings` says for each entry between which
two moments it must have been written: after a head without it was shown to this node, and before a head with it was.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from prime_protocol.constants import (
    ACCUSATION_CHARS_MAX,
    ACCUSED_LEAF_BYTES_MAX,
    LIVE_CLOCK_MS_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.accusation import Accusation, BrokenRule
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.state import LedgerState
from prime_protocol.ledger.versions.plan import UnknownRules
from prime_protocol.log.merkle import Frontier, build_inclusion_proof, compute_leaf_hash
from prime_protocol.log.tiles import Tile, compute_prefix_root, make_node_reader
from prime_protocol.log.tree_head import TreeHead
from prime_protocol.wire.ids import NetworkId, NodeId

GetTile = Callable[[Tile], bytes]


def check_entries(frontier: Frontier, leaves: Sequence[bytes], head: TreeHead, get_tile: GetTile) -> Frontier:
    """The frontier after these entries. RemoteError: they are not the next entries of the log with this head.

    `frontier` covers the entries before them. Only tiles that hash to the signed root count, so the source of entries
    and tiles needs no trust.
    """
    grown = frontier.append_many(compute_leaf_hash(leaf) for leaf in leaves)
    expected = head.root
    if grown.size != head.size:
        expected = compute_prefix_root(grown.size, size=head.size, root=head.root, get_tile=get_tile)
    if grown.root() != expected:
        raise RemoteError("entries", f"before {grown.size} do not hash to the signed head of {head.size} entries")
    return grown


# --- Times ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """When entries must have been written, by this node's clock."""

    after_ms: int
    """The coordinator showed its newest head then, and they were not in it."""
    before_ms: int
    """They were in a head that this node had by then."""

    def find_problem(self, at_ms: int) -> str:
        """Empty if the time is within the tolerance."""
        if at_ms < self.after_ms - LIVE_CLOCK_MS_MAX:
            seen = f"a head that this node was shown at {format_utc(self.after_ms)} does not contain it"
        elif at_ms > self.before_ms + LIVE_CLOCK_MS_MAX:
            seen = f"this node had it at {format_utc(self.before_ms)}"
        else:
            return ""
        return f"LogRecord.at_ms: is {format_utc(at_ms)}, but {seen}"


def format_utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True, slots=True)
class HeadSighting:
    """A head that the coordinator showed to this node, and when."""

    size: int
    at_ms: int
    is_newest: bool
    """It was the coordinator's newest head then. A head that it asks a validator to cosign may be older."""


SIGHTINGS_MAX = 4_096
"""Sightings kept: some eleven hours at one heartbeat in ten seconds. A replay that is further behind checks no times
in the part that was forgotten."""


class HeadSightings:
    """Heads in the order of their size. Entries before the first one are history: their times are not checked."""

    def __init__(self) -> None:
        self._seen: deque[HeadSighting] = deque(maxlen=SIGHTINGS_MAX)

    def add(self, sighting: HeadSighting) -> None:
        if not self._seen or sighting.size > self._seen[-1].size:
            self._seen.append(sighting)

    def split(self, start: int, stop: int) -> Iterator[tuple[int, TimeWindow | None]]:
        """The entries from `start` to `stop` in parts: the end of each, and its window; None: not to be checked."""
        cuts = [seen.size for seen in self._seen if start < seen.size < stop]
        for first, end in zip([start, *cuts], [*cuts, stop], strict=True):
            yield end, self._find_window(first)

    def _find_window(self, index: int) -> TimeWindow | None:
        after = [seen.at_ms for seen in self._seen if seen.size <= index and seen.is_newest]
        before = next((seen.at_ms for seen in self._seen if seen.size > index), None)
        return TimeWindow(after[-1], before) if after and before is not None else None


# --- Rules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """An entry that breaks a rule."""

    rule: BrokenRule
    index: int
    leaf: bytes
    problem: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """How far a replay is."""

    frontier: Frontier
    at_ms: int
    """Time of the last entry."""
    cpu_ms: int = 0
    """Processor time of the last step."""
    finding: Finding | None = None
    unknown_rules: str = ""
    """Why this program cannot judge the next entry, and what to do; empty: it can."""

    @property
    def size(self) -> int:
        return self.frontier.size


class LedgerReplay:
    """The ledger state after the entries so far. Each entry keeps every rule, or the replay ends there."""

    def __init__(self, network: NetworkId, founder: NodeId, state: LedgerState | None = None) -> None:
        """`founder` is the author of the first entry."""
        self._founder = founder
        self._ledger = Ledger(network)
        self._ledger.state = state or self._ledger.state

    @property
    def state(self) -> LedgerState:
        return self._ledger.state

    def apply(self, leaves: Sequence[bytes], window: TimeWindow | None = None) -> ReplayReport:
        """Fold verified entries. An entry with a wrong time is folded, one that breaks a rule is not."""
        for leaf in leaves:
            index = self.state.size
            try:
                self._apply_leaf(leaf)
            except UnknownRules as stop:
                # A clock that runs ahead must not switch programs off before the announced time.
                problem = window.find_problem(stop.at_ms) if window else ""
                if problem:
                    return self.report(Finding(BrokenRule.CLOCK, index, leaf, problem), unknown_rules=str(stop))
                return self.report(unknown_rules=str(stop))
            except RemoteError as error:
                return self.report(Finding(BrokenRule.LEDGER, index, leaf, str(error)))
            problem = window.find_problem(self.state.at_ms) if window else ""
            if problem:
                return self.report(Finding(BrokenRule.CLOCK, index, leaf, problem))
        return self.report()

    def _apply_leaf(self, leaf: bytes) -> None:
        self._ledger.apply(leaf)
        if self.state.size == 1 and self.state.coordinator != self._founder:
            author = self.state.coordinator
            self._ledger.state = LedgerState()
            raise RemoteError("Payload.sender", f"of the first entry is {author}, expected {self._founder}")

    def report(self, finding: Finding | None = None, *, unknown_rules: str = "") -> ReplayReport:
        state = self.state
        return ReplayReport(state.frontier, state.at_ms, finding=finding, unknown_rules=unknown_rules)


def make_accusation(finding: Finding, head: TreeHead, note: bytes, get_tile: GetTile) -> Accusation:
    """RemoteError: the tiles are not those of the head."""
    proof = build_inclusion_proof(finding.index, head.size, make_node_reader(head.size, get_tile))
    return Accusation(
        note=note,
        index=finding.index,
        leaf_hash=compute_leaf_hash(finding.leaf),
        leaf=finding.leaf if len(finding.leaf) <= ACCUSED_LEAF_BYTES_MAX else b"",
        proof=proof,
        rule=finding.rule,
        problem=finding.problem[:ACCUSATION_CHARS_MAX],
    )


def compute_pause_ms(*, cpu_ms: int, read_bytes: int, cpu_percent: int, bytes_per_s: int) -> int:
    """How long to wait after a step, so that neither the processor share nor the download rate is exceeded."""
    return max(cpu_ms * (100 - cpu_percent) // cpu_percent, read_bytes * 1000 // bytes_per_s)
