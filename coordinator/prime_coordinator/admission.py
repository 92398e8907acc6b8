"""Who may register, and how many: caps against floods, per owner and per range of addresses. Pure.

There is no whitelist. Stake, version and delegation are looked at when work is given out.
"""

from collections import Counter, deque
from typing import Any

from prime_coordinator.constants import ADDRESS_GROUP_MS, NODES_PER_ADDRESS_GROUP_MAX, NODES_PER_OWNER_MAX
from prime_protocol.entries import Delegated, DelegationRevoked, NodeRegistered
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NodeId
from prime_protocol.state import State


class Admission:
    """Counts registrations. What it remembers of addresses is lost at a restart, and that is no harm."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._owned: Counter[NodeId] = Counter(state.owners.values())
        self._recent: deque[tuple[int, str]] = deque()
        self._groups: Counter[str] = Counter()

    def check(self, sender: NodeId, entry: Any, address_group: str, now_ms: int) -> None:
        """Refuse what would let a flood in. It is counted only when it was logged: see `logged`."""
        self._forget(now_ms)
        if isinstance(entry, NodeRegistered | Delegated) and sender not in self._state.nodes:
            self._check_newcomer(address_group)
        if isinstance(entry, Delegated):
            self._check_owner(sender, entry.delegation.owner)
        if isinstance(entry, DelegationRevoked) and not self._has_account(sender):
            raise RemoteError("Letter.sender", f"{sender} has no node and no balance here, so nothing to revoke")

    def _check_newcomer(self, address_group: str) -> None:
        """One that is known may always return."""
        if self._groups[address_group] >= NODES_PER_ADDRESS_GROUP_MAX:
            problem = f"{NODES_PER_ADDRESS_GROUP_MAX} nodes joined from your network; try in an hour"
            raise RemoteError("Letter.sender", problem)

    def _check_owner(self, node: NodeId, owner: NodeId) -> None:
        if self._state.owners.get(node) != owner and self._owned[owner] >= NODES_PER_OWNER_MAX:
            raise RemoteError("delegation.owner", f"{owner} has {NODES_PER_OWNER_MAX} nodes already")

    def _has_account(self, sender: NodeId) -> bool:
        """An entry that costs nothing is for those who have something here, or strangers could fill the log."""
        return sender in self._state.nodes or self._owned[sender] > 0 or self._state.books.balances[sender] > 0

    def logged(self, node: NodeId, old_owner: NodeId | None, address_group: str, now_ms: int) -> None:
        """Keep count after an entry that may have changed whose a node is."""
        owner = self._state.owners.get(node)
        if old_owner == owner or owner is None:
            return
        self._owned[owner] += 1
        if old_owner is None:
            self._groups[address_group] += 1
            self._recent.append((now_ms, address_group))
            return
        self._owned[old_owner] -= 1
        if not self._owned[old_owner]:
            del self._owned[old_owner]

    def _forget(self, now_ms: int) -> None:
        while self._recent and now_ms - self._recent[0][0] >= ADDRESS_GROUP_MS:
            _, group = self._recent.popleft()
            self._groups[group] -= 1
            if not self._groups[group]:
                del self._groups[group]
