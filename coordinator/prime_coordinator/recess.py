"""Validators that are left out of the draw for a while, and how they come back. Pure.

The ledger has the status and its reason. How long a recess lasts grows each time; that is forgotten at a restart.
"""

from prime_coordinator.scribe import Scribe
from prime_protocol.entries import NodeStatus, NodeStatusSet
from prime_protocol.ids import NodeId
from prime_protocol.state import NodeState

SILENT = "was drawn to judge and stayed silent"
WRONG = "gave verdicts that did not stand"
UNREAD = "gave verdicts on files that it had not read"
"""Reasons of a drain that its node can end by beating, when the time is over."""

BACK = "is heard of again"


class Recess:
    """Who is out, until when, and for how long the next time."""

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe
        self._next_ms: dict[tuple[NodeId, str], int] = {}
        self._back_ms: dict[NodeId, int] = {}

    def begin(self, node: NodeId, reason: str, now_ms: int, *, wait_ms: int = 0, wait_ms_max: int = 0) -> bool:
        """Take a node out of the draw, for twice as long each time; False where it is out already."""
        if self._scribe.state.nodes[node].status is not NodeStatus.ACTIVE:
            return False
        if wait_ms:
            wait_ms = self._next_ms.get((node, reason), wait_ms)
            self._back_ms[node] = now_ms + wait_ms
            self._next_ms[(node, reason)] = min(2 * wait_ms, wait_ms_max)
        self._scribe.write(NodeStatusSet(node=node, status=NodeStatus.DRAINED, reason=reason), None, now_ms)
        return True

    def forgive(self, node: NodeId, reason: str) -> None:
        """The next one for this reason is as short as the first."""
        self._next_ms.pop((node, reason), None)

    def heard(self, node: NodeId, known: NodeState, now_ms: int) -> None:
        """It beats: where nothing but a recess kept it from work, and that is over, it is back."""
        is_out = known.status is NodeStatus.DRAINED and known.reason in (SILENT, UNREAD, WRONG)
        if is_out and now_ms >= self._back_ms.get(node, 0):
            self._back_ms.pop(node, None)
            self._scribe.write(NodeStatusSet(node=node, status=NodeStatus.ACTIVE, reason=BACK), None, now_ms)
