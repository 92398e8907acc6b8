"""One life of the libp2p half, in the trio thread: runs host and gossip, and carries out what the table decides.

What survives a crash (the peer table, the guard, the counters) is handed in by the supervisor.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

import trio
from libp2p.abc import INotifee
from libp2p.host.ping import PingService
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from prime_protocol.constants import PEER_CARDS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.gossip import (
    Gossip,
    GossipKind,
    PeerCard,
    PeersKnown,
    PeersWanted,
    life_ms,
    open_card,
    seal_gossip,
)
from prime_protocol.gossip_guard import GossipGuard
from prime_protocol.ids import NetworkId, RunId
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.p2p.exchange import FAILURES, Exchange, is_malice
from prime_runtime.p2p.gossip import Gossiping
from prime_runtime.p2p.guard import Doors, apply_patches, check_library, quiet_logs
from prime_runtime.p2p.host import make_host, resolve, run_host, told_addresses
from prime_runtime.p2p.kademlia import Kademlia
from prime_runtime.p2p.peer_score import Fault
from prime_runtime.p2p.peers import Ask, Dial, Drop, Effect, PeerTable, Ping, parse_address
from prime_runtime.p2p.rare_log import RareLog
from prime_runtime.p2p.window import apply_window_patch, remove_window_patch
from prime_runtime.p2p_config import P2PConfig
from prime_runtime.sequence import Sequence

TICK_S = 0.25
"""How often the table is asked what is due: a node that lost everybody dials again in so long."""
PING_MS_MIN, PING_MS_MAX = 1_000, 10_000
"""Bounds of the time for an answer to a ping; between them it is the pause between two."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """Plain numbers: written in the trio thread, read in any."""

    connected: int = 0
    known: int = 0
    banned: int = 0
    messages_in: int = 0
    messages_out: int = 0
    messages_refused: int = 0
    messages_ignored: int = 0
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """What outlives a session."""

    key: WalletKey
    network: NetworkId
    config: P2PConfig
    clock: Clock
    guard: GossipGuard
    sequence: Sequence
    table: PeerTable
    deliver: Callable[[Gossip], None]
    runs: list[RunId] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


class Session(INotifee):
    """Everything that happens between one start of the trio side and its end."""

    def __init__(self, lasting: Lasting, listen: str) -> None:
        self._its = lasting
        self._listen = listen
        self._table = lasting.table
        self._nursery: trio.Nursery | None = None
        self._card = b""
        self._card_until_ms = 0
        self._log = RareLog(log, self._now_ms)
        config = lasting.config
        doors = Doors(
            # Strangers never take the places of the peers that this node dials itself.
            connections_max=max(1, config.connections_max - config.peers_target),
            per_address_max=config.connections_per_address_max,
            is_shut_out=lambda group: self._table.book.is_shut_out(group, self._now_ms()),
            blame=self.blame,
        )
        self.host = make_host(lasting.key, config, doors)
        self.gossiping = Gossiping(self.host, lasting.network, lasting.guard, self, now_ms=lasting.clock.now_ms)
        self._exchange = Exchange(self.host, answer=self._answer, now_ms=self._now_ms, blame=self.blame)
        self._pings = PingService(self.host)
        self._kademlia = Kademlia(self.host) if config.kademlia else None

    async def main(self, ready: Callable[[], None], stopping: trio.Event) -> None:
        """Until it is asked to stop, or the library dies of something that the guard did not hold off."""
        network = self.host.get_network()
        network.register_notifee(self)
        async with run_host(self.host, self._listen):
            self._its.counts.addresses = told_addresses(self.host, self._its.key, self._its.config)
            async with (
                background_trio_service(self.gossiping.router),
                background_trio_service(self.gossiping.pubsub),
                trio.open_nursery() as nursery,
            ):
                self._nursery = nursery
                await self.gossiping.pubsub.wait_until_ready()
                for run in self._its.runs:
                    await self.gossiping.join(run)
                if self._kademlia is not None:
                    nursery.start_soon(self._kademlia.run, self._found)
                nursery.start_soon(self._tick)
                ready()
                await stopping.wait()
                self._nursery = None
                nursery.cancel_scope.cancel()

    async def join(self, run: RunId) -> None:
        await self.gossiping.join(run)

    async def publish(self, name: str, frame: bytes) -> None:
        await self.gossiping.publish(name, frame)
        self._its.counts.messages_out += 1

    # What the gossip half reports.

    def accepted(self, gossip: Gossip, forwarder: str) -> None:
        self._its.counts.messages_in += 1
        self._table.behaved(forwarder, self._now_ms())
        self._its.deliver(gossip)

    def refused(self, forwarder: str, *, is_hostile: bool) -> None:
        self._its.counts.messages_refused += 1
        if is_hostile:
            self.blame(forwarder, Fault.FORGED)

    def ignored(self) -> None:
        self._its.counts.messages_ignored += 1

    def blame(self, peer: str, fault: Fault) -> None:
        self._carry_out(self._table.misbehaved(peer, fault, self._now_ms()))

    # What the library reports.

    async def connected(self, network: Any, conn: Any) -> None:
        peer = str(conn.muxed_conn.peer_id)
        remote = conn.muxed_conn.get_remote_address()
        self._carry_out(self._table.connected_to(peer, remote[0] if remote else "", self._now_ms()))
        self._count()

    async def disconnected(self, network: Any, conn: Any) -> None:
        peer_id = conn.muxed_conn.peer_id
        if any(not other.is_closed for other in network.get_connections(peer_id) if other is not conn):
            return
        self._table.disconnected(str(peer_id), self._now_ms())
        # Else the library keeps a record of every key that ever came by.
        if self.host.get_peerstore().has_peer(peer_id):
            self.host.get_peerstore().clear_peerdata(peer_id)
        self._count()

    async def opened_stream(self, network: Any, stream: Any) -> None: ...

    async def closed_stream(self, network: Any, stream: Any) -> None: ...

    async def listen(self, network: Any, multiaddr: Any) -> None: ...

    async def listen_close(self, network: Any, multiaddr: Any) -> None: ...

    # What the table decides.

    async def _tick(self) -> None:
        while True:
            for peer in self.gossiping.speakers():
                self._table.speaking(peer)
            self._carry_out(self._table.tick(self._now_ms()))
            self._count()
            await trio.sleep(TICK_S)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        if self._nursery is None:
            return
        for effect in effects:
            self._nursery.start_soon(self._attempt, effect)

    async def _attempt(self, effect: Effect) -> None:
        try:
            match effect:
                case Dial():
                    await self._dial(effect)
                case Drop():
                    await self._drop(effect)
                case Ping():
                    await self._ping(effect)
                case Ask():
                    await self._ask(effect)
                case _:
                    assert_never(effect)
        except Exception as error:  # boundary: what the library makes of one peer costs that peer alone
            log.debug("%s failed", effect, exc_info=error)

    async def _dial(self, dial: Dial) -> None:
        """One address: the library would try one of a list, and then refuse the peer for a minute."""
        peer_id = ID.from_base58(dial.peer)
        network = self.host.get_network()
        is_open = False
        try:
            with trio.move_on_after(self._its.config.call_ms / 1000):
                await network.dial_addr(Multiaddr(await resolve(dial.address)), peer_id)
                is_open = True
        finally:
            network.unblock_peer(peer_id)
            self._table.dialled(dial.peer, dial.address, is_open=is_open, now_ms=self._now_ms())

    async def _drop(self, drop: Drop) -> None:
        self._log.say(logging.INFO, "peer %s dropped: it %s", drop.peer, drop.reason)
        with trio.move_on_after(self._its.config.call_ms / 1000):
            await self.host.get_network().close_peer(ID.from_base58(drop.peer))
        self._table.disconnected(drop.peer, self._now_ms())
        self._count()

    async def _ping(self, ping: Ping) -> None:
        is_answered = False
        limit_ms = min(PING_MS_MAX, max(PING_MS_MIN, self._its.config.ping_ms))
        try:
            with trio.move_on_after(limit_ms / 1000):
                await self._pings.ping(ID.from_base58(ping.peer), 1)
                is_answered = True
        finally:
            self._carry_out(self._table.pinged(ping.peer, is_answered=is_answered, now_ms=self._now_ms()))

    async def _ask(self, ask: Ask) -> None:
        try:
            known = await self._exchange.ask(ID.from_base58(ask.peer), self._own_card())
            for card in known.cards:
                self._learn(card)
        except FAILURES as error:
            log.debug("%s answered nothing: %r", ask.peer, error)
        except RemoteError as error:
            if is_malice(error):
                self.blame(ask.peer, Fault.BAD_CARD)
        finally:
            self._table.asked(ask.peer, self._now_ms())
            self._count()

    def _answer(self, asker: str, wanted: PeersWanted) -> PeersKnown:
        if wanted.card:
            gossip = self._learn(wanted.card)
            assert isinstance(gossip.message, PeerCard)
            if any(address.peer != asker for address in gossip.message.parsed):
                raise RemoteError("PeersWanted.card", "is not the asker's own")
        own = [card] if (card := self._own_card()) else []
        others = self._table.book.cards(asker, count_max=PEER_CARDS_MAX - len(own), wall_ms=self._its.clock.now_ms())
        return PeersKnown(cards=(*own, *others))

    def _learn(self, card: bytes) -> Gossip:
        gossip = open_card(card, network=self._its.network, now_ms=self._its.clock.now_ms())
        assert isinstance(gossip.message, PeerCard)
        until_ms = gossip.letter.expires_at_ms
        self._table.book.learn(gossip.message.parsed, card=card, until_ms=until_ms, now_ms=self._now_ms())
        return gossip

    def _found(self, texts: list[str]) -> None:
        """Addresses that Kademlia came upon. Nobody signed them; whoever answers there proves its key."""
        for text in texts:
            if address := parse_address(text):
                self._table.book.learn((address,), card=b"", until_ms=0, now_ms=self._now_ms())

    def _own_card(self) -> bytes:
        """Sealed anew before it can run out on its way; empty where nobody could dial."""
        addresses = self._its.counts.addresses
        now_ms = self._its.clock.now_ms()
        if not addresses:
            return b""
        if now_ms + life_ms(GossipKind.PEER_CARD, 0) // 2 >= self._card_until_ms:
            self._card = seal_gossip(
                self._its.key,
                PeerCard(addresses=addresses),
                network=self._its.network,
                run=None,
                sequence=self._its.sequence.next(now_ms),
                now_ms=now_ms,
                known_nodes=0,
            )
            self._card_until_ms = open_card(self._card, network=self._its.network, now_ms=now_ms).letter.expires_at_ms
        return self._card

    def _count(self) -> None:
        counts = self._its.counts
        counts.connected, counts.known = self._table.connected, self._table.book.known
        counts.banned = self._table.book.count_banned(self._now_ms())

    def _now_ms(self) -> int:
        return self._its.clock.monotonic_ms()


def prepare_library(config: P2PConfig) -> None:
    """Check, patch and silence the library. Once for a process would do; again is no harm."""
    check_library()
    quiet_logs()
    apply_patches()
    if config.window_patch:
        apply_window_patch()
    else:
        remove_window_patch()
