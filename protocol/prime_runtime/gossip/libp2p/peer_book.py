"""What this node knows of other peers: addresses, signed records, scores, bans, and which peer to forget first. Pure.

A peer id is free to create, so a new peer is never trusted: the number of known peers is bounded per host, per address
range, per peer that names them, and in total. Three banned peers behind one address block that address for a while.
peer_table.py decides which peers to dial and keep.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

from prime_protocol.wire.addresses import PeerAddress
from prime_runtime.gossip.known_peers import get_range, is_private
from prime_runtime.rate_limits import address_group

HALF_LIFE_MS = 300_000
"""Rewards and faults count half after five minutes."""
SCORE_MAX = 20.0
"""Rewards are cheap to earn, so they allow little: one forged message more than a new peer may send."""
BAN_BELOW = -100.0
BAN_MS = 600_000
BAN_MS_MAX = 24 * 3_600_000
"""A ban lasts ten minutes and doubles each time, up to a day."""


class PeerFault(Enum):
    """What a peer can do wrong; the value completes "it ..."."""

    FORGED = "forwarded a forged message"
    GARBAGE = "sent invalid bytes"
    BAD_CARD = "sent an invalid peer record"
    FLOOD = "exceeded a rate limit"


FAULT_POINTS = {PeerFault.FORGED: 21.0, PeerFault.GARBAGE: 35.0, PeerFault.BAD_CARD: 21.0, PeerFault.FLOOD: 1.0}
"""Points lost. Five forged messages, or a hundred excess ones, within about a minute cause a ban."""


@dataclass(slots=True)
class PeerScore:
    """0 for a new peer. A peer below the limit is banned; its score restarts at 0."""

    points: float = 0.0
    at_ms: int = 0
    bans: int = 0
    banned_until_ms: int = 0
    group: str = ""
    """Address group of its last connection."""

    def at(self, now_ms: int) -> float:
        passed_ms = max(0, now_ms - self.at_ms)
        return float(self.points * 0.5 ** (passed_ms / HALF_LIFE_MS))

    def is_banned(self, now_ms: int) -> bool:
        return now_ms < self.banned_until_ms

    def reward(self, now_ms: int) -> None:
        self._set(min(SCORE_MAX, self.at(now_ms) + 1.0), now_ms)

    def penalize(self, fault: PeerFault, now_ms: int) -> bool:
        """True if this fault causes a ban."""
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


RATE_MS = 10_000
GROUP_BANS_MAX = 3
SOURCE_SHARE = 8
"""One peer may name at most this part of the peers that are known ..."""
RANGE_SHARE = 8
"""... and at most this part may have addresses of one range, however many peers name them."""
LOOPBACK = ("127.0.0.1", "::/64")
"""This machine. Several nodes may run on it, so the limit per address does not apply."""


@dataclass(slots=True)
class DialTarget:
    """An address of a peer, and the result of dialling it."""

    address: PeerAddress
    failures: int = 0
    is_reached: bool = False
    """The last dial reached the peer."""
    wait_until_ms: int = 0


@dataclass(slots=True)
class PeerConnection:
    """An open connection."""

    since_ms: int
    ping_at_ms: int
    ask_at_ms: int
    address: str = ""
    is_outbound: bool = False
    relay: str = ""
    """Peer id of the relay through which it goes; empty: it is direct."""
    rtt_ms: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    counted_at_ms: int = 0
    pings_missed: int = 0
    is_pinging: bool = False
    is_asking: bool = False
    is_speaking: bool = False
    """The peer takes part in gossip."""

    def count(self, bytes_in: int, bytes_out: int, now_ms: int) -> None:
        """The bytes since it was opened. Rates are averages that fade over RATE_MS."""
        passed_ms = now_ms - (self.counted_at_ms or self.since_ms)
        if passed_ms > 0:
            share = min(1.0, passed_ms / RATE_MS)
            self.in_per_s += share * ((bytes_in - self.bytes_in) * 1000 / passed_ms - self.in_per_s)
            self.out_per_s += share * ((bytes_out - self.bytes_out) * 1000 / passed_ms - self.out_per_s)
        self.bytes_in, self.bytes_out, self.counted_at_ms = bytes_in, bytes_out, now_ms


@dataclass(slots=True)
class KnownPeer:
    is_bootstrap: bool = False
    source: str = ""
    """Who named it first: a peer id, `coordinator` or `saved`; empty: the settings, or it connected to us."""
    targets: list[DialTarget] = field(default_factory=list)
    record: bytes = b""
    record_until_ms: int = 0
    """Wall clock."""
    score: PeerScore = field(default_factory=PeerScore)
    link: PeerConnection | None = None
    is_dialling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """Limits from the settings."""

    target: int
    """Connections that this node tries to open."""
    known_max: int
    per_host_max: int
    """Maximum number of known peers with an address on one host."""
    ping_ms: int
    ask_ms: int
    allow_private: bool = False
    """Dial private addresses that peers announce. Otherwise a record could send every node to its owner's router."""


