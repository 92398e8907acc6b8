"""Which public nodes a private node keeps connections to, so that they can ask it for shards. Pure.

Few gateways, and few lanes to each: every gateway has many private nodes. They are drawn at random, so that the private
nodes of a network spread over its public ones, and one that asks for nothing is replaced now and then. A gateway that
takes more than the weights contain is left alone for an hour: an honest one needs every shard once.
"""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from prime_protocol.wire.ids import NodeId

GATEWAYS_MAX = 4
LANES = 3
"""To each gateway: one waits for news, two bring shards."""
RETRY_MIN_MS, RETRY_MAX_MS = 1_000, 300_000
"""Pause after a failure; it doubles, with jitter."""
REFUSED_MS = 600_000
"""Pause after an answer that says that the server is no gateway, such as a trainer's."""
REVIEW_MS = 300_000
"""Now and then the gateway that took least gives way to one that was not tried."""
GREED_PAUSE_MS = 3_600_000
GREED_FACTOR = 2
"""A gateway may take the weights that we hold this many times over: a shard that broke off is sent again."""
MET_FACTOR = 4 * GREED_FACTOR
"""The same for all nodes together that a gateway introduces: four at a time."""
KNOWN_MAX = 1_024


@dataclass(slots=True)
class GatewayState:
    """What is known of one gateway."""

    lanes: int = 0
    """Open, or being opened."""
    is_chosen: bool = False
    since_ms: int = 0
    failures: int = 0
    ready_ms: int = 0
    sent_bytes: int = 0
    """Since it was chosen."""
    met_bytes: int = 0
    """The same, to nodes that it introduced."""
    fetched_bytes: int = 0
    """What this node had fetched when it chose the gateway."""


@dataclass(frozen=True, slots=True)
class OfferedWeights:
    """The weights that this node can serve."""

    held_bytes: int
    """At the moment."""
    fetched_bytes: int
    """Since its start: weights that it no longer holds were offered too."""


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What to do now."""

    open: tuple[NodeId, ...]
    """A lane to each of these; a node may be named several times."""
    close: tuple[NodeId, ...]
    """All lanes to these."""


class GatewayPlan:
    """The gateways of one node."""

    def __init__(self, rng: Random, *, gateways_max: int = GATEWAYS_MAX, lanes: int = LANES) -> None:
        self._rng = rng
        self._gateways_max = gateways_max
        self._lanes = lanes
        self._known: dict[NodeId, GatewayState] = {}
        self._reviewed_ms = 0

    @property
    def chosen(self) -> list[NodeId]:
        return [node for node, each in self._known.items() if each.is_chosen]

    @property
    def linked(self) -> list[NodeId]:
        """The gateways with a lane."""
        return [node for node, each in self._known.items() if each.lanes]

    def update(self, candidates: Collection[NodeId], offered: OfferedWeights, now_ms: int) -> LanePlan:
        """`candidates`: public nodes."""
        close = [node for node in self.chosen if node not in candidates]
        for node in self.chosen:
            if node in candidates and self.is_greedy(node, offered):
                self._known[node].ready_ms = now_ms + GREED_PAUSE_MS
                close.append(node)
        close += self._review(candidates, now_ms)
        for node in close:
            self._known[node].is_chosen = False
        free = [node for node in sorted(candidates) if self._is_free(node, now_ms)]
        self._rng.shuffle(free)
        for node in free[: max(0, self._gateways_max - len(self.chosen))]:
            each = self._known.setdefault(node, GatewayState())
            each.is_chosen, each.since_ms = True, now_ms
            each.sent_bytes = each.met_bytes = 0
            each.fetched_bytes = offered.fetched_bytes
        open_: list[NodeId] = []
        for node in self.chosen:
            each = self._known[node]
            missing = self._lanes - each.lanes if each.ready_ms <= now_ms else 0
            each.lanes += missing
            open_ += [node] * missing
        self._forget(candidates)
        return LanePlan(tuple(open_), tuple(close))

    def mark_open(self, node: NodeId) -> None:
        """A lane that was planned is open."""
        self._known[node].failures = 0

    def mark_ended(self, node: NodeId, now_ms: int, *, pause_ms: int = 0) -> None:
        """A lane has ended, or could not be opened. `pause_ms`: what the gateway asks for."""
        each = self._known[node]
        each.lanes -= 1
        if pause_ms >= REFUSED_MS:
            each.is_chosen = False
        backoff_ms = min(RETRY_MAX_MS, RETRY_MIN_MS << min(each.failures, 10))
        each.failures += 1
        pause_ms = max(min(pause_ms, REFUSED_MS), backoff_ms)
        each.ready_ms = max(each.ready_ms, now_ms + round(pause_ms * self._rng.uniform(1.0, 1.5)))

    def count_sent(self, node: NodeId, count: int, *, is_met: bool = False) -> None:
        """This many bytes of shards went to the gateway, or to a node that it introduced."""
        each = self._known.get(node)
        if each is None:
            return
        if is_met:
            each.met_bytes += count
        else:
            each.sent_bytes += count

    def is_greedy(self, node: NodeId, offered: OfferedWeights) -> bool:
        each = self._known.get(node)
        if each is None:
            return False
        bytes_offered = offered.held_bytes + offered.fetched_bytes - each.fetched_bytes
        return each.sent_bytes > GREED_FACTOR * bytes_offered or each.met_bytes > MET_FACTOR * bytes_offered

    def _is_free(self, node: NodeId, now_ms: int) -> bool:
        each = self._known.get(node)
        return each is None or (not each.is_chosen and not each.lanes and each.ready_ms <= now_ms)

    def _review(self, candidates: Collection[NodeId], now_ms: int) -> list[NodeId]:
        """The chosen gateway that cannot be reached or took least, where there is another."""
        if now_ms - self._reviewed_ms < REVIEW_MS:
            return []
        self._reviewed_ms = now_ms
        old = [node for node in self.chosen if now_ms - self._known[node].since_ms >= REVIEW_MS]
        others = [node for node in candidates if self._is_free(node, now_ms)]
        if not old or not others or len(self.chosen) < self._gateways_max:
            return []
        return [min(old, key=lambda node: (self._known[node].lanes > 0, self._known[node].sent_bytes))]

    def _forget(self, candidates: Collection[NodeId]) -> None:
        """Nodes that are gone, and then any, above a bound."""
        for node in [node for node, each in self._known.items() if not each.lanes and not each.is_chosen]:
            if len(self._known) <= KNOWN_MAX:
                return
            if node not in candidates or len(self._known) > 2 * KNOWN_MAX:
                del self._known[node]
