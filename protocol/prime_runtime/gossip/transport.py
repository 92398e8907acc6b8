"""Saying something to a run: sealed once, judged by our own guard, then sent by every way there is.

Our own frame passes the guard like a stranger's: what others would not pass on is not sent, and a copy that comes back
is known.

Gossip through the coordinator: a long poll for what others say, and a way to hand in what we say.

Each frame is judged by the same guard as one that came over libp2p; the coordinator only carries it.

libp2p where it is wanted and works, and a plain reason where not. The rest of a program goes on either way.

The library is imported only when the half starts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from prime_protocol.constants import RELAY_WAIT_MS_MAX
from prime_protocol.errors import LocalError, RemoteError
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
"""Sends one accepted message; LocalError or RemoteError where that does not work now."""


class GossipPublisher:
    """What one key says."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        guard: GossipGuard,
        *,
        clock: Clock,
        sequence: SequenceCounter,
        ways: tuple[SendGossip, ...],
    ) -> None:
        self._key = key
        self._network = network
        self._guard = guard
        self._clock = clock
        self._sequence = sequence
        self._ways = ways
        self.failures: dict[int, str] = {}
        """By the number of the way: why it last failed; none where it works."""

    async def publish(
        self, run: RunId, message: CheckpointAnnounced | ServingRecord | HeadSeen, *, known_nodes: int = 0
    ) -> ReceivedGossip | None:
        """The message as it went out; None if it came too soon after others, or we may not say it."""
        now_ms = self._clock.now_ms()
        frame = seal_gossip(
            self._key,
            message,
            network=self._network,
            run=run,
            sequence=self._sequence.next(now_ms),
            now_ms=now_ms,
            known_nodes=known_nodes,
        )
        verdict = self._guard.validate(
            get_topic(self._network, run, MESSAGE_KINDS[type(message)]), frame, run=run, now_ms=now_ms
        )
        if not isinstance(verdict, GossipAccepted):
            log.debug("not said: %s: %s", type(message).__name__, verdict.reason)
            return None
        await asyncio.gather(*(self._send(number, way, run, verdict.gossip) for number, way in enumerate(self._ways)))
        return verdict.gossip

    async def _send(self, number: int, way: SendGossip, run: RunId, gossip: ReceivedGossip) -> None:
        try:
            await way(run, gossip)
            self.failures.pop(number, None)
        except (LocalError, RemoteError) as error:
            if self.failures.get(number) != str(error):
                log.info("a %s did not go out: %s", gossip.kind, error)
            self.failures[number] = str(error)


POLL_ANSWER_MS = 15_000
"""How long after its wait an answer may take to arrive."""
SEND_MS = 5_000
"""Time to hand something in. It is said again anyway."""
POLL_GAP_MS = 200
"""Least time between two questions."""
POLL_EMPTY_GAP_MS = 1_000
"""The same after an answer that came at once and said nothing: we may not wait, or the coordinator is stopping."""
RETRY_MS = 1_000
RETRY_MS_MAX = 30_000
"""After a question that got no answer, doubling."""


