"""Patches of libp2p 0.8.1 against remote peers that could stop it. Every patch of a private name is in this file.

The version is pinned: `check_library` refuses any other, and any in which a patched name is missing. The threat that
each patch addresses, with measurements, is in docs/decisions/0004-libp2p-behind-a-guard.md.

Two patches are for speed only. The window patch at the end saves a quarter to a half of the CPU of gossip: the library
reads a length prefix byte by byte and answers each read with a window update; the patch collects credit and returns it
in one update when a quarter of the window has been read. The other is `consume_new_record`: the library verifies the
signed addresses of a peer twice in every message that the peer sends, though they hardly ever change.
"""

import inspect
import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import libp2p.network.connection.swarm_connection
import libp2p.pubsub.gossipsub
import libp2p.pubsub.pubsub
import libp2p.stream_muxer.muxer_multistream
import trio
from libp2p.exceptions import ValidationError
from libp2p.host.basic_host import BasicHost
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.pubsub.utils import maybe_consume_signed_record
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream

from prime_protocol.errors import LocalError
from prime_runtime.gossip.libp2p.peer_book import LOOPBACK, PeerFault
from prime_runtime.rate_limits import ConcurrencyLimit, RateLimit, RateLimitedLogger, TokenBuckets, address_group

log = logging.getLogger(__name__)


PINNED = "0.8.1"
BUFFERED_BYTES_MAX = 4 * 2**20
"""Unread bytes of one connection: four streams with full windows. The library only warns if a peer sends more."""
STREAMS_MAX = 64
"""Open streams per connection. Gossip, identify, ping and exchange need fewer than ten."""
STREAMS_TOTAL_MAX = 4096
QUEUE_MAX = 256
"""Messages waiting to be sent to one peer. The library's 32 would lose two thirds of a burst of 100."""
TOPIC_CHARS_MAX = 160
FORWARD_RATE = RateLimit(per_second=5, burst=500)
"""Messages looked at from one forwarder: above what all budgets let an honest one forward (GOSSIP_BUDGET and a
trainer's announcements), and a backlog of some minutes."""
FORWARDERS_MAX = 4096

PATCHED: tuple[tuple[Any, str], ...] = (
    (libp2p.network.connection.swarm_connection, "logging"),
    (libp2p.stream_muxer.muxer_multistream, "Yamux"),
    (libp2p.pubsub.pubsub, "RpcQueue"),
    (libp2p.pubsub.pubsub, "maybe_consume_signed_record"),
    (libp2p.pubsub.gossipsub, "maybe_consume_signed_record"),
    (Yamux, "secured_conn"),
    (Yamux, "_read_data_body"),
    (Yamux, "stream_buffers"),
    (YamuxStream, "_auto_tune_and_send_window_update"),
    (YamuxStream, "_pending_recv_release"),
    (Pubsub, "push_msg"),
    (Pubsub, "validate_msg"),
    (Pubsub, "continuously_read_stream"),
    (Pubsub, "notify_subscriptions"),
    (Pubsub, "handle_subscription"),
    (Pubsub, "_handle_dead_peer"),
    (Pubsub, "get_msg_validators"),
    (BasicHost, "_swarm_stream_handler"),
    (Swarm, "set_stream_handler"),
    (Swarm, "_do_handle_inbound_connection"),
    (Swarm, "upgrade_inbound_raw_conn"),
    (Swarm, "retry_config"),
    (AutoConnector, "maybe_connect"),
    (Swarm, "unblock_peer"),
)
"""Private names of the library that this package replaces or calls."""

ReportFault = Callable[[str, PeerFault], None]
"""Called with the peer id and the fault."""


def check_library() -> None:
    """LocalError unless the installed library has the pinned version and every patched name."""
    found = version("libp2p")
    if found != PINNED:
        raise LocalError(f"libp2p {found} is installed, the guard fits {PINNED}: pip install libp2p=={PINNED}")
    missing = [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in PATCHED if not _has(owner, name)]
    if missing:
        raise LocalError(f"libp2p {found} lacks what the guard patches: {', '.join(missing)}; install it anew")


def _has(owner: Any, name: str) -> bool:
    """The module or class has the name, or its constructor sets it."""
    if hasattr(owner, name):
        return True
    return inspect.isclass(owner) and f"self.{name}" in inspect.getsource(owner.__init__)


def apply_patches() -> None:
    """Replace classes that the library instantiates itself. It is safe to call this again."""
    libp2p.stream_muxer.muxer_multistream.Yamux = GuardedYamux
    libp2p.pubsub.pubsub.RpcQueue = GuardedQueue
    libp2p.pubsub.pubsub.maybe_consume_signed_record = consume_new_record
    libp2p.pubsub.gossipsub.maybe_consume_signed_record = consume_new_record


