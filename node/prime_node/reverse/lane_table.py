"""Which nodes may keep connections (lanes) to this one, so that it can ask them for shards. Pure.

A lane costs a gateway a socket and a few kilobytes; it asks for shards only where it needs them, and every shard is
verified by its digest. So a hostile node can only occupy places. Places are limited in total, per node and per network
of addresses, and when all are taken, a node that has delivered nothing gives way.
"""

from collections import Counter
from dataclasses import dataclass

from prime_protocol.wire.ids import NodeId

HALF_LIFE_MS = 600_000
"""Delivered bytes count half after this long."""
PROBATION_MS = 60_000
"""A node keeps its place at least this long: nodes that take turns would cost more than they bring."""
RETRY_MS = 30_000
"""When a refused node may come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """What a gateway grants."""

    nodes_max: int = 64
    """Nodes with lanes. Each is a possible parent of every download; a download remembers 64 parents."""
    lanes_per_node: int = 4
    """Of one node: as many requests at once. One waits for news, two bring shards, one is being replaced."""
    nodes_per_group: int = 8
    """Nodes of one /24 of IPv4 or /48 of IPv6: keys are free, and addresses are not."""


@dataclass(slots=True)
class LinkedNode:
    """A node with lanes."""

    group: str
    since_ms: int
    lanes: int = 0
    bytes: float = 0.0
    bytes_ms: int = 0

    def read_bytes(self, now_ms: int) -> float:
        return float(self.bytes * 0.5 ** (max(0, now_ms - self.bytes_ms) / HALF_LIFE_MS))


@dataclass(frozen=True, slots=True)
class LaneAdmitted:
    """The lane is open."""

    evicted: NodeId | None = None
    """Close the lanes of this node: it gives way."""


@dataclass(frozen=True, slots=True)
class LaneRefused:
    """No place for it."""

    reason: str
    retry_ms: int = RETRY_MS


class LaneTable:
    """The nodes with lanes to this gateway."""

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._nodes: dict[NodeId, LinkedNode] = {}
        self._groups: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._nodes)

    def admit(self, node: NodeId, group: str, now_ms: int) -> LaneAdmitted | LaneRefused:
        known = self._nodes.get(node)
        if known is not None:
            if known.lanes >= self._limits.lanes_per_node:
                return LaneRefused("this node has all its connections")
            known.lanes += 1
            return LaneAdmitted()
        if self._groups[group] >= self._limits.nodes_per_group:
            return LaneRefused("too many nodes of one network")
        evicted = None
        if len(self._nodes) >= self._limits.nodes_max:
            evicted = self._find_useless(now_ms)
            if evicted is None:
                return LaneRefused("all places are taken")
            self.remove(evicted)
        self._groups[group] += 1
        self._nodes[node] = LinkedNode(group, now_ms, lanes=1)
        return LaneAdmitted(evicted)

    def count_bytes(self, node: NodeId, count: int, now_ms: int) -> None:
        """The node delivered these bytes of shards."""
        known = self._nodes.get(node)
        if known is not None:
            known.bytes, known.bytes_ms = known.read_bytes(now_ms) + count, now_ms

    def end_lane(self, node: NodeId) -> None:
        """One lane ended. A node that was removed meanwhile is unknown."""
        known = self._nodes.get(node)
        if known is not None:
            known.lanes -= 1
            if not known.lanes:
                self.remove(node)

    def remove(self, node: NodeId) -> None:
        known = self._nodes.pop(node, None)
        if known is not None:
            self._groups[known.group] -= 1
            if not self._groups[known.group]:
                del self._groups[known.group]

    def _find_useless(self, now_ms: int) -> NodeId | None:
        """The node that delivered least, if that is next to nothing, after its probation."""
        old = [node for node, each in self._nodes.items() if now_ms - each.since_ms >= PROBATION_MS]
        worst = min(old, key=lambda node: self._nodes[node].read_bytes(now_ms), default=None)
        return worst if worst is not None and self._nodes[worst].read_bytes(now_ms) < 1 else None
