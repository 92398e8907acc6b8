"""How gossip enters and leaves a program: a publisher, and transports over HTTP (through the coordinator) and libp2p.

GossipPublisher seals a message once and submits it to our own guard like a message of a stranger, so that we send
nothing that others would not forward and recognise a copy that comes back. Both transports submit what they receive to
the same guard; the coordinator only relays. libp2p is optional: its library is imported when the transport starts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from prime_protocol.constants import RELAY_WAIT_MS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.accusation import Accusation
from prime_protocol.gossip.budget import GossipSampler
from prime_protocol.gossip.guard import GossipAccepted, GossipGuard
from prime_protocol.gossip.messages import (
    MESSAGE_KINDS,
    RELAY_POLL,
    RELAY_PUBLISH,
    TOPIC_KINDS,
    CheckpointAnnounced,
    GossipKind,
    HeadSeen,
    ReceivedGossip,
    RelayPoll,
    RelayPollReply,
    RelayPublish,
    ServingRecord,
    get_topic,
    seal_gossip,
)
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.config import BOOTSTRAP_MAX, P2PConfig, P2PStatus
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.keys import SequenceCounter

if TYPE_CHECKING:
    from prime_runtime.gossip.libp2p.node import P2PNode


log = logging.getLogger(__name__)


SendGossip = Callable[[RunId, ReceivedGossip], Awaitable[None]]
"""Sends one accepted message. LocalError or RemoteError: it cannot be sent now."""


class GossipPublisher:
    """Publishes messages of one key."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        guard: GossipGuard,
        *,
        clock: Clock,
        sequence: SequenceCounter,
        transports: tuple[SendGossip, ...],
    ) -> None:
        self._key = key
        self._network = network
        self._guard = guard
        self._clock = clock
        self._sequence = sequence
        self._transports = transports
        self.failures: dict[int, str] = {}
        """The last error of each transport, by index; working transports have none."""

    async def publish(
        self, run: RunId, message: CheckpointAnnounced | ServingRecord | HeadSeen | Accusation
    ) -> ReceivedGossip | None:
        """The published message; None if it came too soon after others, or this key may not send it."""
        now_ms = self._clock.now_ms()
        frame = seal_gossip(
            self._key,
            message,
            network=self._network,
            run=run,
            sequence=self._sequence.next(now_ms),
            now_ms=now_ms,
        )
        verdict = self._guard.validate(
            get_topic(self._network, run, MESSAGE_KINDS[type(message)]), frame, run=run, now_ms=now_ms
        )
        if not isinstance(verdict, GossipAccepted):
            log.debug("not published: %s: %s", type(message).__name__, verdict.reason)
            return None
        await asyncio.gather(
            *(self._send(number, send, run, verdict.gossip) for number, send in enumerate(self._transports))
        )
        return verdict.gossip

    async def _send(self, number: int, send: SendGossip, run: RunId, gossip: ReceivedGossip) -> None:
        try:
            await send(run, gossip)
            self.failures.pop(number, None)
        except (LocalError, RemoteError) as error:
            if self.failures.get(number) != str(error):
                log.info("cannot send %s: %s", gossip.kind, error)
            self.failures[number] = str(error)


POLL_ANSWER_MS = 15_000
"""Time for an answer to arrive after its wait."""
SEND_MS = 5_000
"""Time to send a message. It is repeated anyway."""
POLL_GAP_MS = 200
"""Minimum time between two polls."""
POLL_EMPTY_GAP_MS = 1_000
"""The same after an immediate empty answer: this node may not wait, or the coordinator is stopping."""
RETRY_MS = 1_000
RETRY_MS_MAX = 30_000
"""Pause after a failed poll, doubling."""


class GossipHttpClient:
    """Receives and sends the gossip of one run through the coordinator."""

    def __init__(
        self,
        client: HttpClient,
        server: ServerAddress,
        *,
        network: NetworkId,
        run: RunId,
        clock: Clock,
        guard: GossipGuard,
        deliver: Callable[[ReceivedGossip], None],
    ) -> None:
        self._client = client
        self._server = server
        self._network = network
        self._run = run
        self._clock = clock
        self._guard = guard
        self._deliver = deliver
        self._seen = 0
        self.nodes = 0
        """Nodes that serve weights in the run, according to the coordinator."""
        self.trainer: NodeId | None = None
        """The trainer whose announcements count, according to the coordinator."""
        self.problem = "not polled yet"
        """Why the last poll failed; empty if it succeeded."""
        self.answered_ms: int | None = None
        """Wall clock time of the last answer."""

    async def poll(self, wait_ms: int = 0) -> RelayPollReply:
        """Poll once and deliver new messages. LocalError: no answer. RemoteError: the answer breaks the protocol."""
        request, deadline_ms = RelayPoll(seen=self._seen, wait_ms=wait_ms), wait_ms + POLL_ANSWER_MS
        signed = await self._client.call(self._server, RELAY_POLL, request, run=self._run, deadline_ms=deadline_ms)
        reply = signed.message
        self._seen, self.nodes, self.trainer = reply.cursor, reply.nodes, reply.trainer
        self.problem, self.answered_ms = "", self._clock.now_ms()
        for frame in reply.frames:
            self._receive_frame(frame)
        return reply

    def _receive_frame(self, frame: bytes) -> None:
        try:
            kind = open_envelope(frame, network=self._network).payload.kind
        except RemoteError as error:
            log.warning("the coordinator forwarded an invalid frame: %s", error)
            return
        if kind not in TOPIC_KINDS:
            return  # from a newer version of the protocol
        name = get_topic(self._network, self._run, GossipKind(kind))
        verdict = self._guard.validate(name, frame, run=self._run, now_ms=self._clock.now_ms())
        if isinstance(verdict, GossipAccepted):
            self._deliver(verdict.gossip)
        else:
            log.debug("ignored a message: %s", verdict.reason)

    async def run(self) -> None:
        """Poll until cancelled."""
        retry_ms = RETRY_MS
        while True:
            started_ms = self._clock.monotonic_ms()
            try:
                reply = await self.poll(RELAY_WAIT_MS_MAX)
            except (LocalError, RemoteError) as error:
                if self.problem != str(error):
                    log.warning("no gossip from the coordinator: %s", error)
                self.problem = str(error)
                await self._clock.sleep_ms(retry_ms)
                retry_ms = min(RETRY_MS_MAX, 2 * retry_ms)
                continue
            retry_ms = RETRY_MS
            was_short = self._clock.monotonic_ms() - started_ms < POLL_EMPTY_GAP_MS
            await self._clock.sleep_ms(POLL_EMPTY_GAP_MS if was_short and not reply.frames else POLL_GAP_MS)

    async def send(self, run: RunId, gossip: ReceivedGossip) -> None:
        """A SendGossip for GossipPublisher."""
        await self._client.call(
            self._server, RELAY_PUBLISH, RelayPublish(frame=gossip.frame), run=run, deadline_ms=SEND_MS
        )