class GossipHttpClient:
    """One node's line to the records of one run."""

    def __init__(
        self,
        client: HttpClient,
        server: ServerAddress,
        *,
        network: NetworkId,
        run: RunId,
        clock: Clock,
        guard: GossipGuard,
        hear: Callable[[ReceivedGossip], None],
    ) -> None:
        self._client = client
        self._server = server
        self._network = network
        self._run = run
        self._clock = clock
        self._guard = guard
        self._hear = hear
        self._seen = 0
        self.nodes = 0
        """Nodes that serve in the run, as the coordinator knows it."""
        self.trainer: NodeId | None = None
        """Whose announcements count, as the coordinator last said."""
        self.problem = "nothing was asked yet"
        """Why the last question got no answer; empty where it got one."""
        self.answered_ms: int | None = None
        """When an answer last came, on the wall clock."""

    async def poll(self, wait_ms: int = 0) -> RelayPollReply:
        """One question; what is new is heard. LocalError: no answer. RemoteError: the answer breaks the protocol."""
        wanted = RelayPoll(seen=self._seen, wait_ms=wait_ms)
        deadline_ms = wait_ms + POLL_ANSWER_MS
        answer = await self._client.call(self._server, RELAY_POLL, wanted, run=self._run, deadline_ms=deadline_ms)
        records = answer.message
        self._seen, self.nodes, self.trainer = records.cursor, records.nodes, records.trainer
        self.problem, self.answered_ms = "", self._clock.now_ms()
        for frame in records.frames:
            self._judge(frame)
        return records

    def _judge(self, frame: bytes) -> None:
        try:
            kind = open_envelope(frame, network=self._network).payload.kind
        except RemoteError as error:
            log.warning("the coordinator passed on a frame that is none: %s", error)
            return
        if kind not in TOPIC_KINDS:
            return  # of a newer protocol
        name = get_topic(self._network, self._run, GossipKind(kind))
        verdict = self._guard.validate(name, frame, run=self._run, now_ms=self._clock.now_ms())
        if isinstance(verdict, GossipAccepted):
            self._hear(verdict.gossip)
        else:
            log.debug("a record is passed over: %s", verdict.reason)

    async def run(self) -> None:
        """For ever."""
        retry_ms = RETRY_MS
        while True:
            asked_ms = self._clock.monotonic_ms()
            try:
                records = await self.poll(RELAY_WAIT_MS_MAX)
            except (LocalError, RemoteError) as error:
                if self.problem != str(error):
                    log.warning("no records from the coordinator: %s", error)
                self.problem = str(error)
                await self._clock.sleep_ms(retry_ms)
                retry_ms = min(RETRY_MS_MAX, 2 * retry_ms)
                continue
            retry_ms = RETRY_MS
            was_short = self._clock.monotonic_ms() - asked_ms < POLL_EMPTY_GAP_MS
            await self._clock.sleep_ms(POLL_EMPTY_GAP_MS if was_short and not records.frames else POLL_GAP_MS)

    async def send(self, run: RunId, gossip: ReceivedGossip) -> None:
        """A way for Voice."""
        await self._client.call(
            self._server, RELAY_PUBLISH, RelayPublish(frame=gossip.frame), run=run, deadline_ms=SEND_MS
        )


JOIN_POLL_MS = 1_000
"""Between two looks for runs that were created."""


class Libp2pTransport:
    """One part of a program: `run` it under a supervisor."""

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
        self.reason = "it has not started yet" if config.enabled else "p2p.enabled is false"
        """Why it is off; empty while it runs."""

    def add_bootstrap(self, peers: Iterable[str]) -> None:
        """More peers to dial first; before the start."""
        known = dict.fromkeys((*self._config.bootstrap, *peers))
        own = self._key.peer_id()
        wanted = [peer for peer in known if not peer.endswith(own)][:BOOTSTRAP_MAX]
        self._config = replace(self._config, bootstrap=tuple(wanted))

    @property
    def bootstrap(self) -> tuple[str, ...]:
        return self._config.bootstrap

    async def run(self, deliver: Callable[[ReceivedGossip], None], list_runs: Callable[[], Iterable[RunId]]) -> None:
        """Until cancelled; at once if it is not wanted or cannot be had. LocalError: it may work later."""
        if not self._config.enabled:
            log.info("gossip over libp2p is off (%s); records travel over HTTP", self.reason)
            return
        try:
            from prime_runtime.gossip.libp2p.node import P2PNode
        except LocalError as error:
            self.reason = str(error)
            log.warning("gossip over libp2p is off: %s; records travel over HTTP", error)
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
            self.reason = self.reason or "it is starting again"
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

    async def send(self, run: RunId, gossip: ReceivedGossip) -> None:
        """A way for Voice, and for what came by another way. LocalError while it is down; nothing while it is off."""
        if self._node is not None and run in self._joined:
            await self._node.publish_frame(run, gossip.kind, gossip.frame)

    def status(self) -> P2PStatus | None:
        """None while it is off."""
        return self._node.status() if self._node is not None else None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it can be dialled."""
        status = self.status()
        return status.addresses if status else ()
