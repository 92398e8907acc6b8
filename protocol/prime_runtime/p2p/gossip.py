"""GossipSub 1.1 of one host: joins topics, publishes, and lets the pure guard judge before anything is passed on.

Why these settings and no others: docs/decisions/0004-libp2p-behind-a-guard.md.
"""

from collections.abc import Callable
from typing import Any, Protocol

import trio
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub

from prime_protocol.gossip import TOPIC_KINDS, Gossip, topic
from prime_protocol.gossip_guard import Accepted, GossipGuard, Ignored, Rejected
from prime_protocol.ids import NetworkId, RunId
from prime_runtime.p2p.guard import QUEUE_MAX, GuardedPubsub
from prime_runtime.p2p.peer_score import Fault

DEGREE, DEGREE_LOW, DEGREE_HIGH = 6, 4, 12
HEARTBEAT_S = 1
PACE_S = 0.005
PACE_S_MAX = 1.0
"""Longest wait for slow peers before a message is published all the same; those who cannot follow lose it, and are not
waited for again until they have caught up."""
HOT_TOPIC_PER_S = 1_000.0


class Audience(Protocol):
    """Who is told what became of a message; all in the trio thread."""

    def accepted(self, gossip: Gossip, forwarder: str) -> None: ...

    def refused(self, forwarder: str, *, is_hostile: bool) -> None: ...

    def ignored(self) -> None: ...

    def blame(self, peer: str, fault: Fault) -> None: ...


class Gossiping:
    """The GossipSub half of a host. `router` and `pubsub` are services to be run."""

    def __init__(
        self, host: Any, network: NetworkId, guard: GossipGuard, audience: Audience, *, now_ms: Callable[[], int]
    ) -> None:
        self._network = network
        self._guard = guard
        self._audience = audience
        self._now_ms = now_ms
        self._laggards: set[Any] = set()
        """Peers that were waited for in vain."""
        self.router = GossipSub(
            protocols=[PROTOCOL_ID_V11],
            degree=DEGREE,
            degree_low=DEGREE_LOW,
            degree_high=DEGREE_HIGH,
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

    def speakers(self) -> set[str]:
        """Peers with an open gossip stream."""
        return {str(peer) for peer in self.pubsub.peers}

    async def join(self, run: RunId) -> None:
        for kind in TOPIC_KINDS:
            name = topic(self._network, run, kind)
            # Sync: with an async validator the same message can be judged, and accepted, twice at once.
            self.pubsub.set_topic_validator(name, self._validator(name, run), False)
            await self.pubsub.subscribe(name)

    async def publish(self, name: str, frame: bytes) -> None:
        """To the peers of the topic, not faster than they take it; one that takes nothing holds up one message."""
        before = self._crowded()
        with trio.move_on_after(PACE_S_MAX) as patience:
            while self._crowded() - self._laggards:
                await trio.sleep(PACE_S)
        self._laggards = self._crowded() & (before if patience.cancelled_caught else self._laggards)
        await self.pubsub.publish(name, frame)

    def _crowded(self) -> set[Any]:
        """Peers for whom more waits than half of what may."""
        return {peer for peer, queue in self.pubsub.peer_queues.items() if len(queue) > QUEUE_MAX // 2}

    def _validator(self, name: str, run: RunId) -> Callable[[Any, Any], bool]:
        def validate(forwarder: Any, message: Any) -> bool:
            match self._guard.judge(name, message.data, run=run, now_ms=self._now_ms()):
                case Accepted(gossip):
                    self._audience.accepted(gossip, str(forwarder))
                    return True
                case Ignored():
                    self._audience.ignored()
                case Rejected(is_hostile=is_hostile):
                    self._audience.refused(str(forwarder), is_hostile=is_hostile)
            return False

        return validate
