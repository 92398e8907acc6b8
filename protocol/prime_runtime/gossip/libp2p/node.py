"""The asyncio side of libp2p: start, publish, receive, status, stop; and a restart whenever the other side dies.

The library is loaded by `start`, in a thread, since that takes a second. A crash of the trio side touches nothing but
itself: it begins again with the same key, port, peers and topics, after a pause that doubles with each crash.
"""

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any

from prime_protocol.errors import LocalError
from prime_protocol.gossip.guard import GossipAccepted, GossipGuard, GossipRejected
from prime_protocol.gossip.messages import (
    CheckpointAnnounced,
    GossipKind,
    HeadSeen,
    ReceivedGossip,
    ServingRecord,
    get_topic,
    open_gossip,
    seal_gossip,
)
from prime_protocol.wire.ids import NetworkId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.config import P2PConfig, P2PStatus
from prime_runtime.keys import SequenceCounter

if TYPE_CHECKING:
    from prime_runtime.gossip.libp2p.session import P2PSession, P2PState
    from prime_runtime.gossip.libp2p.trio_thread import CrossThreadQueue, TrioThread


KNOWN_MAX = 2_048
"""Peers remembered with their addresses: about 4 MB."""
RESTART_MS_MAX = 60_000
STEADY_MS = 60_000
"""After so long without a crash the pause before a restart is short again."""
STOP_MS = 15_000

log = logging.getLogger(__name__)


