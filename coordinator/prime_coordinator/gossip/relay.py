"""Gossip relayed over HTTP: unexpired messages of nodes, for nodes that poll instead of using libp2p. Pure.

A GossipGuard has accepted every message stored here. Messages are numbered in the order of arrival, so a reader can ask
for those that are new to it. Memory is bounded, and expired messages are dropped.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from prime_coordinator.constants import (
    RELAY_ACCUSATIONS_KEPT,
    RELAY_ANNOUNCED_MAX,
    RELAY_HEADS_KEPT,
    RELAY_SCAN_MAX,
    RELAY_SERVING_KEPT,
    RELAY_SWEEP_MS,
    RELAY_URGENT_MANIFESTS_MAX,
)
from prime_protocol.constants import RELAY_ACCUSATIONS_MAX, RELAY_FRAMES_MAX, RELAY_HEADS_MAX, RELAY_SERVING_MAX
from prime_protocol.gossip.accusation import Accusation
from prime_protocol.gossip.messages import CheckpointAnnounced, GossipKind, HeadSeen, ReceivedGossip, ServingRecord
from prime_protocol.wire.ids import Digest, NodeId, RunId


@dataclass(frozen=True, slots=True)
class RelayedMessage:
    """One stored message."""

    number: int
    gossip: ReceivedGossip

    def is_alive(self, now_ms: int) -> bool:
        return self.gossip.payload.expires_at_ms > now_ms


@dataclass(slots=True)
class RunMessages:
    """The messages of one run. Each table is ordered by number."""

    announced: OrderedDict[bytes, RelayedMessage] = field(default_factory=OrderedDict)
    serving: OrderedDict[bytes, RelayedMessage] = field(default_factory=OrderedDict)
    heads: OrderedDict[bytes, RelayedMessage] = field(default_factory=OrderedDict)
    accusations: OrderedDict[bytes, RelayedMessage] = field(default_factory=OrderedDict)
    servers: Counter[Digest] = field(default_factory=Counter)
    """How many nodes serve each manifest."""
    newest: int = 0
    """Number of the newest message."""
    urgent: int = 0
    """Number of the newest message that readers get without delay."""
    swept_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Most messages kept of one run. The oldest are dropped first."""

    announced_max: int = RELAY_ANNOUNCED_MAX
    serving_max: int = RELAY_SERVING_KEPT
    heads_max: int = RELAY_HEADS_KEPT
    accusations_max: int = RELAY_ACCUSATIONS_KEPT


