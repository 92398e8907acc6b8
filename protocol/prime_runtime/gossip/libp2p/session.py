"""One session of the libp2p node, in the trio thread: runs the host and gossip, and executes the peer table's effects.

State that survives a crash (peer table, guard, counters) is in P2PState.
"""

import logging
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, assert_never

import trio
from libp2p.abc import INotifee
from libp2p.host.ping import PingService
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from prime_protocol.constants import GOSSIP_LIFE_MS, PEER_RECORDS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.guard import GossipAccepted, GossipRejected
from prime_protocol.gossip.messages import (
    PeerRecord,
    PeersReply,
    PeersRequest,
    ReceivedGossip,
    RecentReply,
    RecentRequest,
    get_frame_kind,
    get_topic,
    open_peer_record,
    seal_gossip,
)
from prime_protocol.wire.ids import RunId
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.gossip.libp2p.host import list_announced_addresses, make_host, resolve_address, run_host
from prime_runtime.gossip.libp2p.node import P2PState
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
    PingPeer,
    parse_peer_address,
)
from prime_runtime.gossip.libp2p.protocols import (
    PEERS,
    RECENT,
    STREAM_FAILURES,
    GossipSubService,
    PeerRequests,
    is_hostile,
)
from prime_runtime.rate_limits import RateLimitedLogger

TICK_S = 0.25
"""Interval of the peer table: a node that lost all its peers dials again within this time."""
COUNT_TICKS = 4
"""Traffic is counted once a second."""
RECENT_ASKED = 3
"""Peers asked for recent gossip at the start: one may know nothing, and one may withhold it."""
PING_MS_MIN, PING_MS_MAX = 1_000, 10_000
"""Bounds of the timeout of a ping; between them it equals the ping interval."""

log = logging.getLogger(__name__)


