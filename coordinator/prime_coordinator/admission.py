"""Who may register, and how many: caps against floods, per owner and per range of addresses. Pure.

There is no whitelist. Stake, version and delegation are the ledger's to check when work is given out.
"""

from collections import Counter, deque

from prime_coordinator.constants import ADDRESS_GROUP_MS, NODES_PER_ADDRESS_GROUP_MAX, NODES_PER_OWNER_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NodeId
from prime_protocol.state import State


class Admission:
    """Counts registrations. What it remembers of addresses is lost at a restart, and that is no harm."""

    def __init__(self, state: State) -> None:
        self._owned: Counter[NodeId] = Counter(state.owners.values())
        self._recent: deque[tuple[int, str]] = deque()
        self._groups: Counter[str] = Counter()

    def check_registration(self, state: State, node: NodeId, address_group: str, now_ms: int) -> None:
        """Refuse a new node where its owner or its neighbourhood has too many; one that is known may always return."""
        self._forget(now_ms)
        if node in state.nodes:
            return
        if self._groups[address_group] >= NODES_PER_ADDRESS_GROUP_MAX:
            raise RemoteError("sender", f"{NODES_PER_ADDRESS_GROUP_MAX} nodes joined from your network; try in an hour")
        self._groups[address_group] += 1
        self._recent.append((now_ms, address_group))

    def check_delegation(self, state: State, node: NodeId, owner: NodeId) -> None:
        """Refuse one more node to an owner that has too many."""
        if state.owners.get(node) != owner and self._owned[owner] >= NODES_PER_OWNER_MAX:
            raise RemoteError("delegation.owner", f"{owner} has {NODES_PER_OWNER_MAX} nodes already")

    def delegated(self, old_owner: NodeId | None, new_owner: NodeId) -> None:
        """Keep count after a delegation or registration was logged."""
        if old_owner is not None:
            self._owned[old_owner] -= 1
        self._owned[new_owner] += 1

    def _forget(self, now_ms: int) -> None:
        while self._recent and now_ms - self._recent[0][0] >= ADDRESS_GROUP_MS:
            _, group = self._recent.popleft()
            self._groups[group] -= 1
            if not self._groups[group]:
                del self._groups[group]