class GossipRelay:
    """Messages of all runs. `rng` draws which serving records a reader gets."""

    def __init__(self, rng: Random, *, now_ms: int, limits: RelayLimits | None = None) -> None:
        self._rng = rng
        self._limits = limits or RelayLimits()
        self._runs: dict[RunId, RunMessages] = {}
        # Larger than every number of an earlier process, which used fewer than one a millisecond.
        self._number = now_ms

    def put(self, run: RunId, gossip: ReceivedGossip, now_ms: int) -> bool:
        """Store a message that the guard accepted; True if readers should get it without delay."""
        held = self._runs.setdefault(run, RunMessages())
        self._sweep(held, now_ms)
        self._number += 1
        stored = RelayedMessage(self._number, gossip)
        held.newest = self._number
        if self._store(held, stored):
            held.urgent = self._number
            return True
        return False

    def read(self, run: RunId, seen: int, now_ms: int) -> tuple[int, tuple[bytes, ...]]:
        """A cursor, and the messages after `seen`: at most RECORDS_MAX frames."""
        held = self._runs.get(run)
        if held is None:
            return self._number, ()
        if seen > self._number:
            seen = 0  # from a process whose clock was ahead
        announced = list(_list_since(held.announced, seen, now_ms))
        announced.sort(key=_get_step, reverse=True)
        rest = [
            *islice(_list_since(held.heads, seen, now_ms), RELAY_HEADS_MAX),
            *islice(_list_since(held.accusations, seen, now_ms), RELAY_ACCUSATIONS_MAX),
        ]
        found = announced[: RELAY_FRAMES_MAX - RELAY_SERVING_MAX - len(rest)] + self._draw(held, seen, now_ms) + rest
        return held.newest, tuple(stored.gossip.frame for stored in found)

    def has_news(self, run: RunId, seen: int) -> bool:
        held = self._runs.get(run)
        return held is not None and (held.newest > seen or seen > self._number)

    def has_urgent(self, run: RunId, seen: int) -> bool:
        held = self._runs.get(run)
        return held is not None and (held.urgent > seen or seen > self._number)

    def count_nodes(self, run: RunId) -> int:
        """Number of nodes that serve weights."""
        held = self._runs.get(run)
        return len(held.serving) if held else 0

    def list_serving(self, run: RunId, now_ms: int) -> list[tuple[NodeId, ServingRecord]]:
        """Nodes that serve weights, newest message first."""
        held = self._runs.get(run)
        found = _list_since(held.serving, 0, now_ms) if held else ()
        return [
            (stored.gossip.payload.sender, stored.gossip.message)
            for stored in found
            if isinstance(stored.gossip.message, ServingRecord)
        ]

    def find_serving(self, node: NodeId, now_ms: int) -> ServingRecord | None:
        """What a node serves, in any run."""
        for held in self._runs.values():
            stored = held.serving.get(node)
            if stored is not None and stored.is_alive(now_ms) and isinstance(stored.gossip.message, ServingRecord):
                return stored.gossip.message
        return None

    def count(self) -> dict[GossipKind, int]:
        """Messages of each kind in all runs, including those that expired since the last sweep."""
        runs = self._runs.values()
        return {
            GossipKind.ANNOUNCED: sum(len(held.announced) for held in runs),
            GossipKind.SERVING: sum(len(held.serving) for held in runs),
            GossipKind.HEAD_SEEN: sum(len(held.heads) for held in runs),
            GossipKind.ACCUSATION: sum(len(held.accusations) for held in runs),
        }

    def __len__(self) -> int:
        return sum(self.count().values())

    # --- Writing ----------------------------------------------------------------------------------------------------

    def _store(self, held: RunMessages, stored: RelayedMessage) -> bool:
        sender, message = stored.gossip.payload.sender, stored.gossip.message
        match message:
            case CheckpointAnnounced(manifest=manifest):
                is_new = manifest not in held.announced
                _put_bounded(held.announced, manifest, stored, self._limits.announced_max)
                return is_new
            case ServingRecord():
                return self._store_serving(held, sender, stored, message)
            case HeadSeen():
                _put_bounded(held.heads, sender, stored, self._limits.heads_max)
            case Accusation():
                _put_bounded(held.accusations, sender, stored, self._limits.accusations_max)
        return False

    def _store_serving(self, held: RunMessages, sender: NodeId, stored: RelayedMessage, message: ServingRecord) -> bool:
        """Urgent if this node is the first to serve one of the newest manifests."""
        _drop_servers(held, held.serving.pop(sender, None))
        if not message.urls:
            return False  # a node without URLs serves no weights
        while len(held.serving) >= self._limits.serving_max:
            _drop_servers(held, held.serving.popitem(last=False)[1])
        first = [manifest for manifest in _newest_manifests(held) if not held.servers[manifest]]
        held.serving[sender] = stored
        held.servers.update(message.manifests)
        return bool(set(first) & set(message.manifests))

    def _sweep(self, held: RunMessages, now_ms: int) -> None:
        if now_ms - held.swept_ms < RELAY_SWEEP_MS:
            return
        held.swept_ms = now_ms
        for node in [node for node, stored in held.serving.items() if not stored.is_alive(now_ms)]:
            _drop_servers(held, held.serving.pop(node))
        for table in (held.announced, held.heads, held.accusations):
            for key in [key for key, stored in table.items() if not stored.is_alive(now_ms)]:
                del table[key]

    # --- Reading ----------------------------------------------------------------------------------------------------

    def _draw(self, held: RunMessages, seen: int, now_ms: int) -> list[RelayedMessage]:
        """Draw serving nodes. Half of the result is for those with the newest weights, who are few at first."""
        wanted = set(_newest_manifests(held))
        ahead: list[RelayedMessage] = []
        others: list[RelayedMessage] = []
        for stored in islice(_list_since(held.serving, seen, now_ms), RELAY_SCAN_MAX):
            assert isinstance(stored.gossip.message, ServingRecord)
            (others if wanted.isdisjoint(stored.gossip.message.manifests) else ahead).append(stored)
        ahead_max = max(RELAY_SERVING_MAX // 2, RELAY_SERVING_MAX - len(others))
        drawn = self._choose(ahead, ahead_max)
        return drawn + self._choose(others, RELAY_SERVING_MAX - len(drawn))

    def _choose(self, found: Sequence[RelayedMessage], most: int) -> list[RelayedMessage]:
        return list(found) if len(found) <= most else self._rng.sample(found, most)


def _newest_manifests(held: RunMessages) -> list[Digest]:
    newest = sorted(held.announced.values(), key=_get_step, reverse=True)[:RELAY_URGENT_MANIFESTS_MAX]
    return [
        stored.gossip.message.manifest for stored in newest if isinstance(stored.gossip.message, CheckpointAnnounced)
    ]


def _get_step(stored: RelayedMessage) -> int:
    assert isinstance(stored.gossip.message, CheckpointAnnounced)
    return stored.gossip.message.step


def _list_since(table: OrderedDict[bytes, RelayedMessage], seen: int, now_ms: int) -> Iterator[RelayedMessage]:
    """Newest first."""
    found: Iterable[RelayedMessage] = reversed(table.values())
    for stored in found:
        if stored.number <= seen:
            return
        if stored.is_alive(now_ms):
            yield stored


def _put_bounded(table: OrderedDict[bytes, RelayedMessage], key: bytes, stored: RelayedMessage, most: int) -> None:
    table.pop(key, None)
    while len(table) >= most:
        table.popitem(last=False)
    table[key] = stored


def _drop_servers(held: RunMessages, stored: RelayedMessage | None) -> None:
    if stored is not None:
        assert isinstance(stored.gossip.message, ServingRecord)
        held.servers -= Counter(stored.gossip.message.manifests)
