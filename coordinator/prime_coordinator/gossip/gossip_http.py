"""Gossip over HTTP: nodes post the messages they would gossip, and long-poll for those of others. Shell of relay.py.

The gossip guard decides which messages are accepted, as in libp2p. Anyone with a key may read; only registered nodes
and the run's trainer may post and may long-poll.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from prime_coordinator.constants import GOSSIP_ANSWERS_PER_S, GOSSIP_POLL_PAUSE_MS
from prime_coordinator.core import Core
from prime_coordinator.gossip.bootstrap import BootstrapNodes
from prime_coordinator.gossip.relay import GossipRelay
from prime_protocol.constants import ADDRESSES_MAX, RELAY_WAIT_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.guard import GossipGuard, GossipIgnored, GossipRejected
from prime_protocol.gossip.messages import (
    RELAY_POLL,
    RELAY_PUBLISH,
    ReceivedGossip,
    RelayPoll,
    RelayPollReply,
    RelayPublish,
    RelayPublishReply,
    get_frame_kind,
    get_topic,
    open_peer_record,
)
from prime_protocol.ledger.entries import NodeStatus
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.clock import Clock
from prime_runtime.http.messages import RefusalError
from prime_runtime.http.server import Caller, HttpServer

log = logging.getLogger(__name__)

HANDLE_MARGIN_MS = 5_000
"""A long poll is answered this long before the server would time it out."""

NEW, KNOWN, REFUSED = "new", "known", "refused"
"""What becomes of a posted message."""

ForwardGossip = Callable[[RunId, ReceivedGossip], Awaitable[None]]


class Notifier:
    """Wakes every waiter of this moment, and none that comes later."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, most_ms: int) -> None:
        try:
            async with asyncio.timeout(most_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            pass


@dataclass(frozen=True, slots=True)
class GossipMembers:
    """Who may post in a run, by the log. Safe to call from any thread: it only reads."""

    core: Core
    coordinator: NodeId

    def is_trainer(self, run: RunId, node: NodeId) -> bool:
        found = self.core.state.runs.get(run)
        return found is not None and found.terms.trainer == node

    def is_member(self, run: RunId, node: NodeId) -> bool:
        """Whether a node is registered and not banned, or the run's trainer, or the coordinator itself."""
        if node == self.coordinator or self.is_trainer(run, node):
            return True
        found = self.core.state.nodes.get(node)
        return found is not None and found.registered is not None and found.status is not NodeStatus.BANNED

    def get_owner(self, node: NodeId) -> NodeId:
        return self.core.state.owners.get(node, node)

    def make_guard(self, network: NetworkId) -> GossipGuard:
        return GossipGuard(network, is_trainer=self.is_trainer, is_member=self.is_member)


class GossipHttp:
    """Handles posts and polls. A new message goes to the relay and, through `pass_on`, to libp2p."""

    def __init__(
        self,
        members: GossipMembers,
        relay: GossipRelay,
        guard: GossipGuard,
        bootstrap: BootstrapNodes,
        *,
        network: NetworkId,
        clock: Clock,
        handle_ms: int,
    ) -> None:
        self._members = members
        self._relay = relay
        self._guard = guard
        self._bootstrap = bootstrap
        self._network = network
        self._clock = clock
        self._wait_ms_max = max(0, min(RELAY_WAIT_MS_MAX, handle_ms - HANDLE_MARGIN_MS))
        self._urgent, self._news = Notifier(), Notifier()
        self._waiting: dict[NodeId, object] = {}
        self._is_closed = False
        self.shared = Counter({NEW: 0, KNOWN: 0, REFUSED: 0})
        """Posted messages, by what became of them."""
        self.replies = 0
        self.messages_sent = 0
        self.pass_on: ForwardGossip | None = None
        """Set by the gossip service."""
        self.list_peers: Callable[[], tuple[str, ...]] = tuple
        """Addresses of the coordinator on libp2p. Set by the gossip service, too."""

    def add_routes(self, http: HttpServer) -> None:
        http.add(RELAY_PUBLISH, self.post)
        http.add(RELAY_POLL, self.poll, waits=True)

    def close(self) -> None:
        """Answer every waiting poll and accept no new ones."""
        self._is_closed = True
        self._urgent.notify_all()
        self._news.notify_all()

    # --- Posts ------------------------------------------------------------------------------------------------------

    async def post(self, caller: Caller, message: RelayPublish) -> RelayPublishReply:
        try:
            shared = await self._take(caller, message)
        except (RemoteError, RefusalError):
            self.shared[REFUSED] += 1
            raise
        self.shared[NEW if shared.is_new else KNOWN] += 1
        return shared

    async def _take(self, caller: Caller, message: RelayPublish) -> RelayPublishReply:
        run = self._run_of(caller)
        if not self._members.is_member(run, caller.sender):
            raise RefusalError(RefusalCode.FORBIDDEN, "node", f"{caller.sender} is not registered")
        kind = get_frame_kind(message.frame, self._network)
        verdict = self._guard.validate(
            get_topic(self._network, run, kind), message.frame, run=run, now_ms=self._clock.now_ms()
        )
        match verdict:
            case GossipIgnored(reason):
                return RelayPublishReply(is_new=False, reason=reason)
            case GossipRejected(reason):
                raise RemoteError("frame", reason)
        self.put(run, verdict.gossip)
        if self.pass_on is not None:
            await self.pass_on(run, verdict.gossip)
        return RelayPublishReply(is_new=True, reason="")

    def put(self, run: RunId, gossip: ReceivedGossip) -> None:
        """Store a message that the guard accepted, from HTTP or from libp2p."""
        if self._relay.put(run, gossip, self._clock.now_ms()):
            self._urgent.notify_all()
        self._news.notify_all()

    # --- Polls ------------------------------------------------------------------------------------------------------

    async def poll(self, caller: Caller, wanted: RelayPoll) -> RelayPollReply:
        run = self._run_of(caller)
        if self._members.is_member(run, caller.sender):
            if wanted.record:
                self._learn_record(run, caller.sender, wanted.record)
            await self._wait(run, caller.sender, wanted)
        cursor, frames = self._relay.read(run, wanted.seen, self._clock.now_ms())
        self.replies += 1
        self.messages_sent += len(frames)
        return RelayPollReply(
            cursor=cursor,
            trainer=self._members.core.state.runs[run].terms.trainer,
            nodes=self._relay.count_nodes(run),
            peers=self._choose_peers(run, caller.sender) if wanted.wants_peers else (),
            frames=frames,
        )

    def _learn_record(self, run: RunId, node: NodeId, frame: bytes) -> None:
        now_ms = self._clock.now_ms()
        try:
            record = open_peer_record(frame, network=self._network, now_ms=now_ms)
        except RemoteError as error:
            log.debug("the peer record of %s is not used: %s", node, error)  # its gossip goes on without it
            return
        if record.payload.sender == node:
            self._bootstrap.put(run, record, self._members.get_owner(node), now_ms)

    def _choose_peers(self, run: RunId, node: NodeId) -> tuple[str, ...]:
        own = self.list_peers()[:ADDRESSES_MAX]
        return own + self._bootstrap.choose(run, node, self._clock.now_ms())

    def count_waiting(self) -> int:
        return len(self._waiting)

    async def _wait(self, run: RunId, node: NodeId, wanted: RelayPoll) -> None:
        """Wait for new messages; a node's next poll ends its previous one."""
        me = self._waiting[node] = object()
        asked_ms = self._clock.monotonic_ms()
        end_ms = asked_ms + min(wanted.wait_ms, self._wait_ms_max)
        try:
            while not self._is_closed and self._waiting.get(node) is me:
                now_ms = self._clock.monotonic_ms()
                pause_end_ms = asked_ms + self._pause_ms()
                if now_ms >= end_ms or self._relay.has_urgent(run, wanted.seen):
                    return
                if wanted.seen == 0 and self._relay.has_news(run, 0):
                    return  # the node has nothing yet
                if now_ms < pause_end_ms:
                    await self._urgent.wait(min(end_ms, pause_end_ms) - now_ms)
                elif self._relay.has_news(run, wanted.seen):
                    return
                else:
                    await self._news.wait(end_ms - now_ms)
        finally:
            if self._waiting.get(node) is me:
                del self._waiting[node]

    def _pause_ms(self) -> int:
        return max(GOSSIP_POLL_PAUSE_MS, len(self._waiting) * 1000 // GOSSIP_ANSWERS_PER_S)

    def _run_of(self, caller: Caller) -> RunId:
        if caller.run is None or caller.run not in self._members.core.state.runs:
            raise RemoteError("run", f"{caller.run} was not created here")
        return caller.run
