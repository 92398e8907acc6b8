"""Whom this node knows, dials, pings, asks, drops and bans. Pure: events and `now_ms` in, effects out.

A peer is named by its peer id, which is free to make, so nothing here trusts a new one: what is known of strangers is
bounded for each host and in all, and three banned peers behind one address shut that address out for a while. Times
are of a clock that never jumps, but for cards, whose expiry their senders sign.
"""

from dataclasses import dataclass, field
from hashlib import sha256

from prime_protocol.addresses import PeerAddress
from prime_protocol.errors import RemoteError
from prime_runtime.p2p.peer_score import Fault, Score
from prime_runtime.rates import address_group

DIALS_MAX = 8
"""Dials under way at once: each may hold a socket until its deadline."""
DIAL_WAIT_MS = 1_000
DIAL_WAIT_MS_MAX = 600_000
ALONE_WAIT_MS_MAX = 15_000
"""Longest pause between two tries at one address of a bootstrap peer, while there is no connection at all."""
SILENT_MS = 30_000
"""A connected peer that has not begun to gossip by then takes a place for nothing."""
PINGS_MISSED_MAX = 2
FORGET_FAILURES = 6
"""A peer is forgotten when each of its addresses has failed so often in a row; some ten minutes of trying."""
GROUP_BANS_MAX = 3
LOOPBACK = ("127.0.0.1", "::/64")
"""This machine: whoever is on it can do worse than gossip, and several nodes may be. No limit for one address here."""


@dataclass(frozen=True, slots=True)
class Dial:
    peer: str
    address: str


@dataclass(frozen=True, slots=True)
class Drop:
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    peer: str


@dataclass(frozen=True, slots=True)
class Ask:
    """For other peers."""

    peer: str


Effect = Dial | Drop | Ping | Ask


@dataclass(slots=True)
class Place:
    """One address of a peer, and how dialling it went."""

    address: PeerAddress
    failures: int = 0
    wait_until_ms: int = 0


@dataclass(slots=True)
class Link:
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
class Peer:
    is_bootstrap: bool = False
    places: list[Place] = field(default_factory=list)
    card: bytes = b""
    card_until_ms: int = 0
    """Wall clock."""
    score: Score = field(default_factory=Score)
    link: Link | None = None
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


