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

from prime_protocol.constants import PEER_RECORDS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import (
    GossipKind,
    PeerRecord,
    PeersReply,
    PeersRequest,
    ReceivedGossip,
    compute_life_ms,
    open_peer_record,
    seal_gossip,
)
from prime_protocol.wire.ids import NetworkId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.gossip.libp2p.host import list_announced_addresses, make_host, resolve_address, run_host
from prime_runtime.gossip.libp2p.patches import (
    InboundGuard,
    apply_patches,
    apply_window_patch,
    check_library,
    remove_window_patch,
    silence_library_logs,
)
from prime_runtime.gossip.libp2p.peer_book import PeerFault
from prime_runtime.gossip.libp2p.peer_table import (
    AskPeer,
    DialPeer,
    DropPeer,
    PeerEffect,
    PeerTable,
    PingPeer,
    parse_peer_address,
)
from prime_runtime.gossip.libp2p.protocols import STREAM_FAILURES, GossipSubService, Kademlia, PeerExchange, is_hostile
from prime_runtime.keys import SequenceCounter
from prime_runtime.rate_limits import RateLimitedLogger

TICK_S = 0.25
"""How often the table is asked what is due: a node that lost everybody dials again in so long."""
PING_MS_MIN, PING_MS_MAX = 1_000, 10_000
"""Bounds of the time for an answer to a ping; between them it is the pause between two."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class P2PCounters:
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
class P2PState:
    """What outlives a session."""

    key: WalletKey
    network: NetworkId
    config: P2PConfig
    clock: Clock
    guard: GossipGuard
    sequence: SequenceCounter
    table: PeerTable
    deliver: Callable[[ReceivedGossip], None]
    runs: list[RunId] = field(default_factory=list)
    counts: P2PCounters = field(default_factory=P2PCounters)


class P2PSession(INotifee):
    """Everything that happens between one start of the trio side and its end."""

    def __init__(self, lasting: P2PState, listen: str) -> None:
        self._its = lasting
        self._listen = listen
        self._table = lasting.table
        self._nursery: trio.Nursery | None = None
        self._card = b""
        self._card_until_ms = 0
        self._log = RateLimitedLogger(log, self._now_ms)
        config = lasting.config
        doors = InboundGuard(
            # Strangers never take the places of the peers that this node dials itself.
            connections_max=max(1, config.connections_max - config.peers_target),
            per_address_max=config.connections_per_address_max,
            is_shut_out=lambda group: self._table.book.is_shut_out(group, self._now_ms()),
            blame=self.blame,
        )
        self.host = make_host(lasting.key, config, doors)
        self.gossiping = GossipSubService(self.host, lasting.network, lasting.guard, self, now_ms=lasting.clock.now_ms)
        self._exchange = PeerExchange(self.host, answer=self._answer, now_ms=self._now_ms, blame=self.blame)
        self._pings = PingService(self.host)
        self._kademlia = Kademlia(self.host) if config.kademlia else None

    async def main(self, ready: Callable[[], None], stopping: trio.Event) -> None:
        """Until it is asked to stop, or the library dies of something that the guard did not hold off."""
        network = self.host.get_network()
        network.register_notifee(self)
        async with run_host(self.host, self._listen):
            self._its.counts.addresses = list_announced_addresses(self.host, self._its.key, self._its.config)
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

    def accepted(self, gossip: ReceivedGossip, forwarder: str) -> None:
        self._its.counts.messages_in += 1
        self._table.behaved(forwarder, self._now_ms())
        self._its.deliver(gossip)

    def refused(self, forwarder: str, *, is_hostile: bool) -> None:
        self._its.counts.messages_refused += 1
        if is_hostile:
            self.blame(forwarder, PeerFault.FORGED)

    def ignored(self) -> None:
        self._its.counts.messages_ignored += 1

    def blame(self, peer: str, fault: PeerFault) -> None:
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
            for peer in self.gossiping.list_gossiping_peers():
                self._table.speaking(peer)
            self._carry_out(self._table.tick(self._now_ms()))
            self._count()
            await trio.sleep(TICK_S)

    def _carry_out(self, effects: Iterable[PeerEffect]) -> None:
        if self._nursery is None:
            return
        for effect in effects:
            self._nursery.start_soon(self._attempt, effect)

    async def _attempt(self, effect: PeerEffect) -> None:
        try:
            match effect:
                case DialPeer():
                    await self._dial(effect)
                case DropPeer():
                    await self._drop(effect)
                case PingPeer():
                    await self._ping(effect)
                case AskPeer():
                    await self._ask(effect)
                case _:
                    assert_never(effect)
        except Exception as error:  # boundary: what the library makes of one peer costs that peer alone
            log.debug("%s failed", effect, exc_info=error)

    async def _dial(self, dial: DialPeer) -> None:
        """One address: the library would try one of a list, and then refuse the peer for a minute."""
        peer_id = ID.from_base58(dial.peer)
        network = self.host.get_network()
        is_open = False
        try:
            with trio.move_on_after(self._its.config.call_ms / 1000):
                await network.dial_addr(Multiaddr(await resolve_address(dial.address)), peer_id)
                is_open = True
        finally:
            network.unblock_peer(peer_id)
            self._table.dialled(dial.peer, dial.address, is_open=is_open, now_ms=self._now_ms())

    async def _drop(self, drop: DropPeer) -> None:
        self._log.log(logging.INFO, "peer %s dropped: it %s", drop.peer, drop.reason)
        with trio.move_on_after(self._its.config.call_ms / 1000):
            await self.host.get_network().close_peer(ID.from_base58(drop.peer))
        self._table.disconnected(drop.peer, self._now_ms())
        self._count()

    async def _ping(self, ping: PingPeer) -> None:
        is_answered = False
        limit_ms = min(PING_MS_MAX, max(PING_MS_MIN, self._its.config.ping_ms))
        try:
            with trio.move_on_after(limit_ms / 1000):
                await self._pings.ping(ID.from_base58(ping.peer), 1)
                is_answered = True
        finally:
            self._carry_out(self._table.pinged(ping.peer, is_answered=is_answered, now_ms=self._now_ms()))

    async def _ask(self, ask: AskPeer) -> None:
        try:
            known = await self._exchange.ask(ID.from_base58(ask.peer), self._own_card())
            for card in known.records:
                self._learn(card)
        except STREAM_FAILURES as error:
            log.debug("%s answered nothing: %r", ask.peer, error)
        except RemoteError as error:
            if is_hostile(error):
                self.blame(ask.peer, PeerFault.BAD_CARD)
        finally:
            self._table.asked(ask.peer, self._now_ms())
            self._count()

    def _answer(self, asker: str, wanted: PeersRequest) -> PeersReply:
        if wanted.record:
            gossip = self._learn(wanted.record)
            assert isinstance(gossip.message, PeerRecord)
            if any(address.peer != asker for address in gossip.message.parsed):
                raise RemoteError("PeersRequest.record", "is not the asker's own")
        own = [card] if (card := self._own_card()) else []
        others = self._table.book.cards(asker, count_max=PEER_RECORDS_MAX - len(own), wall_ms=self._its.clock.now_ms())
        return PeersReply(records=(*own, *others))

    def _learn(self, card: bytes) -> ReceivedGossip:
        gossip = open_peer_record(card, network=self._its.network, now_ms=self._its.clock.now_ms())
        assert isinstance(gossip.message, PeerRecord)
        until_ms = gossip.payload.expires_at_ms
        self._table.book.learn(gossip.message.parsed, card=card, until_ms=until_ms, now_ms=self._now_ms())
        return gossip

    def _found(self, texts: list[str]) -> None:
        """Addresses that Kademlia came upon. Nobody signed them; whoever answers there proves its key."""
        for text in texts:
            if address := parse_peer_address(text):
                self._table.book.learn((address,), card=b"", until_ms=0, now_ms=self._now_ms())

    def _own_card(self) -> bytes:
        """Sealed anew before it can run out on its way; empty where nobody could dial."""
        addresses = self._its.counts.addresses
        now_ms = self._its.clock.now_ms()
        if not addresses:
            return b""
        if now_ms + compute_life_ms(GossipKind.PEER_RECORD, 0) // 2 >= self._card_until_ms:
            self._card = seal_gossip(
                self._its.key,
                PeerRecord(addresses=addresses),
                network=self._its.network,
                run=None,
                sequence=self._its.sequence.next(now_ms),
                now_ms=now_ms,
                known_nodes=0,
            )
            self._card_until_ms = open_peer_record(
                self._card, network=self._its.network, now_ms=now_ms
            ).payload.expires_at_ms
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
    silence_library_logs()
    apply_patches()
    if config.window_patch:
        apply_window_patch()
    else:
        remove_window_patch()