class P2PSession(INotifee):
    """The host, gossip and peer exchange from one start of the trio thread to its end."""

    def __init__(self, state: P2PState, listen: str) -> None:
        self._state = state
        self._listen = listen
        self._table = state.table
        self._nursery: trio.Nursery | None = None
        self._record = b""
        self._record_until_ms = 0
        self._log = RateLimitedLogger(log, self._now_ms)
        config = state.config
        inbound = InboundGuard(
            # Inbound connections never use up the slots for peers that this node dials.
            connections_max=max(1, config.connections_max - config.peers_target),
            per_address_max=config.connections_per_address_max,
            is_blocked=lambda group: self._table.book.is_blocked(group, self._now_ms()),
            blame=self.blame,
        )
        self.host = make_host(state.key, config, inbound)
        self.gossiping = GossipSubService(self.host, state.network, state.guard, self, now_ms=state.clock.now_ms)
        how: Any = {"now_ms": self._now_ms, "blame": self.blame}
        self._exchange = PeerRequests(self.host, PEERS, answer=self._answer, **how)
        self._recent = PeerRequests(self.host, RECENT, answer=self._answer_recent, **how)
        self._recent_asked = 0
        """Peers that were asked for recent gossip since this node was last alone."""
        self._pings = PingService(self.host)

    async def main(self, ready: Callable[[], None], stopping: trio.Event) -> None:
        """Run until asked to stop, or until the library crashes in spite of the guard."""
        network = self.host.get_network()
        network.register_notifee(self)
        async with run_host(self.host, self._listen):
            self._state.counts.addresses = list_announced_addresses(self.host, self._state.key, self._state.config)
            async with (
                background_trio_service(self.gossiping.router),
                background_trio_service(self.gossiping.pubsub),
                trio.open_nursery() as nursery,
            ):
                self._nursery = nursery
                await self.gossiping.pubsub.wait_until_ready()
                for run in self._state.runs:
                    await self.gossiping.join(run)
                nursery.start_soon(self._tick)
                ready()
                await stopping.wait()
                self._nursery = None
                nursery.cancel_scope.cancel()

    async def join(self, run: RunId) -> None:
        await self.gossiping.join(run)

    async def publish(self, name: str, frame: bytes) -> None:
        await self.gossiping.publish(name, frame)
        self._state.counts.messages_out += 1

    async def add_peers(self, bootstrap: tuple[str, ...], others: dict[str, list[str]]) -> None:
        """Bootstrap peers, and unsigned addresses by who named them: a peer proves its key when it is dialled."""
        self._table.book.add_bootstrap(list(bootstrap))
        for source, texts in others.items():
            for text in texts:
                if address := parse_peer_address(text):
                    self._table.book.learn((address,), record=b"", until_ms=0, now_ms=self._now_ms(), source=source)

    # --- Reported by gossip ---

    def accepted(self, gossip: ReceivedGossip, forwarder: str) -> None:
        self._state.counts.messages_in += 1
        self._table.behaved(forwarder, self._now_ms())
        self._state.deliver(gossip)

    def refused(self, forwarder: str, *, is_hostile: bool) -> None:
        self._state.counts.messages_refused += 1
        if is_hostile:
            self.blame(forwarder, PeerFault.FORGED)

    def ignored(self) -> None:
        self._state.counts.messages_ignored += 1

    def blame(self, peer: str, fault: PeerFault) -> None:
        self._carry_out(self._table.misbehaved(peer, fault, self._now_ms()))

    # --- Reported by the library ---

    async def connected(self, network: Any, conn: Any) -> None:
        peer = str(conn.muxed_conn.peer_id)
        remote = conn.muxed_conn.get_remote_address()
        self._carry_out(self._table.connected_to(peer, remote[0] if remote else "", self._now_ms()))
        if (known := self._table.book.peers.get(peer)) and known.link:
            known.link.is_outbound = bool(conn.muxed_conn.is_initiator)
            for target in known.targets:
                # The dial that opened this connection has not returned yet.
                target.is_reached |= known.link.is_outbound and remote is not None and target.address.port == remote[1]
        self._count()

    async def disconnected(self, network: Any, conn: Any) -> None:
        peer_id = conn.muxed_conn.peer_id
        if any(not other.is_closed for other in network.get_connections(peer_id) if other is not conn):
            return
        self._table.disconnected(str(peer_id), self._now_ms())
        if not self._table.connected:
            self._recent_asked = 0
        # Without this the library keeps a record of every key it has ever met.
        if self.host.get_peerstore().has_peer(peer_id):
            self.host.get_peerstore().clear_peerdata(peer_id)
        self._count()

    async def opened_stream(self, network: Any, stream: Any) -> None: ...

    async def closed_stream(self, network: Any, stream: Any) -> None: ...

    async def listen(self, network: Any, multiaddr: Any) -> None: ...

    async def listen_close(self, network: Any, multiaddr: Any) -> None: ...

    # --- Decided by the peer table ---

    async def _tick(self) -> None:
        for number in count():
            for peer in self.gossiping.list_gossiping_peers():
                self._table.speaking(peer)
            if number % COUNT_TICKS == 0:
                self._count_traffic()
                self._count()
            self._carry_out(self._table.tick(self._now_ms()))
            await trio.sleep(TICK_S)

    def _count_traffic(self) -> None:
        now_ms, now_s = self._now_ms(), trio.current_time()
        counts = self._state.counts
        for conn in self.host.get_network().get_connections():
            name, counted = str(conn.muxed_conn.peer_id), conn.muxed_conn.counted
            self._table.heard(name, now_ms - round((now_s - counted.heard_s) * 1000))
            known = self._table.book.peers.get(name)
            if known is not None and known.link is not None:
                before = known.link.bytes_in, known.link.bytes_out
                known.link.count(counted.bytes_in, counted.bytes_out, now_ms)
                counts.bytes_in += max(0, counted.bytes_in - before[0])
                counts.bytes_out += max(0, counted.bytes_out - before[1])
        counts.connections = self._table.list_connections(now_ms)

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
        except Exception as error:  # boundary: a failure of the library with one peer must not affect others
            log.debug("%s failed", effect, exc_info=error)

    async def _dial(self, dial: DialPeer) -> None:
        """Dial one address: given a list, the library tries one of it and then refuses the peer for a minute."""
        peer_id = ID.from_base58(dial.peer)
        network = self.host.get_network()
        is_open = False
        try:
            with trio.move_on_after(self._state.config.call_ms / 1000):
                await network.dial_addr(Multiaddr(await resolve_address(dial.address)), peer_id)
                is_open = True
        finally:
            network.unblock_peer(peer_id)
            self._table.dialled(dial.peer, dial.address, is_open=is_open, now_ms=self._now_ms())

    async def _drop(self, drop: DropPeer) -> None:
        self._log.log(logging.INFO, "dropped peer %s: it %s", drop.peer, drop.reason)
        with trio.move_on_after(self._state.config.call_ms / 1000):
            await self.host.get_network().close_peer(ID.from_base58(drop.peer))
        self._table.disconnected(drop.peer, self._now_ms())
        self._count()

    async def _ping(self, ping: PingPeer) -> None:
        is_answered, asked_s = False, trio.current_time()
        limit_ms = min(PING_MS_MAX, max(PING_MS_MIN, self._state.config.ping_ms))
        try:
            with trio.move_on_after(limit_ms / 1000):
                await self._pings.ping(ID.from_base58(ping.peer), 1)
                is_answered = True
        finally:
            rtt_ms = round((trio.current_time() - asked_s) * 1000)
            self._carry_out(
                self._table.pinged(ping.peer, is_answered=is_answered, now_ms=self._now_ms(), rtt_ms=rtt_ms)
            )

    async def _ask(self, ask: AskPeer) -> None:
        try:
            known = await self._exchange.ask(ID.from_base58(ask.peer), PeersRequest(record=self._get_own_record()))
            for record in known.records:
                self._learn(record, ask.peer)
            if self._recent_asked < RECENT_ASKED:
                self._recent_asked += 1
                for run in tuple(self._state.runs):
                    await self._ask_recent(ask.peer, run)
        except STREAM_FAILURES as error:
            log.debug("no answer from %s: %r", ask.peer, error)
        except RemoteError as error:
            if is_hostile(error):
                self.blame(ask.peer, PeerFault.BAD_CARD)
        finally:
            self._table.asked(ask.peer, self._now_ms())
            self._count()

    async def _ask_recent(self, peer: str, run: RunId) -> None:
        """What the run's nodes said before this one joined. It is not forwarded: its neighbours have it."""
        reply = await self._recent.ask(ID.from_base58(peer), RecentRequest(run=run))
        for frame in reply.frames:
            name = get_topic(self._state.network, run, get_frame_kind(frame, self._state.network))
            verdict = self._state.guard.validate(name, frame, run=run, now_ms=self._state.clock.now_ms())
            if isinstance(verdict, GossipAccepted):
                self.accepted(verdict.gossip, peer)
            elif isinstance(verdict, GossipRejected):
                self.refused(peer, is_hostile=verdict.is_hostile)
            else:
                self.ignored()

    def _answer_recent(self, asker: str, wanted: RecentRequest) -> RecentReply:
        if wanted.run not in self._state.runs:
            return RecentReply(frames=())
        return RecentReply(frames=self._state.guard.list_recent(wanted.run, self._state.clock.now_ms()))

    def _answer(self, asker: str, wanted: PeersRequest) -> PeersReply:
        if wanted.record:
            gossip = self._learn(wanted.record, asker)
            assert isinstance(gossip.message, PeerRecord)
            if any(address.peer != asker for address in gossip.message.parsed):
                raise RemoteError("PeersRequest.record", "belongs to another peer")
        own = [record] if (record := self._get_own_record()) else []
        others = self._table.book.list_records(
            asker, count_max=PEER_RECORDS_MAX - len(own), wall_ms=self._state.clock.now_ms()
        )
        return PeersReply(records=(*own, *others))

    def _learn(self, record: bytes, source: str) -> ReceivedGossip:
        gossip = open_peer_record(record, network=self._state.network, now_ms=self._state.clock.now_ms())
        assert isinstance(gossip.message, PeerRecord)
        until_ms = gossip.payload.expires_at_ms
        self._table.book.learn(
            gossip.message.parsed, record=record, until_ms=until_ms, now_ms=self._now_ms(), source=source
        )
        return gossip

    def _get_own_record(self) -> bytes:
        """Our peer record, renewed after half its life; empty if this node has no address."""
        addresses = self._state.counts.addresses
        now_ms = self._state.clock.now_ms()
        if not addresses:
            return b""
        if now_ms + GOSSIP_LIFE_MS // 2 >= self._record_until_ms:
            self._record = seal_gossip(
                self._state.key,
                PeerRecord(addresses=addresses),
                network=self._state.network,
                run=None,
                sequence=self._state.sequence.next(now_ms),
                now_ms=now_ms,
            )
            self._record_until_ms = open_peer_record(
                self._record, network=self._state.network, now_ms=now_ms
            ).payload.expires_at_ms
        return self._record

    def _count(self) -> None:
        counts = self._state.counts
        # Before the number of connections: a program that sees one may save it.
        counts.dialled = self._table.list_dialled()
        counts.record = self._get_own_record()
        counts.banned = self._table.book.count_banned(self._now_ms())
        counts.connected, counts.known = self._table.connected, self._table.book.known

    def _now_ms(self) -> int:
        return self._state.clock.monotonic_ms()


def prepare_library(config: P2PConfig) -> None:
    """Check, patch and silence the library. It is safe to call this again."""
    check_library()
    silence_library_logs()
    apply_patches()
    if config.window_patch:
        apply_window_patch()
    else:
        remove_window_patch()
