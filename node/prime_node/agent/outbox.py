"""Entries on their way to the log: one at a time, in order, again until there is an answer. Pure.

The log takes the entries of one author only with rising sequence numbers, so two in flight could overtake each other
and the first would be refused.

What a node tells the log of itself: that it is there, for whom it works, and what stands behind it. Pure.

The log is the authority. What was told before is remembered so that a changed offer is told again.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from prime_node.agent.events import PendingEntry
from prime_protocol.ledger.entries import Delegated, NodeRegistered, Role, Staked
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.rpc import Refusal, RefusalCode
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain

BACKOFF_MS = 1_000
BACKOFF_MS_MAX = 30_000
"""Between two attempts, doubling. A coordinator that restarts is back within seconds; one that does not must not be
hammered."""

TRANSIENT_CODES = frozenset(
    {
        RefusalCode.SLOW,
        RefusalCode.RATE_LIMITED,
        RefusalCode.INTERNAL,
        RefusalCode.OVERLOADED,
        RefusalCode.RESTARTED,
        RefusalCode.TIMED_OUT,
        RefusalCode.REPLAYED,
        RefusalCode.CLOCK,
    }
)
"""Refusals that say nothing about the request itself: sealed anew, it may pass."""

STALE_FIELDS = frozenset({"Letter.sequence", "Letter.expires_at_ms", "Letter.issued_at_ms"})
"""The envelope came too late or out of order; its content was not looked at."""


def is_final(refusal: Refusal) -> bool:
    """Whether asking again would get the same answer."""
    return refusal.code not in TRANSIENT_CODES and refusal.field not in STALE_FIELDS


def backoff_ms(attempts: int, dice: Random) -> int:
    """Half fixed, half drawn, so that nodes that failed together do not come back together."""
    span_ms = min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** min(attempts, 10))
    return int(span_ms * (0.5 + 0.5 * dice.random()))


class Outbox:
    """First in, first out, and nothing overtakes."""

    def __init__(self, parcels: Iterable[PendingEntry] = ()) -> None:
        self._entries = deque(parcels)
        self._attempts = 0
        self.due_ms = 0
        """When the first may be sent; meaningless while it is on its way."""

    def __len__(self) -> int:
        return len(self._entries)

    def list_entries(self) -> tuple[PendingEntry, ...]:
        return tuple(self._entries)

    def push(self, parcel: PendingEntry) -> None:
        self._entries.append(parcel)

    def drop_stale(self, server_ms: int) -> list[PendingEntry]:
        """Take out what comes too late from the front. Not while the first is on its way."""
        stale = []
        while self._entries and server_ms > self._entries[0].until_ms:
            stale.append(self.pop())
        return stale

    def first(self) -> PendingEntry:
        return self._entries[0]

    def pop(self) -> PendingEntry:
        """The first has its answer."""
        self._attempts = 0
        self.due_ms = 0
        return self._entries.popleft()

    def schedule_retry(self, now_ms: int, dice: Random, retry_after_ms: int = 0) -> None:
        """The first has to be sent again."""
        self.due_ms = now_ms + retry_after_ms + backoff_ms(self._attempts, dice)
        self._attempts += 1


REGISTRATION_TTL_MS = 3_600_000
"""How long an entry that joins the network is tried."""

STAKE_RETRY_MS = 30_000
"""Between two tries to stake: the deposit may come later than the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
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
    domain: Domain = EMBEDDED_DOMAIN


class Membership:
    """One node's."""

    def __init__(self, node: NodeId, profile: NodeProfile) -> None:
        self._node = node
        self._delegation = profile.delegation
        self._stake_nano = profile.stake_nano
        self._stake_ms = 0
        self.registration = NodeRegistered(roles=profile.roles, hardware=profile.hardware, addresses=profile.addresses)
        self.registered: NodeRegistered | None = None
        """What the log says of this node, as far as it knows."""
        self.is_known = False
        """The coordinator has answered a beat."""
        self.is_staked = profile.stake_nano == 0

    def restore(self, registered: NodeRegistered | None, is_staked: bool) -> None:
        self.registered = registered
        self.is_staked = self.is_staked or is_staked

    @property
    def is_outdated(self) -> bool:
        """The log knows another offer of this node."""
        return self.registered not in (None, self.registration)

    def set_missing_stake(self, amount_nano: int) -> None:
        """The run asks for so much more than stands behind this node."""
        self._stake_nano = amount_nano
        self.is_staked = amount_nano == 0

    def make_registration(self, waiting: tuple[PendingEntry, ...], until_ms: int) -> list[PendingEntry]:
        """The coordinator does not know this key, or not what it offers; nothing where that is being told."""
        self.is_known = False
        if any(isinstance(parcel.entry, NodeRegistered) for parcel in waiting):
            return []
        entries = [self.registration] if self._delegation is None else [self.registration, self._delegation]
        return [PendingEntry(entry, None, until_ms) for entry in entries]

    def make_stake(self, waiting: tuple[PendingEntry, ...], now_ms: int, until_ms: int) -> list[PendingEntry]:
        """What is due for the node's stake."""
        if self.is_staked or not self.is_known or now_ms < self._stake_ms:
            return []
        self._stake_ms = now_ms + STAKE_RETRY_MS
        if any(isinstance(parcel.entry, Staked) for parcel in waiting):
            return []
        return [PendingEntry(Staked(node=self._node, amount_nano=self._stake_nano), None, until_ms)]
