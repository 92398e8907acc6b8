"""The peers of a simulated broadcast, their links, and the long polls between them.

A peer runs the real Download and UploadSlots. A flow has the smaller of two fair shares: the sender's uplink over its
running uploads, and the receiver's downlink over its running downloads. Bandwidth that one end leaves unused is not
given to other flows, as TCP would do, so times are slightly too long rather than too short. When a flow starts or ends,
only flows on the same two links change. A long poll for a bitmap is answered when there is news, and only once per pair
in an interval.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from prime_lab.simulator.broadcast.plan import BroadcastPlan, SwarmMember
from prime_node.weights.download import Download
from prime_node.weights.events import DownloadEvent, PollAnswered, PollFailed
from prime_node.weights.parents import ParentScores
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.shardcast.upload_slots import UploadLimits, UploadSlots, UploadTicket


class VirtualClock:
    """Events in the order of their times; those of one time in the order they were planned."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._planned, (max(time_ms, self.now_ms), self._count, action, arguments))

    def after(self, delay_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_ms + delay_ms, action, *arguments)

    def step(self) -> bool:
        """Do the next one; False if nothing is planned."""
        if not self._planned:
            return False
        self.now_ms, _, action, arguments = heappop(self._planned)
        action(*arguments)
        return True

    @property
    def count(self) -> int:
        return self._count


