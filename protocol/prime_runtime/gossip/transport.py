"""How gossip enters and leaves a program: a publisher, and the transport over HTTP, through the coordinator.

GossipPublisher seals a message once and submits it to our own guard like a message of a stranger, so that we send
nothing that others would not forward and recognise a copy that comes back. Both transports submit what they receive to
the same guard; the coordinator only relays. The other transport is in libp2p_transport.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prime_protocol.constants import RELAY_WAIT_MS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.accusation import Accusation
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
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.keys import SequenceCounter

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
        self.wants_peers: Callable[[], bool] = lambda: False
        """Whether the next poll asks for peers to dial over libp2p."""
        self.get_record: Callable[[], bytes] = bytes
        """The frame of this node's own peer record, for the coordinator to give to others."""
        self.on_peers: Callable[[tuple[str, ...]], None] = lambda peers: None
        """Called with the peers that an answer names."""
        self._record_told = b""
        self.problem = "not polled yet"
        """Why the last poll failed; empty if it succeeded."""
        self.answered_ms: int | None = None
        """Wall clock time of the last answer."""

    async def poll(self, wait_ms: int = 0) -> RelayPollReply:
        """Poll once and deliver new messages. LocalError: no answer. RemoteError: the answer breaks the protocol."""
        record = self.get_record()
        request = RelayPoll(
            seen=self._seen,
            wait_ms=wait_ms,
            wants_peers=self.wants_peers(),
            record=record if record != self._record_told else b"",
        )
        signed = await self._client.call(
            self._server, RELAY_POLL, request, run=self._run, deadline_ms=wait_ms + POLL_ANSWER_MS
        )
        reply, self._record_told = signed.message, record
        self._seen, self.nodes, self.trainer = reply.cursor, reply.nodes, reply.trainer
        self.problem, self.answered_ms = "", self._clock.now_ms()
        if reply.peers:
            self.on_peers(reply.peers)
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
                # The first answer does not wait for news: it names the peers with which to start.
                reply = await self.poll(RELAY_WAIT_MS_MAX if self.answered_ms is not None else 0)
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