def silence_library_logs() -> None:
    """The library logs every bad frame of a remote peer, partly through the root logger."""
    logger = logging.getLogger("libp2p")
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("libp2p."):
            # One of its modules sets its own level.
            logging.getLogger(name).setLevel(logging.NOTSET)
    logger.handlers.clear()
    logger.addHandler(logging.NullHandler())
    logger.setLevel(logging.CRITICAL)
    logger.propagate = False
    logging.getLogger("multiaddr").setLevel(logging.CRITICAL)
    # This module logs through the root logger.
    libp2p.network.connection.swarm_connection.logging = logger


def consume_new_record(message: Any, host: Any, peer: Any) -> bool:
    """Verify and store the signed addresses of the sender, unless they are those that are stored."""
    if message.HasField("senderRecord"):
        stored = host.get_peerstore().get_peer_record(peer)
        if stored is not None and stored.marshal_envelope() == message.senderRecord:
            return True
    return bool(maybe_consume_signed_record(message, host, peer))


NOISE_BYTES = 18
"""What Noise adds to each piece that is written: a length and an authentication tag."""


class CountedConnection:
    """A secured connection that counts its bytes, and remembers when it last received some."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.bytes_in = 0
        self.bytes_out = 0
        self.heard_s = trio.current_time()

    async def read(self, n: int | None = None) -> bytes:
        data = await self._inner.read(n)
        self.bytes_in += len(data)
        self.heard_s = trio.current_time()
        return bytes(data)

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)
        self.bytes_out += len(data) + NOISE_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class GuardedYamux(Yamux):
    """Closes the connection of a peer that ignores flow control. Counts the bytes of the connection."""

    def __init__(self, secured_conn: Any, *args: Any, **more: Any) -> None:
        self.counted = CountedConnection(secured_conn)
        super().__init__(self.counted, *args, **more)

    async def _read_data_body(self, length: int) -> bytes:
        if length + sum(map(len, self.stream_buffers.values())) > BUFFERED_BYTES_MAX:
            # The only exception on which the library closes the connection.
            raise trio.TooSlowError("the peer ignored flow control")
        return bytes(await super()._read_data_body(length))


class GuardedQueue(RpcQueue):
    def __init__(self) -> None:
        super().__init__(max_size=QUEUE_MAX)


class GuardedPubsub(Pubsub):
    """No message of a peer and no failing validator stops the service."""

    def __init__(
        self, *args: Any, blame: ReportFault, topic_prefix: str, now_ms: Callable[[], int], **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._blame = blame
        self._topic_prefix = topic_prefix
        self._now_ms = now_ms
        self._forwarders = TokenBuckets(FORWARD_RATE, keys_max=FORWARDERS_MAX)
        self._log = RateLimitedLogger(log, now_ms)

    async def push_msg(self, msg_forwarder: Any, msg: Any) -> None:
        name = str(msg_forwarder)
        if msg_forwarder != self.my_id and self._forwarders.take(name, self._now_ms()):
            self._blame(name, PeerFault.FLOOD)
            return
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:  # boundary: a message that the library cannot handle must not stop it
            log.debug("dropped a message from %s: %r", name, error)
            self._blame(name, PeerFault.GARBAGE)

    async def validate_msg(self, msg_forwarder: Any, msg: Any) -> None:
        """Validate without the library's cache of verdicts. Its key is sender and number, not content, and it outlives
        the list of seen messages: a second message under an old number would pass unchecked."""
        if msg_forwarder == self.my_id:
            return
        validators = self.get_msg_validators(msg)
        # A second topic would bypass the validator of the first.
        if len(msg.topicIDs) != 1 or not validators:
            self._blame(str(msg_forwarder), PeerFault.FORGED)
            raise ValidationError("a message belongs to one topic")
        try:
            is_valid = validators[0].validator(msg_forwarder, msg)
        except Exception as error:  # boundary: a bug in our validator costs one message, not the service
            self._log.log(logging.ERROR, "the validator of %s failed", msg.topicIDs[0], error=error)
            is_valid = False
        if not is_valid:
            raise ValidationError("not forwarded")

    def notify_subscriptions(self, publish_message: Any) -> None:
        """Not needed: the validator has delivered the message. The library's queue of 32 would lose some."""

    def handle_subscription(self, origin_id: Any, sub_message: Any) -> None:
        """Accept only topics of this network with a bounded name, because the library stores the names."""
        name = sub_message.topicid
        if len(name) <= TOPIC_CHARS_MAX and name.startswith(self._topic_prefix):
            super().handle_subscription(origin_id, sub_message)

    async def continuously_read_stream(self, stream: Any) -> None:
        peer = stream.muxed_conn.peer_id
        try:
            await super().continuously_read_stream(stream)
        except Exception as error:  # boundary: invalid protobuf ends the stream, not the service
            log.debug("reset the gossip stream of %s: %r", peer, error)
            await reset_quietly(stream)
            self._handle_dead_peer(peer)
            self._blame(str(peer), PeerFault.GARBAGE)


