"""The protocols on one libp2p host: GossipSub 1.1, and requests for peers and for recent gossip.

GossipSub validates each message with the pure GossipGuard before forwarding it. The reasons for its settings are in
docs/decisions/0004-libp2p-behind-a-guard.md. Peer exchange (`/prime/peers/1`) and recent gossip (`/prime/recent/1`), in
docs/protocol/gossip.md, are one request and one answer, each with a length of four bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import trio
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.utils import read_exactly
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub

from prime_protocol.constants import (
    GOSSIP_MESH,
    GOSSIP_MESH_MAX,
    GOSSIP_MESH_MIN,
    PEER_RECORD_BYTES_MAX,
    PEER_RECORDS_MAX,
    RECENT_BYTES_MAX,
    RECENT_FRAMES_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.guard import GossipAccepted, GossipBudget, GossipGuard, GossipIgnored, GossipRejected
from prime_protocol.gossip.messages import (
    TOPIC_KINDS,
    PeersReply,
    PeersRequest,
    ReceivedGossip,
    RecentReply,
    RecentRequest,
    get_topic,
)
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import NetworkId, RunId
from prime_runtime.gossip.libp2p.patches import QUEUE_MAX, GuardedPubsub, ReportFault
from prime_runtime.gossip.libp2p.peer_book import PeerFault
from prime_runtime.rate_limits import RateLimit, TokenBuckets

HEARTBEAT_S = 1
BACKPRESSURE_POLL_S = 0.005
BACKPRESSURE_S_MAX = 1.0
"""Maximum wait for slow peers before a message is published anyway. Peers that cannot keep up lose it, and are not
waited for again until they have caught up."""
HOT_TOPIC_PER_S = 1_000.0


class GossipListener(Protocol):
    """Receives the fate of each message; called in the trio thread."""

    def accepted(self, gossip: ReceivedGossip, forwarder: str) -> None: ...

    def refused(self, forwarder: str, *, is_hostile: bool) -> None: ...

    def ignored(self) -> None: ...

    def blame(self, peer: str, fault: PeerFault) -> None: ...


class GossipSubService:
    """GossipSub on one host. The session runs the services `router` and `pubsub`."""

    def __init__(
        self, host: Any, network: NetworkId, guard: GossipGuard, audience: GossipListener, *, now_ms: Callable[[], int]
    ) -> None:
        self._network = network
        self._guard = guard
        self._audience = audience
        self._now_ms = now_ms
        self._budget = GossipBudget()
        self._laggards: set[Any] = set()
        """Peers that did not catch up while we waited."""
        self.router = GossipSub(
            protocols=[PROTOCOL_ID_V11],
            degree=GOSSIP_MESH,
            degree_low=GOSSIP_MESH_MIN,
            degree_high=GOSSIP_MESH_MAX,
            heartbeat_interval=HEARTBEAT_S,
            adaptive_gossip_enabled=False,
            eclipse_protection_enabled=False,
            spam_protection_enabled=False,
            max_messages_per_topic_per_second=HOT_TOPIC_PER_S,
        )
        self.pubsub = GuardedPubsub(
            host,
            self.router,
            strict_signing=True,
            blame=audience.blame,
            topic_prefix=f"/prime/{network}/",
            now_ms=now_ms,
        )

    def list_gossiping_peers(self) -> set[str]:
        """Peers with an open gossip stream."""
        return {str(peer) for peer in self.pubsub.peers}

    async def join(self, run: RunId) -> None:
        for kind in TOPIC_KINDS:
            name = get_topic(self._network, run, kind)
            # Synchronous: with an async validator a message could be validated, and accepted, twice at once.
            self.pubsub.set_topic_validator(name, self._validator(name, run), False)
            await self.pubsub.subscribe(name)

    async def publish(self, name: str, frame: bytes) -> None:
        """Publish to the peers of the topic at their pace. A peer that reads nothing delays one message only."""
        before = self._crowded()
        with trio.move_on_after(BACKPRESSURE_S_MAX) as patience:
            while self._crowded() - self._laggards:
                await trio.sleep(BACKPRESSURE_POLL_S)
        self._laggards = self._crowded() & (before if patience.cancelled_caught else self._laggards)
        await self.pubsub.publish(name, frame)

    def _crowded(self) -> set[Any]:
        """Peers whose send queue is more than half full."""
        return {peer for peer, queue in self.pubsub.peer_queues.items() if len(queue) > QUEUE_MAX // 2}

    def _validator(self, name: str, run: RunId) -> Callable[[Any, Any], bool]:
        def validate(forwarder: Any, message: Any) -> bool:
            match self._guard.validate(name, message.data, run=run, now_ms=self._now_ms(), budget=self._budget):
                case GossipAccepted(gossip):
                    self._audience.accepted(gossip, str(forwarder))
                    return True
                case GossipIgnored():
                    self._audience.ignored()
                case GossipRejected(is_hostile=is_hostile):
                    self._audience.refused(str(forwarder), is_hostile=is_hostile)
            return False

        return validate


WANTED_BYTES_MAX = PEER_RECORD_BYTES_MAX + 64
KNOWN_BYTES_MAX = PEER_RECORDS_MAX * (PEER_RECORD_BYTES_MAX + 5) + 64
RUN_BYTES_MAX = 256
FRAMING_BYTES = 8 * RECENT_FRAMES_MAX + 64
LENGTH_BYTES = 4
EXCHANGE_S = 5.0
CLOSE_S = 1.0
ASKER_RATE = RateLimit(per_second=1, burst=10)
ASKERS_MAX = 4096
STREAM_FAILURES = (BaseLibp2pError, OSError, trio.TooSlowError)
"""Errors of a stream whose peer is slow, gone or unwilling."""

HARMLESS_FIELDS = frozenset({"Payload.expires_at_ms", "Payload.issued_at_ms", "Payload.version"})
"""Errors of an honest peer: a delayed record, a wrong clock, a newer version."""


def is_hostile(error: RemoteError) -> bool:
    return error.field not in HARMLESS_FIELDS


Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PeerEndpoint(Generic[Question, Answer]):
    """One request and one answer between two peers."""

    protocol: str
    question: type[Question]
    question_bytes_max: int
    answer: type[Answer]
    answer_bytes_max: int


PEERS = PeerEndpoint("/prime/peers/1", PeersRequest, WANTED_BYTES_MAX, PeersReply, KNOWN_BYTES_MAX)
RECENT = PeerEndpoint("/prime/recent/1", RecentRequest, RUN_BYTES_MAX, RecentReply, RECENT_BYTES_MAX + FRAMING_BYTES)


class PeerRequests(Generic[Question, Answer]):
    """Sends and answers the requests of one endpoint on one host."""

    def __init__(
        self,
        host: Any,
        endpoint: PeerEndpoint[Question, Answer],
        *,
        answer: Callable[[str, Question], Answer],
        now_ms: Callable[[], int],
        blame: ReportFault,
    ) -> None:
        """`answer` takes the peer id and the request. RemoteError: the request is invalid."""
        self._host = host
        self._endpoint = endpoint
        self._answer = answer
        self._now_ms = now_ms
        self._blame = blame
        self._askers = TokenBuckets(ASKER_RATE, keys_max=ASKERS_MAX)
        host.set_stream_handler(TProtocol(endpoint.protocol), self._serve)

    async def ask(self, peer: Any, question: Question) -> Answer:
        """The answer of a peer. RemoteError: it broke the protocol. STREAM_FAILURES: no answer."""
        endpoint = self._endpoint
        with trio.fail_after(EXCHANGE_S):
            stream = await self._host.new_stream(peer, [TProtocol(endpoint.protocol)])
            try:
                await _write_message(stream, encode(question))
                return decode(endpoint.answer, await _read_message(stream, endpoint.answer_bytes_max))
            finally:
                await _close_stream(stream)

    async def _serve(self, stream: Any) -> None:
        """InboundGuard resets the stream on any error."""
        peer = str(stream.muxed_conn.peer_id)
        endpoint = self._endpoint
        if self._askers.take(peer, self._now_ms()):
            self._blame(peer, PeerFault.FLOOD)
            await stream.reset()
            return
        try:
            with trio.fail_after(EXCHANGE_S):
                wanted = decode(endpoint.question, await _read_message(stream, endpoint.question_bytes_max))
                await _write_message(stream, encode(self._answer(peer, wanted)))
                await stream.close()
        except RemoteError as error:
            if is_hostile(error):
                self._blame(peer, PeerFault.BAD_CARD)
            raise


async def _read_message(stream: Any, bytes_max: int) -> bytes:
    length = int.from_bytes(await read_exactly(stream, LENGTH_BYTES), "big")
    if not 0 < length <= bytes_max:
        raise RemoteError("length", f"is {length}, allowed is 1 to {bytes_max}")
    return bytes(await read_exactly(stream, length))


async def _write_message(stream: Any, body: bytes) -> None:
    await stream.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)


async def _close_stream(stream: Any) -> None:
    with trio.CancelScope(deadline=trio.current_time() + CLOSE_S, shield=True):
        try:
            await stream.close()
        except STREAM_FAILURES:
            return
