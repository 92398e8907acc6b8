"""Records over HTTP: nodes hand in what they would gossip, and wait for what others say. The shell around board.py.

Who may say what is the guard's to judge, the same as in gossip. Anybody with a key may look; only nodes that are
registered, and the run's trainer, may hand in and may wait.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from prime_coordinator.board import Board
from prime_coordinator.constants import RECORDS_ANSWERS_PER_S, RECORDS_PAUSE_MS
from prime_coordinator.core import Core
from prime_protocol.constants import RECORDS_WAIT_MS_MAX
from prime_protocol.entries import NodeStatus
from prime_protocol.envelope import open_envelope
from prime_protocol.errors import RemoteError
from prime_protocol.exchange import RefusalCode
from prime_protocol.gossip import TOPIC_KINDS, Gossip, GossipKind, topic
from prime_protocol.gossip_guard import GossipGuard, Ignored, Rejected
from prime_protocol.ids import NetworkId, NodeId, RunId
from prime_protocol.records import RECORDS, SHARE, Records, RecordsWanted, Share, Shared
from prime_runtime.clock import Clock
from prime_runtime.http_body import RefuseRequest
from prime_runtime.http_server import Caller, HttpServer

HANDLE_SPARE_MS = 5_000
"""An answer that waited for news is sent this long before the server would give it up."""

NEW, KNOWN, REFUSED = "new", "known", "refused"
"""What becomes of a frame that is handed in."""

PassOn = Callable[[RunId, Gossip], Awaitable[None]]


class Bell:
    """Wakes everybody who waits now, and nobody who comes later."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, most_ms: int) -> None:
        try:
            async with asyncio.timeout(most_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            pass


@dataclass(frozen=True, slots=True)
class Members:
    """Who may say something in a run, by the log. Asked from any thread; it only looks things up."""

    core: Core
    coordinator: NodeId

    def is_trainer(self, run: RunId, node: NodeId) -> bool:
        found = self.core.state.runs.get(run)
        return found is not None and found.terms.trainer == node

    def is_member(self, run: RunId, node: NodeId) -> bool:
        """Registered and not banned, or the run's trainer, or the coordinator itself."""
        if node == self.coordinator or self.is_trainer(run, node):
            return True
        found = self.core.state.nodes.get(node)
        return found is not None and found.registered is not None and found.status is not NodeStatus.BANNED

    def make_guard(self, network: NetworkId) -> GossipGuard:
        return GossipGuard(network, is_trainer=self.is_trainer, is_member=self.is_member)


class RecordsDesk:
    """Answers `share` and `records`. What is new goes to the board, and by `pass_on` to gossip."""

    def __init__(
        self, members: Members, board: Board, guard: GossipGuard, *, network: NetworkId, clock: Clock, handle_ms: int
    ) -> None:
        self._members = members
        self._board = board
        self._guard = guard
        self._network = network
        self._clock = clock
        self._wait_ms_max = max(0, min(RECORDS_WAIT_MS_MAX, handle_ms - HANDLE_SPARE_MS))
        self._urgent, self._news = Bell(), Bell()
        self._waiting: dict[NodeId, object] = {}
        self._is_closed = False
        self.shared = Counter({NEW: 0, KNOWN: 0, REFUSED: 0})
        """Frames handed in, by what became of them."""
        self.answers = 0
        self.frames_told = 0
        self.pass_on: PassOn | None = None
        """Set by whoever gossips."""
        self.list_peers: Callable[[], tuple[str, ...]] = tuple
        """Where the coordinator can be dialled over libp2p. Set by whoever gossips, too."""

    def add_routes(self, http: HttpServer) -> None:
        http.add(SHARE, self.share)
        http.add(RECORDS, self.answer, waits=True)

    def close(self) -> None:
        """Answer everybody who waits, and let nobody wait any more."""
        self._is_closed = True
        self._urgent.ring()
        self._news.ring()

    # --- Handing in -------------------------------------------------------------------------------------------------

    async def share(self, caller: Caller, message: Share) -> Shared:
        try:
            shared = await self._take(caller, message)
        except (RemoteError, RefuseRequest):
            self.shared[REFUSED] += 1
            raise
        self.shared[NEW if shared.is_new else KNOWN] += 1
        return shared

    async def _take(self, caller: Caller, message: Share) -> Shared:
        run = self._run_of(caller)
        if not self._members.is_member(run, caller.sender):
            raise RefuseRequest(RefusalCode.FORBIDDEN, "node", f"{caller.sender} is not registered")
        kind = read_kind(message.frame, self._network)
        verdict = self._guard.judge(
            topic(self._network, run, kind), message.frame, run=run, now_ms=self._clock.now_ms()
        )
        match verdict:
            case Ignored(reason):
                return Shared(is_new=False, reason=reason)
            case Rejected(reason):
                raise RemoteError("frame", reason)
        self.put(run, verdict.gossip)
        if self.pass_on is not None:
            await self.pass_on(run, verdict.gossip)
        return Shared(is_new=True, reason="")

    def put(self, run: RunId, gossip: Gossip) -> None:
        """What the guard has accepted, whichever way it came."""
        if self._board.put(run, gossip, self._clock.now_ms()):
            self._urgent.ring()
        self._news.ring()

    # --- Asking -----------------------------------------------------------------------------------------------------

    async def answer(self, caller: Caller, wanted: RecordsWanted) -> Records:
        run = self._run_of(caller)
        if self._members.is_member(run, caller.sender):
            await self._wait(run, caller.sender, wanted)
        cursor, frames = self._board.read(run, wanted.seen, self._clock.now_ms())
        self.answers += 1
        self.frames_told += len(frames)
        return Records(
            cursor=cursor,
            trainer=self._members.core.state.runs[run].terms.trainer,
            nodes=self._board.count_nodes(run),
            peers=self.list_peers(),
            frames=frames,
        )

    def count_waiting(self) -> int:
        return len(self._waiting)

    async def _wait(self, run: RunId, node: NodeId, wanted: RecordsWanted) -> None:
        """Until there is something; a node's next question ends the one before."""
        me = self._waiting[node] = object()
        asked_ms = self._clock.monotonic_ms()
        end_ms = asked_ms + min(wanted.wait_ms, self._wait_ms_max)
        try:
            while not self._is_closed and self._waiting.get(node) is me:
                now_ms = self._clock.monotonic_ms()
                pause_end_ms = asked_ms + self._pause_ms()
                if now_ms >= end_ms or self._board.has_urgent(run, wanted.seen):
                    return
                if wanted.seen == 0 and self._board.has_news(run, 0):
                    return  # it knows nothing yet
                if now_ms < pause_end_ms:
                    await self._urgent.wait(min(end_ms, pause_end_ms) - now_ms)
                elif self._board.has_news(run, wanted.seen):
                    return
                else:
                    await self._news.wait(end_ms - now_ms)
        finally:
            if self._waiting.get(node) is me:
                del self._waiting[node]

    def _pause_ms(self) -> int:
        return max(RECORDS_PAUSE_MS, len(self._waiting) * 1000 // RECORDS_ANSWERS_PER_S)

    def _run_of(self, caller: Caller) -> RunId:
        if caller.run is None or caller.run not in self._members.core.state.runs:
            raise RemoteError("run", f"{caller.run} was not created here")
        return caller.run


def read_kind(frame: bytes, network: NetworkId) -> GossipKind:
    """What a frame claims to be, so that it can be judged as such."""
    kind = open_envelope(frame, network=network).letter.kind
    if kind not in TOPIC_KINDS:
        raise RemoteError("frame", f"is a {kind}; shared are {', '.join(TOPIC_KINDS)}")
    return GossipKind(kind)
