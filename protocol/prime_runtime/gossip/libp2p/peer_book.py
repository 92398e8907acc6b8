"""How well one peer has behaved: a number that forgets, and bans that end. Pure; the time comes in.

Everybody this node has heard of: addresses, cards, scores, and who is forgotten first. Pure.

A peer is named by its peer id, which is free to make, so nothing here trusts a new one: what is known of strangers is
bounded for each host and in all, and three banned peers behind one address shut that address out for a while. Whom to
dial and to keep is in peers.py.
"""

from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from ipaddress import ip_address

from prime_protocol.wire.addresses import PeerAddress
from prime_runtime.rate_limits import address_group

HALF_LIFE_MS = 300_000
"""Both good and bad deeds count half as much after five minutes."""
SCORE_MAX = 20.0
"""Good deeds are cheap, so they buy little: one forged message more than a stranger may send."""
BAN_BELOW = -100.0
BAN_MS = 600_000
BAN_MS_MAX = 24 * 3_600_000
"""A ban lasts ten minutes, and twice as long each time, up to a day."""


class PeerFault(Enum):
    """What a peer can do wrong."""

    FORGED = "passed on a message that no honest peer would"
    GARBAGE = "sent bytes that are no protocol"
    BAD_CARD = "handed out a peer card that is none"
    FLOOD = "sent more than it may"


FAULT_POINTS = {PeerFault.FORGED: 21.0, PeerFault.GARBAGE: 35.0, PeerFault.BAD_CARD: 21.0, PeerFault.FLOOD: 1.0}
"""Points lost. Five forged messages, or a hundred too many, within a minute or so are a ban."""


@dataclass(slots=True)
class PeerScore:
    """0 for a stranger. Below the limit it is banned, and begins anew when the ban ends."""

    points: float = 0.0
    at_ms: int = 0
    bans: int = 0
    banned_until_ms: int = 0
    group: str = ""
    """Where its last connection came from."""

    def at(self, now_ms: int) -> float:
        passed_ms = max(0, now_ms - self.at_ms)
        return float(self.points * 0.5 ** (passed_ms / HALF_LIFE_MS))

    def is_banned(self, now_ms: int) -> bool:
        return now_ms < self.banned_until_ms

    def reward(self, now_ms: int) -> None:
        self._set(min(SCORE_MAX, self.at(now_ms) + 1.0), now_ms)

    def penalize(self, fault: PeerFault, now_ms: int) -> bool:
        """True if this was what it took to be banned."""
        if self.is_banned(now_ms):
            return False
        self._set(self.at(now_ms) - FAULT_POINTS[fault], now_ms)
        if self.points > BAN_BELOW:
            return False
        self.banned_until_ms = now_ms + min(BAN_MS_MAX, BAN_MS << min(10, self.bans))
        self.bans += 1
        self._set(0.0, now_ms)
        return True

    def _set(self, points: float, now_ms: int) -> None:
        self.points = points
        self.at_ms = max(self.at_ms, now_ms)


GROUP_BANS_MAX = 3
LOOPBACK = ("127.0.0.1", "::/64")
"""This machine: whoever is on it can do worse than gossip, and several nodes may be. No limit for one address here."""


@dataclass(slots=True)
class DialTarget:
    """One address of a peer, and how dialling it went."""

    address: PeerAddress
    failures: int = 0
    wait_until_ms: int = 0


@dataclass(slots=True)
class PeerConnection:
    """An open connection."""

    since_ms: int
    ping_at_ms: int
    ask_at_ms: int
    pings_missed: int = 0
    is_pinging: bool = False
    is_asking: bool = False
    is_speaking: bool = False
    """It takes part in gossip."""


@dataclass(slots=True)
class KnownPeer:
    is_bootstrap: bool = False
    targets: list[DialTarget] = field(default_factory=list)
    card: bytes = b""
    card_until_ms: int = 0
    """Wall clock."""
    score: PeerScore = field(default_factory=PeerScore)
    link: PeerConnection | None = None
    is_dialling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """How many of what; from the settings."""

    target: int
    """Connections that this node tries to have."""
    known_max: int
    per_host_max: int
    """Most peers known with an address on one host."""
    ping_ms: int
    ask_ms: int
    allow_private: bool = False
    """Dial what strangers say is in a private network. Else a card could send every node to the owner's router."""


