"""What a node tells the log of itself: that it is there, for whom it works, and what stands behind it. Pure.

The log is the authority. What was told before is remembered so that a changed offer is told again.
"""

from dataclasses import dataclass

from prime_node.events import Parcel
from prime_protocol.entries import Delegated, NodeRegistered, Role, Staked
from prime_protocol.ids import NetworkId, NodeId, RunId
from prime_protocol.typed_data import EMBEDDED, Domain

JOIN_LIFE_MS = 3_600_000
"""How long an entry that joins the network is tried."""

STAKE_RETRY_MS = 30_000
"""Between two tries to stake: the deposit may come later than the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Who this node is, and what its owner wants of it."""

    network: NetworkId
    run: RunId
    roles: tuple[Role, ...]
    hardware: str = ""
    addresses: tuple[str, ...] = ()
    """Where others fetch weights from this node; none where it only calls out."""
    delegation: Delegated | None = None
    stake_nano: int = 0
    """What the node stakes of its own balance; 0 where its owner does that."""
    tokens_per_s: int = 1
    """Its own measurement."""
    audits_at_once: int = 1
    domain: Domain = EMBEDDED


class Membership:
    """One node's."""

    def __init__(self, node: NodeId, profile: Profile) -> None:
        self._node = node
        self._delegation = profile.delegation
        self._stake_nano = profile.stake_nano
        self._stake_ms = 0
        self.offer = NodeRegistered(roles=profile.roles, hardware=profile.hardware, addresses=profile.addresses)
        self.registered: NodeRegistered | None = None
        """What the log says of this node, as far as it knows."""
        self.is_known = False
        """The coordinator has answered a beat."""
        self.is_staked = profile.stake_nano == 0

    def recall(self, registered: NodeRegistered | None, is_staked: bool) -> None:
        self.registered = registered
        self.is_staked = self.is_staked or is_staked

    @property
    def is_outdated(self) -> bool:
        """The log knows another offer of this node."""
        return self.registered not in (None, self.offer)

    def miss_stake(self, amount_nano: int) -> None:
        """The run asks for so much more than stands behind this node."""
        self._stake_nano = amount_nano
        self.is_staked = amount_nano == 0

    def join(self, waiting: tuple[Parcel, ...], until_ms: int) -> list[Parcel]:
        """The coordinator does not know this key, or not what it offers; nothing where that is being told."""
        self.is_known = False
        if any(isinstance(parcel.entry, NodeRegistered) for parcel in waiting):
            return []
        entries = [self.offer] if self._delegation is None else [self.offer, self._delegation]
        return [Parcel(entry, None, until_ms) for entry in entries]

    def stake(self, waiting: tuple[Parcel, ...], now_ms: int, until_ms: int) -> list[Parcel]:
        """What is due for the node's stake."""
        if self.is_staked or not self.is_known or now_ms < self._stake_ms:
            return []
        self._stake_ms = now_ms + STAKE_RETRY_MS
        if any(isinstance(parcel.entry, Staked) for parcel in waiting):
            return []
        return [Parcel(Staked(node=self._node, amount_nano=self._stake_nano), None, until_ms)]