class PeerBook:
    """The known peers."""

    def __init__(self, own_peer: str, limits: PeerLimits, *, salt: bytes) -> None:
        self._own_peer = own_peer
        self._limits = limits
        self._salt = salt
        self.peers: dict[str, KnownPeer] = {}
        self._places: dict[str, set[str]] = {}
        """Peers by the host, and by the range, of each of their addresses."""
        self._named: Counter[str] = Counter()
        """Known peers by who named them first."""

    @property
    def known(self) -> int:
        """Peers with an address."""
        return sum(1 for peer in self.peers.values() if peer.targets)

    def count_banned(self, now_ms: int) -> int:
        return sum(1 for peer in self.peers.values() if peer.score.is_banned(now_ms))

    def is_banned(self, name: str, now_ms: int) -> bool:
        peer = self.peers.get(name)
        return peer is not None and peer.score.is_banned(now_ms)

    def is_blocked(self, group: str, now_ms: int) -> bool:
        """Whether too many peers of this address are banned, so that connections from it are refused."""
        if group in LOOPBACK:
            return False
        banned = [peer for peer in self.peers.values() if peer.score.group == group and peer.score.is_banned(now_ms)]
        return len(banned) >= GROUP_BANS_MAX

    def add_bootstrap(self, addresses: list[str]) -> None:
        """Peers for which the operator vouches, or the coordinator for itself: they are dialled at any address and are
        never forgotten. The addresses of each are complete: others that it had are dropped."""
        parsed = [PeerAddress.parse(text) for text in addresses]
        for address in parsed:
            if address.peer != self._own_peer:
                peer = self.peers.setdefault(address.peer, KnownPeer())
                peer.is_bootstrap = True
                self._add_target(address)
        for name in {address.peer for address in parsed} & self.peers.keys():
            old = [target for target in self.peers[name].targets if target.address not in parsed]
            self._drop_targets(name, old)

    def learn(
        self, addresses: tuple[PeerAddress, ...], *, record: bytes, until_ms: int, now_ms: int, source: str = ""
    ) -> bool:
        """Add a peer's signed record, or its addresses if `record` is empty. True if it was added.

        `source` named it. Each source may name only a share of the known peers, so that one cannot crowd out the rest.
        """
        (name,) = {address.peer for address in addresses}
        addresses = tuple(address for address in addresses if self._may_dial(address))
        if not addresses or name == self._own_peer or self.is_banned(name, now_ms):
            return False
        peer = self.peers.get(name)
        if peer is None and self._named[source] >= max(1, self._limits.known_max // SOURCE_SHARE):
            return False
        if peer is None and len(self.peers) >= self._limits.known_max and not self._forget_worst(now_ms):
            return False
        is_new = peer is None
        is_added = [self._add_target(address) for address in addresses]
        peer = self.peers.get(name)
        if peer is None or not any(is_added):
            return False
        if is_new and source:
            peer.source = source
            self._named[source] += 1
        if record and until_ms > peer.record_until_ms:
            kept = {str(address) for address in addresses}
            peer.record, peer.record_until_ms = record, until_ms
            if not peer.is_bootstrap:
                # The newest record is complete: a peer that moved is not dialled at its old addresses.
                self._drop_targets(name, [target for target in peer.targets if str(target.address) not in kept])
        return True

    def _may_dial(self, address: PeerAddress) -> bool:
        """A DNS name may still resolve to a private address; that reveals only whether a libp2p host answers there."""
        return self._limits.allow_private or not is_private(address)

    def list_records(self, asker: str, *, count_max: int, wall_ms: int) -> list[bytes]:
        """Valid records for a peer that asks: connected peers first, then in an unpredictable order."""
        living = [(n, p) for n, p in self.peers.items() if p.record and p.record_until_ms > wall_ms and n != asker]
        living.sort(key=lambda item: (item[1].link is None, self.shuffle(item[0] + asker)))
        return [peer.record for _, peer in living[:count_max]]

    def forget(self, name: str) -> None:
        self._drop_targets(name, list(self.peers[name].targets))
        self._remove(name)

    def _remove(self, name: str) -> None:
        source = self.peers.pop(name).source
        self._named[source] -= bool(source)
        if not self._named[source]:
            del self._named[source]

    def forget_if_empty(self, name: str, now_ms: int) -> None:
        """Forget a peer without addresses, unless it is banned."""
        peer = self.peers[name]
        if not peer.targets and not peer.score.is_banned(now_ms):
            self._remove(name)

    def sweep(self, now_ms: int) -> None:
        """Forget peers without addresses whose ban is over, and the oldest bans beyond the limit on known peers."""
        gone = [(p.score.banned_until_ms, n) for n, p in self.peers.items() if not p.targets and p.link is None]
        gone.sort()
        for until_ms, name in gone:
            if until_ms <= now_ms or len(gone) > self._limits.known_max:
                self._remove(name)
                gone = gone[1:]

    def shuffle(self, name: str) -> bytes:
        return sha256(self._salt + name.encode()).digest()

    def _add_target(self, address: PeerAddress) -> bool:
        """Add an address, unless too many peers claim that host or that address range."""
        peer = self.peers.get(address.peer)
        if peer is not None and any(target.address == address for target in peer.targets):
            return True
        host = _get_host(address)
        is_wanted = host in LOOPBACK or (peer is not None and peer.is_bootstrap)
        limits = {host: self._limits.per_host_max}
        if not is_private(address):
            limits[get_range(address)] = max(self._limits.per_host_max, self._limits.known_max // RANGE_SHARE)
        for place, count_max in limits.items():
            here = self._places.get(place, set())
            if address.peer not in here and len(here) >= count_max and not is_wanted:
                return False
        for place in _list_places(address):
            self._places.setdefault(place, set()).add(address.peer)
        self.peers.setdefault(address.peer, KnownPeer()).targets.append(DialTarget(address))
        return True

    def _drop_targets(self, name: str, targets: list[DialTarget]) -> None:
        peer = self.peers[name]
        peer.targets = [target for target in peer.targets if target not in targets]
        kept = {place for target in peer.targets for place in _list_places(target.address)}
        for place in {place for target in targets for place in _list_places(target.address)} - kept:
            here = self._places.get(place, set())
            here.discard(name)
            if not here:
                self._places.pop(place, None)

    def _forget_worst(self, now_ms: int) -> bool:
        """Forget the worst peer; False if every known peer is better than a new one."""
        idle = [
            (max((target.failures for target in peer.targets), default=0), -peer.score.at(now_ms), name)
            for name, peer in self.peers.items()
            if peer.link is None and not peer.is_bootstrap and not peer.is_dialling and not peer.score.is_banned(now_ms)
        ]
        worst = max(idle, default=None)
        if worst is None or (worst[0] == 0 and worst[1] <= 0):
            return False
        self.forget(worst[2])
        return True


def _get_host(address: PeerAddress) -> str:
    return address_group(address.host) if address.family.startswith("ip") else address.host


def _list_places(address: PeerAddress) -> set[str]:
    """The host and the address range, which are the same for a DNS name."""
    return {_get_host(address), get_range(address)}
