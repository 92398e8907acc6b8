"""Which peers to dial, ping, ask, drop and ban. Pure: events and `now_ms` in, effects out.

peer_book.py stores the known peers. Times are monotonic, except that signed records expire by the wall clock.
"""

from collections import Counter
from dataclasses import dataclass

from prime_protocol.errors import RemoteError
from prime_protocol.wire.addresses import PeerAddress
from prime_protocol.wire.signing import compute_peer_address
from prime_runtime.gossip.config import ConnectedPeer
from prime_runtime.gossip.known_peers import get_range
from prime_runtime.gossip.libp2p.peer_book import DialTarget, KnownPeer, PeerBook, PeerConnection, PeerFault, PeerLimits
from prime_runtime.rate_limits import address_group

DIALS_MAX = 8
"""Concurrent dials: each may hold a socket until its deadline."""
DIAL_WAIT_MS = 1_000
DIAL_WAIT_MS_MAX = 600_000
ALONE_WAIT_MS_MAX = 15_000
"""Maximum pause between two dials of a bootstrap peer while there is no connection at all."""
SILENT_MS = 30_000
"""A connected peer that does not gossip by then is dropped."""
PINGS_MISSED_MAX = 2
ASK_RARELY = 4
"""A node with enough connections asks its peers for others this much more rarely. Each request costs both sides some
milliseconds; but a record lives for five minutes, and peers know only what they were told in that time."""
FORGET_FAILURES = 6
"""A peer is forgotten when each of its addresses has failed this often in a row: about ten minutes."""


@dataclass(frozen=True, slots=True)
class DialPeer:
    peer: str
    address: str


@dataclass(frozen=True, slots=True)
class DropPeer:
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class PingPeer:
    peer: str


@dataclass(frozen=True, slots=True)
class AskPeer:
    """Ask a peer for other peers."""

    peer: str


PeerEffect = DialPeer | DropPeer | PingPeer | AskPeer


