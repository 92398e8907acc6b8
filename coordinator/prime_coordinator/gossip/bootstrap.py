"""Which nodes the coordinator names to a node that starts with libp2p. Pure.

Nodes that can be dialled send their signed peer record with a poll. A sample is drawn over owners and address ranges:
an owner with a thousand keys, or a thousand addresses of one provider, gets one place of it while there are others.
"""

from collections import OrderedDict
from dataclasses import dataclass
from random import Random

from prime_coordinator.constants import BOOTSTRAP_CANDIDATES, BOOTSTRAP_OWNER_RECORDS, BOOTSTRAP_RECORDS
from prime_protocol.constants import BOOTSTRAP_NODES
from prime_protocol.gossip.messages import PeerRecord, ReceivedGossip
from prime_protocol.wire.addresses import PeerAddress
from prime_protocol.wire.ids import NodeId, RunId
from prime_runtime.gossip.known_peers import get_range, is_private


@dataclass(frozen=True, slots=True)
class ReachableNode:
    """The peer record of one node."""

    owner: NodeId
    address: PeerAddress
    """The best that others can dial."""
    expires_at_ms: int


class BootstrapNodes:
    """Reachable nodes of each run. `rng` draws which ones a node gets."""

    def __init__(self, rng: Random, *, allows_private: bool) -> None:
        self._rng = rng
        self._allows_private = allows_private
        self._known: OrderedDict[tuple[RunId, NodeId], ReachableNode] = OrderedDict()
        """Oldest record first."""
        self._owned: dict[NodeId, list[tuple[RunId, NodeId]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def put(self, run: RunId, gossip: ReceivedGossip, owner: NodeId, now_ms: int) -> None:
        """A peer record that a registered node sent, signed by itself."""
        assert isinstance(gossip.message, PeerRecord)
        address = next((each for each in gossip.message.parsed if self._may_name(each)), None)
        key = (run, gossip.payload.sender)
        self._drop(key)
        self._drop_expired(now_ms)
        if address is None:
            return
        owned = self._owned.setdefault(owner, [])
        while len(owned) >= BOOTSTRAP_OWNER_RECORDS:
            self._drop(owned[0])
        if len(self._known) >= BOOTSTRAP_RECORDS:
            self._drop(next(iter(self._known)))
        self._known[key] = ReachableNode(owner, address, gossip.payload.expires_at_ms)
        self._owned.setdefault(owner, []).append(key)

    def choose(self, run: RunId, asker: NodeId, now_ms: int) -> tuple[str, ...]:
        """One address each of at most BOOTSTRAP_NODES nodes, of different owners and address ranges first."""
        self._drop_expired(now_ms)
        here = [key for key in self._known if key[0] == run and key[1] != asker]
        found = [self._known[key] for key in self._rng.sample(here, min(BOOTSTRAP_CANDIDATES, len(here)))]
        owners: set[NodeId] = set()
        ranges: set[str] = set()
        first: list[ReachableNode] = []
        rest: list[ReachableNode] = []
        for node in found:
            place = get_range(node.address)
            is_new = node.owner not in owners and place not in ranges
            (first if is_new else rest).append(node)
            owners.add(node.owner)
            ranges.add(place)
        return tuple(str(node.address) for node in (first + rest)[:BOOTSTRAP_NODES])

    def _may_name(self, address: PeerAddress) -> bool:
        """A private address is of use only where the coordinator has one itself."""
        return self._allows_private or not is_private(address)

    def _drop_expired(self, now_ms: int) -> None:
        """Records are renewed in the order in which they expire, but for clocks that differ by a little."""
        while self._known and next(iter(self._known.values())).expires_at_ms <= now_ms:
            self._drop(next(iter(self._known)))

    def _drop(self, key: tuple[RunId, NodeId]) -> None:
        node = self._known.pop(key, None)
        if node is None:
            return
        owned = self._owned[node.owner]
        owned.remove(key)
        if not owned:
            del self._owned[node.owner]