@dataclass(slots=True, eq=False)
class LinkDirection:
    """One direction of one node's connection."""

    bytes_per_ms: float
    flows: dict["Flow", None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way from one node to another."""

    up: LinkDirection
    down: LinkDirection
    left_bytes: float
    done: Callable[[Any], None]
    subject: Any
    rate: float = 0.0
    at_ms: float = 0.0
    due_ms: float = float("inf")
    """Earliest planned look at it; the true end may be later."""
    is_over: bool = False


class FlowScheduler:
    """All flows of one world."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def start(self, flow: Flow) -> None:
        flow.at_ms = self._clock.now_ms
        flow.up.flows[flow] = None
        flow.down.flows[flow] = None
        self._share(flow.up, flow.down)

    def stop(self, flow: Flow) -> None:
        """Before its end, or at it. Stopping twice is harmless."""
        if flow.is_over:
            return
        flow.is_over = True
        self._settle(flow)
        del flow.up.flows[flow], flow.down.flows[flow]
        self._share(flow.up, flow.down)

    def left_bytes(self, flow: Flow) -> float:
        self._settle(flow)
        return flow.left_bytes

    def _settle(self, flow: Flow) -> None:
        now_ms = self._clock.now_ms
        flow.left_bytes = max(0.0, flow.left_bytes - flow.rate * (now_ms - flow.at_ms))
        flow.at_ms = now_ms

    def _share(self, up: LinkDirection, down: LinkDirection) -> None:
        for flow in up.flows:
            self._rate(flow)
        for flow in down.flows:
            if flow.up is not up:
                self._rate(flow)

    def _rate(self, flow: Flow) -> None:
        up, down = flow.up, flow.down
        rate = min(up.bytes_per_ms / len(up.flows), down.bytes_per_ms / len(down.flows))
        if rate == flow.rate:
            return
        self._settle(flow)
        flow.rate = rate
        end_ms = flow.at_ms + flow.left_bytes / rate
        # Only an earlier end is planned anew; a later one is found out when the planned look comes.
        if end_ms < flow.due_ms:
            flow.due_ms = end_ms
            self._clock.at(end_ms, self._look, flow, end_ms)

    def _look(self, flow: Flow, due_ms: float) -> None:
        if flow.is_over or due_ms != flow.due_ms:
            return
        self._settle(flow)
        if flow.left_bytes < 1.0:
            self.stop(flow)
            flow.done(flow.subject)
            flow.subject = None
            return
        flow.due_ms = flow.at_ms + flow.left_bytes / flow.rate
        self._clock.at(flow.due_ms, self._look, flow, flow.due_ms)


MANIFEST = Digest(bytes(32))


@dataclass(slots=True, eq=False)
class ShardRequest:
    """One Fetch on its way, from the asking to the answer."""

    child: "SwarmPeer"
    parent: "SwarmPeer"
    shard: int
    ticket: UploadTicket | None = None
    flow: Flow | None = None
    began_ms: float = 0.0
    is_answered: bool = False
    """The child has, or will shortly have, its one answer."""


@dataclass(slots=True)
class PollState:
    """What a node remembers of one that polls it."""

    told_version: int = -1
    told_ms: float = -1e9
    asked: int = 0
    """Number of the poll that waits; 0 if none does."""
    is_planned: bool = False


@dataclass(slots=True)
class PeerStats:
    """What one node saw."""

    finished_ms: float | None = None
    received_bytes: int = 0
    corrupt_shards: int = 0
    corrupt_bytes: int = 0
    twice_bytes: int = 0
    sent_bytes: float = 0.0
    fulls: int = 0
    cancels: int = 0
    fails: int = 0


@dataclass(slots=True, eq=False)
class SwarmPeer:
    """Member `index` of the plan, alive."""

    index: int
    id: NodeId
    member: SwarmMember
    address: str
    up: LinkDirection
    down: LinkDirection
    slots: UploadSlots
    download: Download | None
    """None at the origin and at a malicious node: they fetch nothing."""
    has: int = 0
    """Bitmap of the shards it serves."""
    sent: int = 0
    """Bitmap of the shards that it has begun to send."""
    maps: tuple[bytes, bytes] = (b"", b"")
    version: int = 0
    is_there: bool = False
    is_gone: bool = False
    wake_ms: float = float("inf")
    listeners: dict[int, PollState] = field(default_factory=dict)
    requests: dict[tuple[int, int], ShardRequest] = field(default_factory=dict)
    """Its own fetches, by parent and shard."""
    serving: dict[ShardRequest, None] = field(default_factory=dict)
    waiting: dict[int, list[ShardRequest]] = field(default_factory=dict)
    """Children's requests for a shard that is still coming."""
    progress_planned: bool = False
    tally: PeerStats = field(default_factory=PeerStats)

    def depth(self) -> int:
        return self.download.depth() if self.download else 0

    def expects(self, shard: int) -> bool:
        return bool(self.maps[1]) and self.maps[1][shard >> 3] >> (shard & 7) & 1 == 1


def make_peer(index: int, plan: BroadcastPlan) -> SwarmPeer:
    member = plan.members[index]
    fetches = index > 0 and not member.lies
    everything = (1 << len(plan.lengths)) - 1
    raw = everything.to_bytes((len(plan.lengths) + 7) // 8, "little")
    none = bytes(len(raw))
    rng = Random(f"{plan.seed} {index}")
    download = Download(plan.lengths, (), ParentScores(), rng, plan.limits) if fetches else None
    limits = UploadLimits(slots=member.slots, address_slots=min(2, member.slots))
    return SwarmPeer(
        index=index,
        id=NodeId(index.to_bytes(20, "big")),
        member=member,
        address=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
        up=LinkDirection(member.up_bytes_per_s / 1000),
        down=LinkDirection(member.down_bytes_per_s / 1000),
        slots=UploadSlots(limits),
        download=download,
        has=0 if fetches else everything,
        maps=(none if fetches else raw, none),
    )


class LongPolls:
    """All pairs of one swarm."""

    def __init__(
        self,
        clock: VirtualClock,
        plan: BroadcastPlan,
        peers: list[SwarmPeer],
        tell: Callable[[SwarmPeer, DownloadEvent], None],
    ) -> None:
        self._clock = clock
        self._peers = peers
        self._plan = plan
        self._tell = tell
        self._asked = 0

    def ask(self, child: SwarmPeer, parent: SwarmPeer) -> None:
        self._clock.after(child.member.delay_ms + parent.member.delay_ms, self._receive, child, parent)

    def publish(self, parent: SwarmPeer) -> None:
        """Its bitmaps changed."""
        for index, listener in parent.listeners.items():
            if listener.asked and not listener.is_planned:
                self._plan_answer(index, parent, listener)

    def close(self, parent: SwarmPeer) -> None:
        """It left. Those who wait notice at once, or only when they lose patience."""
        for child, listener in parent.listeners.items():
            if listener.asked:
                delay_ms = self._plan.poll_ms if parent.member.is_silent else 50.0
                self._clock.after(delay_ms, self._fail, child, parent)
        parent.listeners.clear()

    def _receive(self, child: SwarmPeer, parent: SwarmPeer) -> None:
        if child.is_gone or child.tally.finished_ms is not None:
            return
        if parent.is_gone or not parent.is_there:
            is_lost = parent.is_gone and parent.member.is_silent
            self._clock.after(self._plan.connect_ms if is_lost else 50.0, self._fail, child.index, parent)
            return
        listener = parent.listeners.setdefault(child.index, PollState())
        self._asked += 1
        listener.asked = self._asked
        if listener.told_version != parent.version:
            self._plan_answer(child.index, parent, listener)
        else:
            self._clock.after(self._plan.poll_ms, self._answer, child.index, parent, self._asked)

    def _plan_answer(self, child: int, parent: SwarmPeer, listener: PollState) -> None:
        listener.is_planned = True
        self._clock.at(listener.told_ms + self._plan.have_ms, self._answer, child, parent, listener.asked)

    def _answer(self, child: int, parent: SwarmPeer, asked: int) -> None:
        listener = parent.listeners.get(child)
        if listener is None or listener.asked != asked:
            return
        listener.asked, listener.is_planned = 0, False
        listener.told_version, listener.told_ms = parent.version, self._clock.now_ms
        held, coming = parent.maps
        free = parent.slots.slots_free(int(self._clock.now_ms))
        told = PollAnswered(parent.id, held, coming, free, parent.depth())
        peer = self._peers[child]
        self._clock.after(peer.member.delay_ms + parent.member.delay_ms, self._tell, peer, told)

    def _fail(self, child: int, parent: SwarmPeer) -> None:
        self._tell(self._peers[child], PollFailed(parent.id))
