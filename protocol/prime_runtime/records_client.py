"""Gossip through the coordinator: a long poll for what others say, and a way to hand in what we say.

Each frame is judged by the same guard as one that came over libp2p; the coordinator only carries it.
"""

import logging
from collections.abc import Callable

from prime_protocol.constants import RECORDS_WAIT_MS_MAX
from prime_protocol.envelope import open_envelope
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip import TOPIC_KINDS, Gossip, GossipKind, topic
from prime_protocol.gossip_guard import Accepted, GossipGuard
from prime_protocol.ids import NetworkId, NodeId, RunId
from prime_protocol.records import RECORDS, SHARE, Records, RecordsWanted, Share
from prime_runtime.clock import Clock
from prime_runtime.http_client import HttpClient, Server

log = logging.getLogger(__name__)

ANSWER_MS = 15_000
"""How long after its wait an answer may take to arrive."""
SHARE_MS = 5_000
"""Time to hand something in. It is said again anyway."""
GAP_MS = 200
"""Least time between two questions."""
EMPTY_GAP_MS = 1_000
"""The same after an answer that came at once and said nothing: we may not wait, or the coordinator is stopping."""
RETRY_MS = 1_000
RETRY_MS_MAX = 30_000
"""After a question that got no answer, doubling."""


class RecordsClient:
    """One node's line to the records of one run."""

    def __init__(
        self,
        client: HttpClient,
        server: Server,
        *,
        network: NetworkId,
        run: RunId,
        clock: Clock,
        guard: GossipGuard,
        hear: Callable[[Gossip], None],
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

    async def ask(self, wait_ms: int = 0) -> Records:
        """One question; what is new is heard. LocalError: no answer. RemoteError: the answer breaks the protocol."""
        wanted = RecordsWanted(seen=self._seen, wait_ms=wait_ms)
        deadline_ms = wait_ms + ANSWER_MS
        answer = await self._client.call(self._server, RECORDS, wanted, run=self._run, deadline_ms=deadline_ms)
        records = answer.message
        self._seen, self.nodes, self.trainer = records.cursor, records.nodes, records.trainer
        self.problem, self.answered_ms = "", self._clock.now_ms()
        for frame in records.frames:
            self._judge(frame)
        return records

    def _judge(self, frame: bytes) -> None:
        try:
            kind = open_envelope(frame, network=self._network).letter.kind
        except RemoteError as error:
            log.warning("the coordinator passed on a frame that is none: %s", error)
            return
        if kind not in TOPIC_KINDS:
            return  # of a newer protocol
        name = topic(self._network, self._run, GossipKind(kind))
        verdict = self._guard.judge(name, frame, run=self._run, now_ms=self._clock.now_ms())
        if isinstance(verdict, Accepted):
            self._hear(verdict.gossip)
        else:
            log.debug("a record is passed over: %s", verdict.reason)

    async def run(self) -> None:
        """For ever."""
        retry_ms = RETRY_MS
        while True:
            asked_ms = self._clock.monotonic_ms()
            try:
                records = await self.ask(RECORDS_WAIT_MS_MAX)
            except (LocalError, RemoteError) as error:
                if self.problem != str(error):
                    log.warning("no records from the coordinator: %s", error)
                self.problem = str(error)
                await self._clock.sleep_ms(retry_ms)
                retry_ms = min(RETRY_MS_MAX, 2 * retry_ms)
                continue
            retry_ms = RETRY_MS
            was_short = self._clock.monotonic_ms() - asked_ms < EMPTY_GAP_MS
            await self._clock.sleep_ms(EMPTY_GAP_MS if was_short and not records.frames else GAP_MS)

    async def share(self, run: RunId, gossip: Gossip) -> None:
        """A way for Voice."""
        await self._client.call(self._server, SHARE, Share(frame=gossip.frame), run=run, deadline_ms=SHARE_MS)