JOIN_POLL_MS = 1_000
"""Interval between checks for new runs."""


class Libp2pTransport:
    """Gossip over libp2p as an optional task of a program; run it under a supervisor."""

    def __init__(
        self, key: WalletKey, network: NetworkId, config: P2PConfig, *, clock: Clock, guard: GossipGuard
    ) -> None:
        self._key = key
        self._network = network
        self._config = config
        self._clock = clock
        self._guard = guard
        self._node: P2PNode | None = None
        self._joined: set[RunId] = set()
        self._sampler = GossipSampler()
        self.count_nodes: Callable[[RunId], int] = lambda run: 0
        """About how many nodes like this one serve in a run, which share the sample among them. Its owner sets it."""
        self.reason = "not started yet" if config.enabled else "p2p.enabled is false"
        """Why libp2p is off; empty while it runs."""

    def add_bootstrap(self, peers: Iterable[str]) -> None:
        """Add bootstrap peers, before the start."""
        known = dict.fromkeys((*self._config.bootstrap, *peers))
        own = self._key.peer_id()
        wanted = [peer for peer in known if not peer.endswith(own)][:BOOTSTRAP_MAX]
        self._config = replace(self._config, bootstrap=tuple(wanted))

    @property
    def bootstrap(self) -> tuple[str, ...]:
        return self._config.bootstrap

    async def run(self, deliver: Callable[[ReceivedGossip], None], list_runs: Callable[[], Iterable[RunId]]) -> None:
        """Run until cancelled; return at once if libp2p is disabled or missing. LocalError: it may work later."""
        if not self._config.enabled:
            log.info("gossip over libp2p is off (%s); gossip travels over HTTP", self.reason)
            return
        try:
            from prime_runtime.gossip.libp2p.node import P2PNode
        except LocalError as error:
            self.reason = str(error)
            log.warning("gossip over libp2p is off: %s; gossip travels over HTTP", error)
            return
        node = P2PNode(self._key, self._network, self._config, clock=self._clock, guard=self._guard)
        try:
            await node.start()
            self._node, self.reason = node, ""
            log.info("gossip over libp2p is on: %s", ", ".join(node.status().addresses) or "outbound only")
            await self._carry(node, deliver, list_runs)
        except LocalError as error:
            self.reason = str(error)
            raise
        finally:
            self._node = None
            self._joined.clear()
            self.reason = self.reason or "restarting"
            await node.stop()

    async def _carry(
        self, node: "P2PNode", deliver: Callable[[ReceivedGossip], None], list_runs: Callable[[], Iterable[RunId]]
    ) -> None:
        async def receive() -> None:
            while True:
                deliver(await node.receive())

        async def join() -> None:
            while True:
                for run in set(list_runs()) - self._joined:
                    await node.join(run)
                    self._joined.add(run)
                await self._clock.sleep_ms(JOIN_POLL_MS)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(receive())
                group.create_task(join())
        except* LocalError as errors:
            raise LocalError(str(errors.exceptions[0])) from None

    async def send(self, run: RunId, gossip: ReceivedGossip, *, known_nodes: int | None = None) -> None:
        """A SendGossip: sends what is in the sample. LocalError while libp2p is down; no effect while it is off.

        `known_nodes`: how many nodes share the sample with the sender; default: as many as with this node.
        """
        nodes = self.count_nodes(run) if known_nodes is None else known_nodes
        if not self._sampler.is_chosen(gossip, known_nodes=nodes, now_ms=self._clock.now_ms()):
            return
        if self._node is not None and run in self._joined:
            await self._node.publish_frame(run, gossip.kind, gossip.frame)

    def status(self) -> P2PStatus | None:
        """None while libp2p is off."""
        return self._node.status() if self._node is not None else None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses at which this node can be dialled."""
        status = self.status()
        return status.addresses if status else ()
