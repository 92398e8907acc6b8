"""Validators that were drawn and said nothing: when they leave the draw, and how they come back. Pure.

A silent validator costs every submission it is drawn for the time of a round, so the coordinator sets it aside until
it is heard of again. The ledger has the status and its reason; how often it happened is forgotten at a restart.
"""

from collections import Counter
from collections.abc import Iterable

from prime_coordinator.constants import GRACE_MS, MISS_WAIT_MS, MISS_WAIT_MS_MAX, MISSES_MAX
from prime_coordinator.liveness import Liveness, Phase
from prime_coordinator.scribe import Scribe
from prime_protocol.entries import NodeStatus, NodeStatusSet
from prime_protocol.ids import NodeId
from prime_protocol.state import NodeState

SILENT = "was drawn to judge and stayed silent"
"""The reason of a drain that its node can end by beating."""

BACK = "is heard of again"


class Attendance:
    """Counts what validators let pass."""

    def __init__(self, scribe: Scribe, liveness: Liveness, now_ms: int) -> None:
        self._scribe = scribe
        self._liveness = liveness
        self._started_ms = now_ms
        self._misses: Counter[NodeId] = Counter()
        self._waits_ms: dict[NodeId, int] = {}
        self._back_ms: dict[NodeId, int] = {}

    def missed(self, validators: Iterable[NodeId], now_ms: int) -> None:
        """A round's time is over, and these have not spoken."""
        if now_ms < self._started_ms + GRACE_MS:
            return
        for node in validators:
            is_lost = self._liveness.phase(node) is Phase.LOST
            self._misses[node] += 1
            if is_lost or self._misses[node] >= MISSES_MAX:
                self._set_aside(node, is_lost, now_ms)

    def _set_aside(self, node: NodeId, is_lost: bool, now_ms: int) -> None:
        if self._scribe.state.nodes[node].status is not NodeStatus.ACTIVE:
            return
        del self._misses[node]
        if not is_lost:
            wait_ms = self._waits_ms.get(node, MISS_WAIT_MS)
            self._back_ms[node] = now_ms + wait_ms
            self._waits_ms[node] = min(2 * wait_ms, MISS_WAIT_MS_MAX)
        self._scribe.write(NodeStatusSet(node=node, status=NodeStatus.DRAINED, reason=SILENT), None, now_ms)

    def spoke(self, node: NodeId) -> None:
        self._misses.pop(node, None)
        self._waits_ms.pop(node, None)

    def heard(self, node: NodeId, known: NodeState, now_ms: int) -> None:
        """It beats: where silence was all that kept it from work, it is back."""
        if known.status is not NodeStatus.DRAINED or known.reason != SILENT or now_ms < self._back_ms.get(node, 0):
            return
        self._back_ms.pop(node, None)
        self._scribe.write(NodeStatusSet(node=node, status=NodeStatus.ACTIVE, reason=BACK), None, now_ms)