class P2PNode:
    """One libp2p identity: joins runs, publishes, and hands over what others say."""

    def __init__(
        self, key: WalletKey, network: NetworkId, config: P2PConfig, *, clock: Clock, guard: GossipGuard
    ) -> None:
        self._key = key
        self._network = network
        self._config = config
        self._clock = clock
        self._guard = guard
        self._sequence = SequenceCounter()
        self._lasting: P2PState | None = None
        self._inbox: CrossThreadQueue[ReceivedGossip] | None = None
        self._session: P2PSession | None = None
        self._thread: TrioThread | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._listen = config.listen
        self._restarts = 0
        self._last_error = ""

    async def start(self) -> None:
        """Listen and begin to dial. LocalError: the port is taken, or the library does not fit."""
        assert self._keeper is None, "started twice"
        await asyncio.to_thread(_load_library, self._config)
        from prime_runtime.gossip.libp2p.peer_book import PeerLimits
        from prime_runtime.gossip.libp2p.peer_table import PeerTable
        from prime_runtime.gossip.libp2p.session import P2PState
        from prime_runtime.gossip.libp2p.trio_thread import CrossThreadQueue

        limits = PeerLimits(
            target=self._config.peers_target,
            known_max=KNOWN_MAX,
            per_host_max=self._config.connections_per_address_max,
            ping_ms=self._config.ping_ms,
            ask_ms=self._config.exchange_ms,
            allow_private=self._config.dials_private,
        )
        table = PeerTable(self._key.peer_id(), limits, salt=secrets.token_bytes(16))
        table.book.add_bootstrap(list(self._config.bootstrap))
        self._inbox = CrossThreadQueue(self._config.inbox_max)
        self._lasting = P2PState(
            key=self._key,
            network=self._network,
            config=self._config,
            clock=self._clock,
            guard=self._guard,
            sequence=self._sequence,
            table=table,
            deliver=self._inbox.offer,
        )
        await self._open()
        self._keeper = asyncio.create_task(self._keep(), name="p2p keeper")

    async def join(self, run: RunId) -> None:
        """Subscribe to the run's topics; kept over restarts."""
        lasting = self._started()
        if run not in lasting.runs:
            lasting.runs.append(run)
            try:
                await self._call("join", run)
            except LocalError:
                log.info("the topics of %s are joined when gossip is back", run)

    async def publish(self, run: RunId, message: CheckpointAnnounced | ServingRecord | HeadSeen) -> bytes:
        """Seal a message and send it to everybody; the frame, to be handed to others as well.

        LocalError: this node may not say that, or the libp2p half is down. The frame of a message that comes too soon
        after others is returned, and not sent: nobody would pass it on.
        """
        counts = self._started().counts
        now_ms = self._clock.now_ms()
        frame = seal_gossip(
            self._key,
            message,
            network=self._network,
            run=run,
            sequence=self._sequence.next(now_ms),
            now_ms=now_ms,
            known_nodes=counts.known,
        )
        kind = _kind_of(message)
        verdict = self._guard.validate(get_topic(self._network, run, kind), frame, run=run, now_ms=now_ms)
        if isinstance(verdict, GossipRejected):
            raise LocalError(f"this node may not gossip that: {verdict.reason}")
        if isinstance(verdict, GossipAccepted):
            await self._call("publish", get_topic(self._network, run, kind), frame)
        else:
            counts.messages_ignored += 1
        return frame

    async def publish_frame(self, run: RunId, kind: GossipKind, frame: bytes) -> None:
        """Send on a frame that somebody else sealed and that our guard has accepted. RemoteError: it is not valid."""
        self._started()
        name = get_topic(self._network, run, kind)
        open_gossip(name, frame, network=self._network, run=run, now_ms=self._clock.now_ms())
        await self._call("publish", name, frame)

    async def receive(self) -> ReceivedGossip:
        """The next accepted message of another node, on any topic of a joined run."""
        self._started()
        assert self._inbox is not None
        return await self._inbox.take()

    def status(self) -> P2PStatus:
        """As of now; cheap."""
        counts = self._lasting.counts if self._lasting else None
        is_running = self._thread is not None and not self._thread.done.done()
        return P2PStatus(
            is_running=is_running,
            peer_id=self._key.peer_id(),
            addresses=counts.addresses if counts else (),
            connected=counts.connected if counts and is_running else 0,
            known=counts.known if counts else 0,
            banned=counts.banned if counts else 0,
            messages_in=counts.messages_in if counts else 0,
            messages_out=counts.messages_out if counts else 0,
            messages_refused=counts.messages_refused if counts else 0,
            messages_ignored=counts.messages_ignored if counts else 0,
            inbox_dropped=self._inbox.dropped if self._inbox else 0,
            restarts=self._restarts,
            last_error=self._last_error,
        )

    async def stop(self) -> None:
        """Leave: connections are closed, so that peers notice at once."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        if self._thread is not None:
            if not await self._thread.stop(STOP_MS):
                log.warning("the libp2p half did not stop in %d ms; it ends with the program", STOP_MS)
            self._thread = None

    async def _open(self) -> None:
        """One life of the trio side, begun."""
        from prime_runtime.gossip.libp2p.session import P2PSession
        from prime_runtime.gossip.libp2p.trio_thread import TrioThread

        lasting = self._started()
        thread = TrioThread()

        async def main(ready: Any, stopping: Any) -> None:
            self._session = P2PSession(lasting, self._listen)
            await self._session.main(ready, stopping)

        try:
            await thread.start(main)
        except BaseExceptionGroup as group:
            if isinstance(cause := _first(group), LocalError):
                raise cause from None
            raise
        self._thread = thread
        if self._listen.endswith("/tcp/0"):
            # The port that was taken is kept over restarts: others have been told of it.
            self._listen = _with_port(self._listen, lasting.counts.addresses)

    async def _keep(self) -> None:
        """Begin again whenever the trio side dies."""
        pause_ms = self._config.restart_ms
        while True:
            assert self._thread is not None
            began_ms = self._clock.monotonic_ms()
            error = await asyncio.shield(self._thread.done)
            if self._clock.monotonic_ms() - began_ms >= STEADY_MS:
                pause_ms = self._config.restart_ms
            self._note(error)
            while True:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(RESTART_MS_MAX, 2 * pause_ms)
                try:
                    await self._open()
                except Exception as again:  # boundary: gossip may come back later; the rest of the node goes on
                    self._note(again)
                    continue
                self._restarts += 1
                break

    def _note(self, error: BaseException | None) -> None:
        lasting = self._started()
        lasting.table.disconnect_all(self._clock.monotonic_ms())
        cause = _first(error) if error is not None else None
        self._last_error = f"{type(cause).__name__}: {cause}"[:500] if cause else "ended without an error"
        log.error("the libp2p half died and begins again", exc_info=error)

    async def _call(self, method: str, *args: Any) -> None:
        from prime_runtime.gossip.libp2p.trio_thread import TrioThreadClosed

        if self._thread is None or self._session is None:
            raise LocalError("gossip is down just now; it begins again by itself")
        try:
            await self._thread.call(getattr(self._session, method), *args, timeout_ms=self._config.call_ms)
        except (TrioThreadClosed, TimeoutError):
            raise LocalError("gossip is down just now; it begins again by itself") from None

    def _started(self) -> "P2PState":
        assert self._lasting is not None, "not started"
        return self._lasting


def _load_library(config: P2PConfig) -> None:
    try:
        from prime_runtime.gossip.libp2p.session import prepare_library
    except ImportError as error:
        raise LocalError(f"libp2p is there but cannot be loaded ({error}): install 'prime-swarm[p2p]' anew") from None
    prepare_library(config)


def _kind_of(message: CheckpointAnnounced | ServingRecord | HeadSeen) -> GossipKind:
    match message:
        case CheckpointAnnounced():
            return GossipKind.ANNOUNCED
        case ServingRecord():
            return GossipKind.SERVING
        case HeadSeen():
            return GossipKind.HEAD_SEEN


def _first(error: BaseException) -> BaseException:
    """What lies at the bottom of nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _with_port(listen: str, addresses: tuple[str, ...]) -> str:
    port = addresses[0].split("/")[4] if addresses else "0"
    return listen.removesuffix("/0") + f"/{port}"
