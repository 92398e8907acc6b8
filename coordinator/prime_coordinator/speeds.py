"""How fast each node really is: output tokens per second, from the time between a lease and its submission. Pure.

A node's own figure counts only until the first lease is answered, and then no more: paying for speed invites lies.
"""

from prime_coordinator.constants import SPEED_FIRST_MAX, SPEED_KEEP, SPEED_MIN
from prime_protocol.ids import NodeId


class Speeds:
    """Measured tokens per second of each node, newer leases weighing more."""

    def __init__(self) -> None:
        self._measured: dict[NodeId, float] = {}
        self._answered_ms: dict[NodeId, int] = {}

    def record(self, node: NodeId, *, tokens: int, leased_ms: int, now_ms: int) -> None:
        """A lease was answered. One that waited behind another is timed from when that other was answered."""
        began_ms = max(leased_ms, self._answered_ms.get(node, 0))
        self._answered_ms[node] = now_ms
        speed = 1000 * tokens / max(now_ms - began_ms, 1)
        known = self._measured.get(node)
        self._measured[node] = speed if known is None else SPEED_KEEP * known + (1 - SPEED_KEEP) * speed

    def record_loss(self, node: NodeId) -> None:
        """A lease ran out: the node was slower than was thought, by how much is not known."""
        if node in self._measured:
            self._measured[node] = max(SPEED_MIN, self._measured[node] / 2)

    def get(self, node: NodeId, claimed: int) -> float:
        return max(SPEED_MIN, self._measured.get(node, min(claimed, SPEED_FIRST_MAX)))

    def is_measured(self, node: NodeId) -> bool:
        return node in self._measured