class PeerTable:
    """Decides which connections to open, keep and close."""

    def __init__(self, own_peer: str, limits: PeerLimits, *, salt: bytes) -> None:
        self.book = PeerBook(own_peer, limits, salt=salt)
        self._limits = limits
        self._peers = self.book.peers

    @property
    def connected(self) -> int:
        return sum(1 for peer in self._peers.values() if peer.link)

    def list_connections(self, now_ms: int) -> tuple[ConnectedPeer, ...]:
        """Longest open first."""
        linked = [(peer.link, name, peer.source) for name, peer in self._peers.items() if peer.link]
        linked.sort(key=lambda item: item[0].since_ms)
        return tuple(
            ConnectedPeer(
                peer_id=name,
                node=str(compute_peer_address(name)),
                address=link.address,
                is_outbound=link.is_outbound,
                relay=link.relay,
                connected_ms=now_ms - link.since_ms,
                rtt_ms=link.rtt_ms,
                bytes_in=link.bytes_in,
                bytes_out=link.bytes_out,
                in_per_s=round(link.in_per_s),
                out_per_s=round(link.out_per_s),
                named_by=source,
            )
            for link, name, source in linked
        )

    def list_dialled(self) -> tuple[str, ...]:
        """The addresses at which connected peers were reached, longest connected first: worth a dial tomorrow."""
        linked = [(peer.link.since_ms, peer) for peer in self._peers.values() if peer.link]
        linked.sort(key=lambda item: item[0])
        return tuple(str(target.address) for _, peer in linked for target in peer.targets if target.is_reached)

    def connected_to(self, name: str, host: str, now_ms: int) -> list[PeerEffect]:
        peer = self._peers.setdefault(name, KnownPeer())
        if peer.score.is_banned(now_ms):
            return [DropPeer(name, "is banned")]
        if peer.link is None:
            peer.score.group = address_group(host)
            peer.link = PeerConnection(now_ms, now_ms + self._limits.ping_ms, now_ms, address=host)
        return []

    def disconnected(self, name: str, now_ms: int) -> None:
        peer = self._peers.get(name)
        if peer is None:
            return
        if peer.link is not None and now_ms - peer.link.since_ms < DIAL_WAIT_MS_MAX:
            # A peer that disconnects at once is not dialled again at once.
            for target in peer.targets:
                target.wait_until_ms = max(target.wait_until_ms, now_ms + DIAL_WAIT_MS)
        peer.link = None
        self.book.forget_if_empty(name, now_ms)

    def disconnect_all(self, now_ms: int) -> None:
        """The session has crashed: all connections are gone, the known peers stay."""
        for name in list(self._peers):
            self._peers[name].is_dialling = False
            self.disconnected(name, now_ms)

    def heard(self, name: str, at_ms: int) -> None:
        """Bytes came from the peer at that time: no ping is needed to know that it is there. The first is for the time
        that it takes."""
        link = peer.link if (peer := self._peers.get(name)) else None
        if link is not None and not link.is_pinging and link.rtt_ms is not None:
            link.ping_at_ms = max(link.ping_at_ms, at_ms + self._limits.ping_ms)

    def speaking(self, name: str) -> None:
        """The peer has started to gossip."""
        if (peer := self._peers.get(name)) and peer.link:
            peer.link.is_speaking = True

    def dialled(self, name: str, address: str, *, is_open: bool, now_ms: int) -> None:
        peer = self._peers.get(name)
        if peer is None:
            return
        peer.is_dialling = False
        for target in peer.targets:
            if str(target.address) == address:
                target.failures = 0 if is_open else target.failures + 1
                target.is_reached = is_open
                wait_ms = min(DIAL_WAIT_MS_MAX, DIAL_WAIT_MS << min(20, target.failures))
                target.wait_until_ms = now_ms + (DIAL_WAIT_MS if is_open else wait_ms)
        is_hopeless = not peer.is_bootstrap and all(p.failures >= FORGET_FAILURES for p in peer.targets)
        if is_hopeless and peer.link is None and not peer.score.is_banned(now_ms):
            self.book.forget(name)

    def pinged(self, name: str, *, is_answered: bool, now_ms: int, rtt_ms: int | None = None) -> list[PeerEffect]:
        peer = self._peers.get(name)
        if peer is None or peer.link is None:
            return []
        link = peer.link
        link.is_pinging = False
        link.ping_at_ms = now_ms + self._limits.ping_ms
        link.pings_missed = 0 if is_answered else link.pings_missed + 1
        link.rtt_ms = rtt_ms if is_answered else link.rtt_ms
        if link.pings_missed >= PINGS_MISSED_MAX:
            return [DropPeer(name, f"did not answer {link.pings_missed} pings")]
        if not is_answered:
            link.ping_at_ms = now_ms
        return []

    def asked(self, name: str, now_ms: int) -> None:
        peer = self._peers.get(name)
        if peer is not None and peer.link is not None:
            peer.link.is_asking = False
            is_enough = self.connected >= self._limits.target
            peer.link.ask_at_ms = now_ms + self._limits.ask_ms * (ASK_RARELY if is_enough else 1)

    def behaved(self, name: str, now_ms: int) -> None:
        """The peer sent a new valid message."""
        if peer := self._peers.get(name):
            peer.score.reward(now_ms)

    def misbehaved(self, name: str, fault: PeerFault, now_ms: int) -> list[PeerEffect]:
        peer = self._peers.get(name)
        if peer is None or not peer.score.penalize(fault, now_ms):
            return []
        return [DropPeer(name, f"is banned: {fault.value}")] if peer.link else []

    def tick(self, now_ms: int) -> list[PeerEffect]:
        """The effects that are due. Called several times a second."""
        self.book.sweep(now_ms)
        effects: list[PeerEffect] = []
        for name, peer in self._peers.items():
            if peer.link is not None:
                effects += self._tend(name, peer, peer.link, now_ms)
        return effects + self._choose_dials(now_ms)

    def _tend(self, name: str, peer: KnownPeer, link: PeerConnection, now_ms: int) -> list[PeerEffect]:
        if not link.is_speaking and now_ms - link.since_ms >= SILENT_MS:
            return [DropPeer(name, "does not gossip")]
        effects: list[PeerEffect] = []
        if not link.is_pinging and now_ms >= link.ping_at_ms:
            link.is_pinging = True
            effects.append(PingPeer(name))
        if link.is_speaking and not link.is_asking and now_ms >= link.ask_at_ms:
            link.is_asking = True
            effects.append(AskPeer(name))
        return effects

    def _choose_dials(self, now_ms: int) -> list[PeerEffect]:
        """The best of each address range and of each source first: many addresses of one owner are cheap."""
        dialling = sum(1 for peer in self._peers.values() if peer.is_dialling)
        connected = self.connected
        wanted = min(self._limits.target - connected - dialling, DIALS_MAX - dialling)
        if wanted <= 0:
            return []
        ready: list[tuple[tuple[int, float, bytes], str, DialTarget]] = []
        for name, peer in self._peers.items():
            if peer.link or peer.is_dialling or not peer.targets or peer.score.is_banned(now_ms):
                continue
            target = min(peer.targets, key=lambda target: (self._wait_until(peer, target, connected), target.failures))
            if self._wait_until(peer, target, connected) <= now_ms:
                ready.append(((target.failures, -peer.score.at(now_ms), self.book.shuffle(name)), name, target))
        ready.sort(key=lambda item: item[0])
        chosen: list[PeerEffect] = []
        ranges, sources = self._count_used()
        while ready and len(chosen) < wanted:
            # The sort is stable: among equals the first is the best.
            best = min(
                ready, key=lambda item: (ranges[get_range(item[2].address)], sources[self._peers[item[1]].source])
            )
            ready.remove(best)
            _, name, target = best
            self._peers[name].is_dialling = True
            ranges[get_range(target.address)] += 1
            sources[self._peers[name].source] += 1
            chosen.append(DialPeer(name, str(target.address)))
        return chosen

    def _count_used(self) -> tuple[Counter[str], Counter[str]]:
        """Address ranges and sources of the peers that this node is connected to, or is dialling."""
        ranges: Counter[str] = Counter()
        sources: Counter[str] = Counter()
        for peer in self._peers.values():
            if peer.link or peer.is_dialling:
                ranges.update({get_range(target.address) for target in peer.targets})
                sources[peer.source] += 1
        return ranges, sources

    def _wait_until(self, peer: KnownPeer, target: DialTarget, connected: int) -> int:
        """A node that has lost all peers does not wait ten minutes for its bootstrap peers."""
        if connected or not peer.is_bootstrap or not target.failures:
            return target.wait_until_ms
        waited_ms = min(DIAL_WAIT_MS_MAX, DIAL_WAIT_MS << min(20, target.failures))
        return target.wait_until_ms - max(0, waited_ms - ALONE_WAIT_MS_MAX)


def parse_peer_address(text: str) -> PeerAddress | None:
    """An address in the library's notation; None if it cannot be announced."""
    try:
        return PeerAddress.parse(text)
    except RemoteError:
        return None
