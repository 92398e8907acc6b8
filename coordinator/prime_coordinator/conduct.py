"""What a node's recent failures cost it: files that intake refused, leases that ran out. Pure.

Nothing here is a verdict. A node waits for a while and may then try again; its next good file clears the slate. It is
all forgotten at a restart.
"""

from collections import Counter
from dataclasses import dataclass

from prime_coordinator.constants import BAD_FILES_PER_LEASE_MAX, STRIKE_WAIT_MS, STRIKE_WAIT_MS_MAX, STRIKES_FREE
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NodeId, RunId

DOUBLINGS_MAX = 32
"""Far past the longest wait; keeps the shift small whatever the count."""


@dataclass(slots=True)
class Slate:
    """Failures in a row, and until when the last one keeps the node from work."""

    strikes: int = 0
    until_ms: int = 0


class Conduct:
    """Slates of the nodes that have failed since their last good file."""

    def __init__(self) -> None:
        self._slates: dict[NodeId, Slate] = {}
        self._bad_files: Counter[tuple[RunId, int]] = Counter()

    def lost_lease(self, node: NodeId, now_ms: int) -> None:
        slate = self._slates.setdefault(node, Slate())
        slate.strikes += 1
        counted = slate.strikes - STRIKES_FREE
        if counted > 0:
            wait_ms = STRIKE_WAIT_MS << min(counted - 1, DOUBLINGS_MAX)
            slate.until_ms = now_ms + min(wait_ms, STRIKE_WAIT_MS_MAX)

    def bad_file(self, node: NodeId, run: RunId, lease: int, now_ms: int) -> bool:
        """Intake refused a file. The node may send a better one until the deadline; whether it has a try left."""
        self._bad_files[(run, lease)] += 1
        self.lost_lease(node, now_ms)
        return self._bad_files[(run, lease)] < BAD_FILES_PER_LEASE_MAX

    def check_file(self, run: RunId, lease: int) -> None:
        """Refuse to read one more file for a lease that brought too many bad ones."""
        if self._bad_files[(run, lease)] >= BAD_FILES_PER_LEASE_MAX:
            raise RemoteError("receipt.lease", f"{BAD_FILES_PER_LEASE_MAX} files for {lease} were refused; no more")

    def good_file(self, node: NodeId) -> None:
        self._slates.pop(node, None)

    def lease_over(self, run: RunId, lease: int) -> None:
        self._bad_files.pop((run, lease), None)

    def wait_ms(self, node: NodeId, now_ms: int) -> int:
        """How long the node is given no work."""
        slate = self._slates.get(node)
        return max(0, slate.until_ms - now_ms) if slate else 0