async def reset_quietly(stream: Any) -> None:
    try:
        await stream.reset()
    except Exception as error:  # boundary: the other side may be gone in any of the library's ways
        log.debug("cannot reset a stream: %r", error)


class InboundGuard:
    """Limits inbound connections per address and streams per connection."""

    def __init__(
        self, *, connections_max: int, per_address_max: int, is_blocked: Callable[[str], bool], blame: ReportFault
    ) -> None:
        self._connections = ConcurrencyLimit(total_max=connections_max, key_max=per_address_max)
        self._streams = ConcurrencyLimit(total_max=STREAMS_TOTAL_MAX, key_max=STREAMS_MAX)
        self._is_blocked = is_blocked
        self._blame = blame

    def guard(self, host: Any) -> None:
        """Install this guard before the library's handlers of a host."""
        network = host.get_network()
        handler = host._swarm_stream_handler

        async def handle_stream(stream: Any) -> None:
            await self._handle_stream(handler, stream)

        async def handle_connection(closer: Any, listener: Any, failure: Any) -> None:
            await self._handle_connection(network, closer, listener)

        network.set_stream_handler(handle_stream)
        network._do_handle_inbound_connection = handle_connection

    async def _handle_stream(self, handler: Any, stream: Any) -> None:
        connection = id(stream.muxed_conn)
        if not self._streams.enter(connection):
            self._blame(str(stream.muxed_conn.peer_id), PeerFault.FLOOD)
            await reset_quietly(stream)
            return
        try:
            await handler(stream)
        except Exception as error:  # boundary: a failing handler would end the whole host
            log.debug("reset a stream of %s: %r", stream.muxed_conn.peer_id, error)
            await reset_quietly(stream)
        finally:
            self._streams.leave(connection)

    async def _handle_connection(self, network: Any, closer: Any, listener: Any) -> None:
        """Like the library's handler, but it releases the slot when the connection ends, not when the host does."""
        remote = closer.get_remote_address()
        group = address_group(remote[0] if remote else "")
        key = (group, id(closer)) if group in LOOPBACK else group
        if self._is_blocked(group) or not self._connections.enter(key):
            await _close_quietly(closer)
            return
        try:
            raw = RawConnection(closer, False)
            try:
                muxed = await network.upgrade_inbound_raw_conn(raw, listener)
            except Exception as error:  # boundary: whatever a remote peer does instead of a handshake
                log.debug("cannot open a connection from %s: %r", group, error)
                await _close_quietly(raw)
                return
            await muxed.event_closed.wait()
        finally:
            self._connections.leave(key)


async def _close_quietly(closer: Any) -> None:
    try:
        await closer.close()
    except Exception as error:  # boundary: the other side may be gone in any of the library's ways
        log.debug("cannot close a socket: %r", error)


WINDOW_GROWN = 2**20
"""Window of a stream that has carried GROW_AFTER bytes: bulk needs room, a control stream does not."""
GROW_AFTER = 64 * 2**10
ORIGINAL_WINDOW_UPDATE = YamuxStream._auto_tune_and_send_window_update


def apply_window_patch() -> None:
    YamuxStream._auto_tune_and_send_window_update = _update_window


def remove_window_patch() -> None:
    YamuxStream._auto_tune_and_send_window_update = ORIGINAL_WINDOW_UPDATE


async def _update_window(self: Any, *, bytes_read: int = 0) -> None:
    async with self.window_lock:
        self._pending_recv_release += bytes_read
        pending = self._pending_recv_release
        if pending < self.target_recv_window // 4:
            return
        grown = 0
        if self.target_recv_window < WINDOW_GROWN and pending >= GROW_AFTER:
            grown = WINDOW_GROWN - self.target_recv_window
            self.target_recv_window = WINDOW_GROWN
        self._pending_recv_release = 0
        self.recv_window += pending + grown
    await self.send_window_update(pending + grown, skip_lock=True)
