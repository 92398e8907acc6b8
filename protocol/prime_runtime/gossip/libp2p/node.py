"""The asyncio side of libp2p: start, publish, receive, status, stop, and a restart after each crash.

`start` loads the library in a thread, because that takes a second. A crash of the trio thread harms nothing else: a new
session starts with the same key, port, peers and topics, after a pause that doubles with each crash.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prime_protocol.errors import LocalError
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import GossipKind, ReceivedGossip, get_topic, open_gossip
from prime_protocol.wire.ids import NetworkId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.config import ConnectedPeer, P2PConfig, P2PStatus
from prime_runtime.gossip.libp2p.peer_book import PeerLimits
from prime_runtime.gossip.libp2p.peer_table import PeerTable
from prime_runtime.keys import SequenceCounter

if TYPE_CHECKING:
    from prime_runtime.gossip.libp2p.session import P2PSession
    from prime_runtime.gossip.libp2p.trio_thread import CrossThreadQueue, TrioThread

KNOWN_MAX = 2_048
"""Peers remembered with their addresses: about 4 MB."""
RESTART_MS_MAX = 60_000
STEADY_MS = 60_000
"""After a session of this length the pause before a restart is short again."""
STOP_MS = 15_000
DOWN = "gossip over libp2p is down; it restarts by itself"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class P2PCounters:
    """Plain numbers, written in the trio thread and read in any thread."""

    connected: int = 0
    known: int = 0
    banned: int = 0
    messages_in: int = 0
    messages_out: int = 0
    messages_refused: int = 0
    messages_ignored: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    addresses: tuple[str, ...] = ()
    connections: tuple[ConnectedPeer, ...] = ()
    record: bytes = b""
    """The frame of this node's own peer record; empty if it cannot be dialled."""
    dialled: tuple[str, ...] = ()
    """Addresses of connected peers that this node has dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PState:
    """What outlives a session."""

    key: WalletKey
    network: NetworkId
    config: P2PConfig
    clock: Clock
    guard: GossipGuard
    table: PeerTable
    deliver: Callable[[ReceivedGossip], None]
    sequence: SequenceCounter = field(default_factory=SequenceCounter)
    runs: list[RunId] = field(default_factory=list)
    counts: P2PCounters = field(default_factory=P2PCounters)


class P2PNode:
    """A libp2p identity: joins runs, publishes frames, and returns the messages of others."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        config: P2PConfig,
        *,
        clock: Clock,
        guard: GossipGuard,
        port: int = 0,
    ) -> None:
        """`port`: the one of an earlier start, taken again if it is free and the settings name none."""
        limits = PeerLimits(
            target=config.peers_target,
            known_max=KNOWN_MAX,
            per_host_max=config.connections_per_address_max,
            ping_ms=config.ping_ms,
            ask_ms=config.exchange_ms,
            allow_private=config.dials_private,
        )
        table = PeerTable(key.peer_id(), limits, salt=secrets.token_bytes(16))
        table.book.add_bootstrap(list(config.bootstrap))
        self.state = P2PState(
            key=key,
            network=network,
            config=config,
            clock=clock,
            guard=guard,
            table=table,
            deliver=lambda gossip: self._inbox.offer(gossip) if self._inbox else None,
        )
        self._inbox: CrossThreadQueue[ReceivedGossip] | None = None
        self._session: P2PSession | None = None
        self._thread: TrioThread | None = None
        self._restarter: asyncio.Task[None] | None = None
        self.bootstrap = config.bootstrap
        self._listen = config.listen
        self._old_port = port if config.listen.endswith("/tcp/0") else 0
        self._restarts = 0
        self._last_error = ""

    async def start(self) -> None:
        """Listen and start to dial. LocalError: the port is in use, or the library has the wrong version."""
        assert self._restarter is None, "started twice"
        await asyncio.to_thread(_load_library, self.state.config)
        from prime_runtime.gossip.libp2p.trio_thread import CrossThreadQueue

        self._inbox = CrossThreadQueue(self.state.config.inbox_max)
        if self._old_port:
            self._listen = self._listen.removesuffix("0") + str(self._old_port)
        try:
            await self._open_session()
        except LocalError:
            if not self._old_port:
                raise
            log.info("the port %d of the last start is in use; taking another", self._old_port)
            self._listen = self.state.config.listen
            await self._open_session()
        self._restarter = asyncio.create_task(self._restart_sessions(), name="p2p restarter")

    async def join(self, run: RunId) -> None:
        """Subscribe to the topics of a run; restarts keep the subscription."""
        if run not in self.state.runs:
            self.state.runs.append(run)
            try:
                await self._call("join", run)
            except LocalError:
                log.info("the topics of %s are joined after the restart", run)

    async def add_peers(self, bootstrap: tuple[str, ...], others: dict[str, list[str]]) -> None:
        """Bootstrap peers, and addresses to try, by who named them. LocalError: libp2p is down."""
        await self._call("add_peers", bootstrap, others)
        self.bootstrap = bootstrap

    async def publish_frame(self, run: RunId, kind: GossipKind, frame: bytes) -> None:
        """Publish a frame that our guard has accepted. RemoteError: it is not valid. LocalError: libp2p is down."""
        name = get_topic(self.state.network, run, kind)
        open_gossip(name, frame, network=self.state.network, run=run, now_ms=self.state.clock.now_ms())
        await self._call("publish", name, frame)

    async def receive(self) -> ReceivedGossip:
        """The next accepted message of another node, on any topic of a joined run."""
        assert self._inbox is not None, "not started"
        return await self._inbox.take()

    def status(self) -> P2PStatus:
        is_running = self._thread is not None and not self._thread.done.done()
        counts = {name: getattr(self.state.counts, name) for name in P2PCounters.__slots__}
        del counts["record"], counts["dialled"]
        if not is_running:
            counts["connected"], counts["connections"] = 0, ()
        return P2PStatus(
            **counts,
            is_running=is_running,
            peer_id=self.state.key.peer_id(),
            inbox_dropped=self._inbox.dropped if self._inbox else 0,
            restarts=self._restarts,
            last_error=self._last_error,
        )

    async def stop(self) -> None:
        """Close all connections, so that peers notice at once."""
        if self._restarter is not None:
            self._restarter.cancel()
            await asyncio.wait([self._restarter])
            self._restarter = None
        if self._thread is not None:
            if not await self._thread.stop(STOP_MS):
                log.warning("libp2p did not stop within %d ms; it ends with the program", STOP_MS)
            self._thread = None

    async def _open_session(self) -> None:
        from prime_runtime.gossip.libp2p.session import P2PSession
        from prime_runtime.gossip.libp2p.trio_thread import TrioThread

        thread = TrioThread()

        async def main(ready: Any, stopping: Any) -> None:
            self._session = P2PSession(self.state, self._listen)
            await self._session.main(ready, stopping)

        try:
            await thread.start(main)
        except BaseExceptionGroup as group:
            if isinstance(cause := _get_root_error(group), LocalError):
                raise cause from None
            raise
        self._thread = thread
        addresses = self.state.counts.addresses
        if self._listen.endswith("/tcp/0") and addresses:
            # Keep the assigned port over restarts: others know it.
            self._listen = self._listen.removesuffix("0") + addresses[0].split("/")[4]

    async def _restart_sessions(self) -> None:
        """Open a new session whenever the trio thread has died."""
        clock, restart_ms = self.state.clock, self.state.config.restart_ms
        pause_ms = restart_ms
        while True:
            assert self._thread is not None
            started_ms = clock.monotonic_ms()
            error = await asyncio.shield(self._thread.done)
            if clock.monotonic_ms() - started_ms >= STEADY_MS:
                pause_ms = restart_ms
            self._record_crash(error)
            while True:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(RESTART_MS_MAX, 2 * pause_ms)
                try:
                    await self._open_session()
                except Exception as again:  # boundary: gossip may recover later; the rest of the node continues
                    self._record_crash(again)
                    continue
                self._restarts += 1
                break

    def _record_crash(self, error: BaseException | None) -> None:
        self.state.table.disconnect_all(self.state.clock.monotonic_ms())
        cause = _get_root_error(error) if error is not None else None
        self._last_error = f"{type(cause).__name__}: {cause}"[:500] if cause else "ended without an error"
        log.error("libp2p crashed and restarts", exc_info=error)

    async def _call(self, method: str, *args: Any) -> None:
        """Call a method of the session in the trio thread."""
        from prime_runtime.gossip.libp2p.trio_thread import TrioThreadClosed

        if self._thread is None or self._session is None:
            raise LocalError(DOWN)
        try:
            await self._thread.call(getattr(self._session, method), *args, timeout_ms=self.state.config.call_ms)
        except (TrioThreadClosed, TimeoutError):
            raise LocalError(DOWN) from None


def _load_library(config: P2PConfig) -> None:
    try:
        from prime_runtime.gossip.libp2p.session import prepare_library
    except ImportError as error:
        raise LocalError(f"libp2p cannot be loaded ({error}): reinstall 'prime-swarm[p2p]'") from None
    prepare_library(config)


def _get_root_error(error: BaseException) -> BaseException:
    """The first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