class PeerBook:
    """What is known of other peers."""

    def __init__(self, own_peer: str, limits: PeerLimits, *, salt: bytes) -> None:
        self._own_peer = own_peer
        self._limits = limits
        self._salt = salt
        self.peers: dict[str, KnownPeer] = {}
        self._hosts: dict[str, set[str]] = {}
        """Peers by the host of each of their addresses."""

    @property
    def known(self) -> int:
        """Peers that could be dialled."""
        return sum(1 for peer in self.peers.values() if peer.targets)

    def count_banned(self, now_ms: int) -> int:
        return sum(1 for peer in self.peers.values() if peer.score.is_banned(now_ms))

    def is_banned(self, name: str, now_ms: int) -> bool:
        peer = self.peers.get(name)
        return peer is not None and peer.score.is_banned(now_ms)

    def is_shut_out(self, group: str, now_ms: int) -> bool:
        """Enough peers behind this address are banned that the next one is not worth a handshake."""
        if group in LOOPBACK:
            return False
        banned = [peer for peer in self.peers.values() if peer.score.group == group and peer.score.is_banned(now_ms)]
        return len(banned) >= GROUP_BANS_MAX

    def add_bootstrap(self, addresses: list[str]) -> None:
        for text in addresses:
            address = PeerAddress.parse(text)
            if address.peer != self._own_peer:
                self.peers.setdefault(address.peer, KnownPeer()).is_bootstrap = True
                self._place(address)

    def learn(self, addresses: tuple[PeerAddress, ...], *, card: bytes, until_ms: int, now_ms: int) -> bool:
        """A peer's card, or the addresses it was found at where `card` is empty. True if there was room for it."""
        (name,) = {address.peer for address in addresses}
        addresses = tuple(address for address in addresses if self._may_dial(address))
        if not addresses or name == self._own_peer or self.is_banned(name, now_ms):
            return False
        peer = self.peers.get(name)
        if peer is None and len(self.peers) >= self._limits.known_max and not self._forget_worst(now_ms):
            return False
        is_placed = [self._place(address) for address in addresses]
        peer = self.peers.get(name)
        if peer is None or not any(is_placed):
            return False
        if card and until_ms > peer.card_until_ms:
            kept = {str(address) for address in addresses}
            peer.card, peer.card_until_ms = card, until_ms
            if not peer.is_bootstrap:
                # The newest card is the whole truth about a peer; a moved one is not dialled at its old place.
                self._drop_places(name, [place for place in peer.targets if str(place.address) not in kept])
        return True

    def _may_dial(self, address: PeerAddress) -> bool:
        """A name may still lead inside; who resolves it sees no more of it than whether a libp2p host answers."""
        is_name = address.family.startswith("dns")
        return self._limits.allow_private or is_name or ip_address(address.host).is_global

    def cards(self, asker: str, *, count_max: int, wall_ms: int) -> list[bytes]:
        """Living cards for somebody who asks: connected peers first, then in an order that nobody can foresee."""
        living = [(n, p) for n, p in self.peers.items() if p.card and p.card_until_ms > wall_ms and n != asker]
        living.sort(key=lambda item: (item[1].link is None, self.shuffle(item[0] + asker)))
        return [peer.card for _, peer in living[:count_max]]

    def forget(self, name: str) -> None:
        self._drop_places(name, list(self.peers[name].targets))
        del self.peers[name]

    def forget_if_empty(self, name: str, now_ms: int) -> None:
        """A stranger that came and went leaves nothing behind, unless it is banned."""
        peer = self.peers[name]
        if not peer.targets and not peer.score.is_banned(now_ms):
            del self.peers[name]

    def sweep(self, now_ms: int) -> None:
        """Strangers whose ban is over are forgotten; of those still banned, no more are kept than of all others."""
        gone = [(p.score.banned_until_ms, n) for n, p in self.peers.items() if not p.targets and p.link is None]
        gone.sort()
        for until_ms, name in gone:
            if until_ms <= now_ms or len(gone) > self._limits.known_max:
                del self.peers[name]
                gone = gone[1:]

    def shuffle(self, name: str) -> bytes:
        return sha256(self._salt + name.encode()).digest()

    def _place(self, address: PeerAddress) -> bool:
        """Remember one address, unless too many peers are said to be on that host."""
        peer = self.peers.get(address.peer)
        host = address_group(address.host) if address.family.startswith("ip") else address.host
        if peer is not None and any(place.address == address for place in peer.targets):
            return True
        here = self._hosts.setdefault(host, set())
        is_wanted = host in LOOPBACK or (peer is not None and peer.is_bootstrap)
        if address.peer not in here and len(here) >= self._limits.per_host_max and not is_wanted:
            return False
        here.add(address.peer)
        self.peers.setdefault(address.peer, KnownPeer()).targets.append(DialTarget(address))
        return True

    def _drop_places(self, name: str, places: list[DialTarget]) -> None:
        peer = self.peers[name]
        peer.targets = [place for place in peer.targets if place not in places]
        for place in places:
            address = place.address
            host = address_group(address.host) if address.family.startswith("ip") else address.host
            if any(other.address.host == address.host for other in peer.targets):
                continue
            here = self._hosts.get(host, set())
            here.discard(name)
            if not here:
                self._hosts.pop(host, None)

    def _forget_worst(self, now_ms: int) -> bool:
        """Make room for a newcomer; False if everybody known is worth more than a stranger."""
        idle = [
            (max((place.failures for place in peer.targets), default=0), -peer.score.at(now_ms), name)
            for name, peer in self.peers.items()
            if peer.link is None and not peer.is_bootstrap and not peer.is_dialling and not peer.score.is_banned(now_ms)
        ]
        worst = max(idle, default=None)
        if worst is None or (worst[0] == 0 and worst[1] <= 0):
            return False
        self.forget(worst[2])
        return True