class PeerTable:
    """Everything known of other peers."""

    def __init__(self, own_peer: str, limits: PeerLimits, *, salt: bytes) -> None:
        self._own_peer = own_peer
        self._limits = limits
        self._salt = salt
        self._peers: dict[str, Peer] = {}
        self._hosts: dict[str, set[str]] = {}
        """Peers by the host of each of their addresses."""

    @property
    def known(self) -> int:
        """Peers that could be dialled."""
        return sum(1 for peer in self._peers.values() if peer.places)

    @property
    def connected(self) -> int:
        return sum(1 for peer in self._peers.values() if peer.link)

    @property
    def linked(self) -> list[str]:
        return [name for name, peer in self._peers.items() if peer.link]

    def count_banned(self, now_ms: int) -> int:
        return sum(1 for peer in self._peers.values() if peer.score.is_banned(now_ms))

    def is_banned(self, name: str, now_ms: int) -> bool:
        peer = self._peers.get(name)
        return peer is not None and peer.score.is_banned(now_ms)

    def is_shut_out(self, group: str, now_ms: int) -> bool:
        """Enough peers behind this address are banned that the next one is not worth a handshake."""
        if group in LOOPBACK:
            return False
        banned = [peer for peer in self._peers.values() if peer.score.group == group and peer.score.is_banned(now_ms)]
        return len(banned) >= GROUP_BANS_MAX

    def add_bootstrap(self, addresses: list[str]) -> None:
        for text in addresses:
            address = PeerAddress.parse(text)
            if address.peer != self._own_peer:
                self._peers.setdefault(address.peer, Peer()).is_bootstrap = True
                self._place(address)

    def learn(self, addresses: tuple[PeerAddress, ...], *, card: bytes, until_ms: int, now_ms: int) -> bool:
        """A peer's card, or the addresses it was found at where `card` is empty. True if there was room for it."""
        (name,) = {address.peer for address in addresses}
        if name == self._own_peer or self.is_banned(name, now_ms):
            return False
        peer = self._peers.get(name)
        if peer is None and len(self._peers) >= self._limits.known_max and not self._forget_worst(now_ms):
            return False
        is_placed = [self._place(address) for address in addresses]
        peer = self._peers.get(name)
        if peer is None or not any(is_placed):
            return False
        if card and until_ms > peer.card_until_ms:
            kept = {str(address) for address in addresses}
            peer.card, peer.card_until_ms = card, until_ms
            if not peer.is_bootstrap:
                # The newest card is the whole truth about a peer; a moved one is not dialled at its old place.
                self._drop_places(name, [place for place in peer.places if str(place.address) not in kept])
        return True

    def cards(self, asker: str, *, count_max: int, wall_ms: int) -> list[bytes]:
        """Living cards for somebody who asks: connected peers first, then in an order that nobody can foresee."""
        living = [(n, p) for n, p in self._peers.items() if p.card and p.card_until_ms > wall_ms and n != asker]
        living.sort(key=lambda item: (item[1].link is None, self._shuffle(item[0] + asker)))
        return [peer.card for _, peer in living[:count_max]]

    def connected_to(self, name: str, host: str, now_ms: int) -> list[Effect]:
        peer = self._peers.setdefault(name, Peer())
        if peer.score.is_banned(now_ms):
            return [Drop(name, "is banned")]
        if peer.link is None:
            peer.score.group = address_group(host)
            peer.link = Link(now_ms, now_ms + self._limits.ping_ms, now_ms)
        return []

    def disconnected(self, name: str, now_ms: int) -> None:
        peer = self._peers.get(name)
        if peer is None:
            return
        if peer.link is not None and now_ms - peer.link.since_ms < DIAL_WAIT_MS_MAX:
            # Who hangs up at once is not dialled again at once.
            for place in peer.places:
                place.wait_until_ms = max(place.wait_until_ms, now_ms + DIAL_WAIT_MS)
        peer.link = None
        self._forget_if_empty(name, now_ms)

    def disconnect_all(self, now_ms: int) -> None:
        """The libp2p half has died: its connections are gone, what is known of peers is not."""
        for name in list(self._peers):
            self._peers[name].is_dialling = False
            self.disconnected(name, now_ms)

    def speaking(self, name: str) -> None:
        """It has begun to gossip."""
        if (peer := self._peers.get(name)) and peer.link:
            peer.link.is_speaking = True

    def dialled(self, name: str, address: str, *, is_open: bool, now_ms: int) -> None:
        peer = self._peers.get(name)
        if peer is None:
            return
        peer.is_dialling = False
        for place in peer.places:
            if str(place.address) == address:
                place.failures = 0 if is_open else place.failures + 1
                wait_ms = min(DIAL_WAIT_MS_MAX, DIAL_WAIT_MS << min(20, place.failures))
                place.wait_until_ms = now_ms + (DIAL_WAIT_MS if is_open else wait_ms)
        is_hopeless = not peer.is_bootstrap and all(p.failures >= FORGET_FAILURES for p in peer.places)
        if is_hopeless and peer.link is None and not peer.score.is_banned(now_ms):
            self._forget(name)

    def pinged(self, name: str, *, is_answered: bool, now_ms: int) -> list[Effect]:
        peer = self._peers.get(name)
        if peer is None or peer.link is None:
            return []
        link = peer.link
        link.is_pinging = False
        link.ping_at_ms = now_ms + self._limits.ping_ms
        link.pings_missed = 0 if is_answered else link.pings_missed + 1
        if link.pings_missed >= PINGS_MISSED_MAX:
            return [Drop(name, f"did not answer {link.pings_missed} pings")]
        if not is_answered:
            link.ping_at_ms = now_ms
        return []

    def asked(self, name: str, now_ms: int) -> None:
        peer = self._peers.get(name)
        if peer is not None and peer.link is not None:
            peer.link.is_asking = False
            peer.link.ask_at_ms = now_ms + self._limits.ask_ms

    def behaved(self, name: str, now_ms: int) -> None:
        """It told us something new and true."""
        if peer := self._peers.get(name):
            peer.score.reward(now_ms)

    def misbehaved(self, name: str, fault: Fault, now_ms: int) -> list[Effect]:
        peer = self._peers.get(name)
        if peer is None or not peer.score.blame(fault, now_ms):
            return []
        return [Drop(name, f"is banned: {fault.value}")] if peer.link else []

    def tick(self, now_ms: int) -> list[Effect]:
        """What is due. Called about once a second."""
        self._sweep(now_ms)
        effects: list[Effect] = []
        for name, peer in self._peers.items():
            if peer.link is not None:
                effects += self._tend(name, peer, peer.link, now_ms)
        return effects + self._choose_dials(now_ms)

    def _tend(self, name: str, peer: Peer, link: Link, now_ms: int) -> list[Effect]:
        if not link.is_speaking and now_ms - link.since_ms >= SILENT_MS:
            return [Drop(name, "does not gossip")]
        effects: list[Effect] = []
        if not link.is_pinging and now_ms >= link.ping_at_ms:
            link.is_pinging = True
            effects.append(Ping(name))
        if link.is_speaking and not link.is_asking and now_ms >= link.ask_at_ms:
            link.is_asking = True
            effects.append(Ask(name))
        return effects

    def _choose_dials(self, now_ms: int) -> list[Effect]:
        dialling = sum(1 for peer in self._peers.values() if peer.is_dialling)
        connected = self.connected
        wanted = min(self._limits.target - connected - dialling, DIALS_MAX - dialling)
        ready: list[tuple[tuple[int, float, bytes], str, Place]] = []
        for name, peer in self._peers.items():
            if peer.link or peer.is_dialling or not peer.places or peer.score.is_banned(now_ms):
                continue
            place = min(peer.places, key=lambda place: (self._wait_until(peer, place, connected), place.failures))
            if self._wait_until(peer, place, connected) <= now_ms:
                ready.append(((place.failures, -peer.score.at(now_ms), self._shuffle(name)), name, place))
        ready.sort(key=lambda item: item[0])
        for _, name, _ in ready[: max(0, wanted)]:
            self._peers[name].is_dialling = True
        return [Dial(name, str(place.address)) for _, name, place in ready[: max(0, wanted)]]

    def _wait_until(self, peer: Peer, place: Place, connected: int) -> int:
        """Re-bootstrap: who has lost everybody does not wait ten minutes for those it was told to begin with."""
        if connected or not peer.is_bootstrap or not place.failures:
            return place.wait_until_ms
        waited_ms = min(DIAL_WAIT_MS_MAX, DIAL_WAIT_MS << min(20, place.failures))
        return place.wait_until_ms - max(0, waited_ms - ALONE_WAIT_MS_MAX)

    def _place(self, address: PeerAddress) -> bool:
        """Remember one address, unless too many peers are said to be on that host."""
        peer = self._peers.get(address.peer)
        host = address_group(address.host) if address.family.startswith("ip") else address.host
        if peer is not None and any(place.address == address for place in peer.places):
            return True
        here = self._hosts.setdefault(host, set())
        is_wanted = host in LOOPBACK or (peer is not None and peer.is_bootstrap)
        if address.peer not in here and len(here) >= self._limits.per_host_max and not is_wanted:
            return False
        here.add(address.peer)
        self._peers.setdefault(address.peer, Peer()).places.append(Place(address))
        return True

    def _drop_places(self, name: str, places: list[Place]) -> None:
        peer = self._peers[name]
        peer.places = [place for place in peer.places if place not in places]
        for place in places:
            address = place.address
            host = address_group(address.host) if address.family.startswith("ip") else address.host
            if any(other.address.host == address.host for other in peer.places):
                continue
            here = self._hosts.get(host, set())
            here.discard(name)
            if not here:
                self._hosts.pop(host, None)

    def _forget(self, name: str) -> None:
        self._drop_places(name, list(self._peers[name].places))
        del self._peers[name]

    def _forget_if_empty(self, name: str, now_ms: int) -> None:
        """A stranger that came and went leaves nothing behind, unless it is banned."""
        peer = self._peers[name]
        if not peer.places and not peer.score.is_banned(now_ms):
            del self._peers[name]

    def _sweep(self, now_ms: int) -> None:
        """Strangers whose ban is over are forgotten; of those still banned, no more are kept than of all others."""
        gone = [(p.score.banned_until_ms, n) for n, p in self._peers.items() if not p.places and p.link is None]
        gone.sort()
        for until_ms, name in gone:
            if until_ms <= now_ms or len(gone) > self._limits.known_max:
                del self._peers[name]
                gone = gone[1:]

    def _forget_worst(self, now_ms: int) -> bool:
        """Make room for a newcomer; False if everybody known is worth more than a stranger."""
        idle = [
            (max((place.failures for place in peer.places), default=0), -peer.score.at(now_ms), name)
            for name, peer in self._peers.items()
            if peer.link is None and not peer.is_bootstrap and not peer.is_dialling and not peer.score.is_banned(now_ms)
        ]
        worst = max(idle, default=None)
        if worst is None or (worst[0] == 0 and worst[1] <= 0):
            return False
        self._forget(worst[2])
        return True

    def _shuffle(self, name: str) -> bytes:
        return sha256(self._salt + name.encode()).digest()


def parse_address(text: str) -> PeerAddress | None:
    """An address as the library prints it, if it is one that others can be told."""
    try:
        return PeerAddress.parse(text)
    except RemoteError:
        return None
