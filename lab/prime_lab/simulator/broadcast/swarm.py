"""The broadcast in virtual time: carries the effects of every Download to the UploadSlots of the others, and back.

It does in the simplest form what the daemon's rim does: requests, waiting, streaming, long polls, serving records. It
makes no decisions; those are the node's own code. Its report compares the time of each node that stayed with the lower
limit.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import assert_never

from prime_lab.simulator.broadcast.peers import (
    MANIFEST,
    Flow,
    FlowScheduler,
    LongPolls,
    ShardRequest,
    SwarmPeer,
    VirtualClock,
    make_peer,
)
from prime_lab.simulator.broadcast.plan import NEVER_MS, BroadcastPlan, compute_bound_s, compute_star_s
from prime_node.weights.events import (
    CancelTransfer,
    DownloadEvent,
    DownloadFinished,
    DownloadTick,
    DropParent,
    FailReason,
    FetchShard,
    ParentFound,
    ParentFull,
    PollParent,
    ShardArrived,
    ShardCorrupt,
    ShardFailed,
    TransferProgressed,
)
from prime_protocol.weights.transfer import encode_bitmap
from prime_protocol.wire.ids import NodeId
from prime_runtime.shardcast.shard_set import choose_advertised
from prime_runtime.shardcast.upload_slots import UploadRefused

Trace = Callable[[float, int, object], None]


class BroadcastSimulation:
    """One run of one plan."""

    def __init__(self, plan: BroadcastPlan, trace: Trace | None = None) -> None:
        self.plan = plan
        self.clock = VirtualClock()
        self._flows = FlowScheduler(self.clock)
        self._rng = Random(f"swarm {plan.seed}")
        self._trace = trace
        self.peers = [make_peer(index, plan) for index in range(len(plan.members))]
        self._by_id: dict[NodeId, SwarmPeer] = {peer.id: peer for peer in self.peers}
        self._polls = LongPolls(self.clock, plan, self.peers, self.tell)
        self._unfinished = 0
        for peer in self.peers:
            self._plan_life(peer)

    def run(self) -> "BroadcastSimulation":
        # Millions of small objects that live long: looking for cycles among them costs a third of the time.
        gc.disable()
        try:
            while self._unfinished and self.clock.now_ms < self.plan.end_ms and self.clock.step():
                pass
        finally:
            gc.enable()
        return self

    # --- Coming and going -------------------------------------------------------------------------------------------

    def _plan_life(self, peer: SwarmPeer) -> None:
        member = peer.member
        if member.joins_ms >= member.leaves_ms:
            peer.is_gone = True
            return
        self._unfinished += peer.download is not None
        self.clock.at(member.joins_ms, self._join, peer)
        if member.leaves_ms != NEVER_MS:
            self.clock.at(member.leaves_ms, self.leave, peer)

    def _join(self, peer: SwarmPeer) -> None:
        peer.is_there = True
        if peer.download is None:
            return
        known = min(self.plan.known, len(self.peers) - 1)
        others = self._rng.sample(range(1, len(self.peers)), known) if known else []
        for index in [0, *others]:
            if index != peer.index:
                other = self.peers[index]
                found = ParentFound(other.id, 0 if index == 0 or other.member.lies else 2, other.member.slots)
                self.clock.after(self._rng.uniform(0, self.plan.record_ms), self.tell, peer, found)

    def leave(self, peer: SwarmPeer) -> None:
        """It is gone: with a reset on every connection, or without a word."""
        if peer.is_gone:
            return
        peer.is_gone, peer.is_there = True, False
        self._unfinished -= peer.download is not None and peer.tally.finished_ms is None
        for request in list(peer.requests.values()):
            self._end(request)
        for request in list(peer.serving):
            self._end(request)
            if not peer.member.is_silent:
                self._answer(request, ShardFailed(peer.id, request.shard, FailReason.BROKEN))
        self._polls.close(peer)

    # --- Events and effects -----------------------------------------------------------------------------------------

    def tell(self, peer: SwarmPeer, event: DownloadEvent) -> None:
        """Hand an event to a node's decisions, and carry out what they want."""
        if peer.is_gone or peer.download is None:
            return
        download, now_ms = peer.download, int(self.clock.now_ms)
        if self._trace:
            self._trace(self.clock.now_ms, peer.index, event)
        for effect in download.handle(event, now_ms):
            match effect:
                case PollParent(parent):
                    self._polls.ask(peer, self._by_id[parent])
                case FetchShard(parent, shard):
                    self._fetch(peer, self._by_id[parent], shard)
                case CancelTransfer(parent, shard):
                    self._cancel(peer, self._by_id[parent], shard)
                case DownloadFinished():
                    peer.tally.finished_ms = self.clock.now_ms
                    self._unfinished -= 1
                case DropParent():
                    pass
                case _:
                    assert_never(effect)
        self._show(peer)
        if download.wake_ms < peer.wake_ms:
            peer.wake_ms = download.wake_ms
            self.clock.at(peer.wake_ms, self._wake, peer, peer.wake_ms)

    def _wake(self, peer: SwarmPeer, planned_ms: float) -> None:
        if planned_ms != peer.wake_ms or peer.download is None:
            return
        peer.wake_ms = float("inf")
        due_ms = peer.download.wake_ms
        if due_ms > self.clock.now_ms:
            if due_ms < self.plan.end_ms:
                peer.wake_ms = due_ms
                self.clock.at(due_ms, self._wake, peer, due_ms)
            return
        self.tell(peer, DownloadTick())

    def _show(self, peer: SwarmPeer) -> None:
        """If its bitmaps changed, those who poll it hear of it."""
        assert peer.download is not None
        maps = (peer.download.held, peer.download.coming)
        if maps != peer.maps:
            peer.maps = maps
            peer.version += 1
            self._polls.publish(peer)

    def _delay_ms(self, one: SwarmPeer, other: SwarmPeer) -> float:
        return one.member.delay_ms + other.member.delay_ms

    # --- Asking for a shard -----------------------------------------------------------------------------------------

    def _fetch(self, child: SwarmPeer, parent: SwarmPeer, shard: int) -> None:
        request = ShardRequest(child, parent, shard)
        child.requests[parent.index, shard] = request
        self.clock.after(self._delay_ms(child, parent), self._receive, request)

    def _receive(self, request: ShardRequest) -> None:
        """The request has reached the parent."""
        parent, child, shard = request.parent, request.child, request.shard
        if request.is_answered or child.is_gone:
            return
        if parent.is_gone:
            late_ms = self.plan.connect_ms if parent.member.is_silent else 0.0
            self._answer(request, ShardFailed(parent.id, shard, FailReason.BROKEN), late_ms)
            return
        holds = parent.has >> shard & 1
        if not parent.is_there or not (holds or parent.expects(shard)):
            self._answer(request, ShardFailed(parent.id, shard, FailReason.ABSENT))
            return
        answer = parent.slots.request_slot(child.id, child.address, MANIFEST, int(self.clock.now_ms))
        if isinstance(answer, UploadRefused):
            child.tally.fulls += 1
            children = tuple((each, parent.depth() + 1) for each in answer.children)
            self._answer(request, ParentFull(parent.id, shard, answer.retry_ms, children))
            return
        request.ticket = answer.ticket
        parent.serving[request] = None
        if holds:
            self._stream(request)
        else:
            parent.waiting.setdefault(shard, []).append(request)
            self.clock.after(self.plan.wait_ms, self._give_up, request)

    def _give_up(self, request: ShardRequest) -> None:
        if request.flow is None and not request.is_answered:
            self._end(request)
            self._answer(request, ShardFailed(request.parent.id, request.shard, FailReason.TIMED_OUT))

    def _stream(self, request: ShardRequest) -> None:
        length = self.plan.lengths[request.shard]
        self._note_sent(request.parent, request.shard)
        request.began_ms = self.clock.now_ms
        request.flow = Flow(request.parent.up, request.child.down, length, self._complete, request)
        self._flows.start(request.flow)
        self.clock.after(self._delay_ms(request.child, request.parent), self._begin, request)

    def _note_sent(self, parent: SwarmPeer, shard: int) -> None:
        """The origin names what it has not sent yet, as a real one does."""
        if parent.download is None and not parent.member.lies and not parent.sent >> shard & 1:
            parent.sent |= 1 << shard
            held = choose_advertised(parent.has, parent.sent, is_origin=True)
            parent.maps = (encode_bitmap(held, len(self.plan.lengths)), parent.maps[1])
            parent.version += 1
            self._polls.publish(parent)

    def _begin(self, request: ShardRequest) -> None:
        """The first bytes have reached the child."""
        child = request.child
        if request.is_answered or child.is_gone:
            return
        self.tell(child, TransferProgressed(request.parent.id, request.shard, 1))
        if not child.progress_planned:
            child.progress_planned = True
            self.clock.after(self.plan.progress_ms, self._tell_progress, child)

    def _tell_progress(self, child: SwarmPeer) -> None:
        child.progress_planned = False
        running = [each for each in child.requests.values() if each.flow is not None and not each.is_answered]
        for request in running:
            assert request.flow is not None
            received = self.plan.lengths[request.shard] - self._flows.left_bytes(request.flow)
            self.tell(child, TransferProgressed(request.parent.id, request.shard, int(received)))
        if running and not child.is_gone:
            child.progress_planned = True
            self.clock.after(self.plan.progress_ms, self._tell_progress, child)

    # --- Ends -------------------------------------------------------------------------------------------------------

    def _complete(self, request: ShardRequest) -> None:
        """The last byte has left the parent."""
        self._end(request)
        parent, shard = request.parent, request.shard
        elapsed_ms = int(self.clock.now_ms - request.began_ms)
        length = self.plan.lengths[shard]
        if parent.member.lies:
            self._answer(request, ShardCorrupt(parent.id, shard))
        else:
            self._answer(request, ShardArrived(parent.id, shard, length, elapsed_ms))

    def _end(self, request: ShardRequest) -> None:
        """Free the slot and the lines."""
        sent = 0.0
        if request.flow is not None:
            self._flows.stop(request.flow)
            sent = self.plan.lengths[request.shard] - request.flow.left_bytes
        if request in request.parent.serving:
            del request.parent.serving[request]
            assert request.ticket is not None
            request.parent.tally.sent_bytes += sent
            request.parent.slots.finish(request.ticket, int(sent), int(self.clock.now_ms))

    def _answer(self, request: ShardRequest, event: DownloadEvent, late_ms: float = 0.0) -> None:
        if not request.is_answered:
            request.is_answered = True
            delay_ms = self._delay_ms(request.child, request.parent) + late_ms
            self.clock.after(delay_ms, self._deliver, request, event)

    def _deliver(self, request: ShardRequest, event: DownloadEvent) -> None:
        child = request.child
        if child.requests.get((request.parent.index, request.shard)) is not request:
            return
        del child.requests[request.parent.index, request.shard]
        if not child.is_gone:
            self._count(child, request, event)
            self.tell(child, event)
            if isinstance(event, ShardArrived):
                self._release_waiting(child, request.shard)

    def _count(self, child: SwarmPeer, request: ShardRequest, event: DownloadEvent) -> None:
        tally, length = child.tally, self.plan.lengths[request.shard]
        match event:
            case ShardArrived():
                tally.received_bytes += length
                tally.twice_bytes += length * (child.has >> request.shard & 1)
                child.has |= 1 << request.shard
            case ShardCorrupt():
                tally.corrupt_shards += 1
                tally.corrupt_bytes += length
            case ShardFailed(_, _, reason) if reason is not FailReason.STALLED:
                tally.fails += 1

    def _release_waiting(self, parent: SwarmPeer, shard: int) -> None:
        for request in parent.waiting.pop(shard, ()):
            if not request.is_answered and request in parent.serving:
                self._stream(request)

    def _cancel(self, child: SwarmPeer, parent: SwarmPeer, shard: int) -> None:
        request = child.requests.get((parent.index, shard))
        if request is None:
            return
        child.tally.cancels += 1
        self._end(request)
        request.is_answered = True
        self.clock.after(0.0, self._deliver, request, ShardFailed(parent.id, shard, FailReason.STALLED))


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastReport:
    """Times in seconds, each from when the node joined. Only nodes that stay and want the weights are counted."""

    plan: BroadcastPlan
    times: tuple[float, ...]
    """Sorted."""
    unfinished: int
    bound_s: float
    star_s: float
    origin_sent: float
    """Bytes the origin sent, in sizes of the whole."""
    wasted: float
    """Bytes that arrived for nothing (wrong, or twice, or cancelled), as a share of all that arrived."""
    corrupt_shards: int
    fulls: int
    """Requests answered with `full`."""
    depth: int
    events: int

    @property
    def last_s(self) -> float:
        return float("inf") if self.unfinished else self.times[-1]

    def quantile_s(self, share: float) -> float:
        return self.times[min(len(self.times) - 1, int(share * len(self.times)))]


def simulate_broadcast(plan: BroadcastPlan) -> BroadcastReport:
    return make_report(BroadcastSimulation(plan).run())


def make_report(swarm: BroadcastSimulation) -> BroadcastReport:
    plan = swarm.plan
    stayers = [peer for peer in swarm.peers if peer.download is not None and peer.member.leaves_ms == NEVER_MS]
    members = [peer.member for peer in stayers]
    sent = sum(peer.tally.sent_bytes for peer in swarm.peers)
    useful = sum(peer.tally.received_bytes - peer.tally.twice_bytes for peer in swarm.peers)
    return BroadcastReport(
        plan=plan,
        times=tuple(sorted(_time_s(peer) for peer in stayers if peer.tally.finished_ms is not None)),
        unfinished=sum(peer.tally.finished_ms is None for peer in stayers),
        bound_s=compute_bound_s(plan, members),
        star_s=compute_star_s(plan, members),
        origin_sent=swarm.peers[0].tally.sent_bytes / plan.size_bytes,
        wasted=1 - useful / max(1.0, sent),
        corrupt_shards=sum(peer.tally.corrupt_shards for peer in swarm.peers),
        fulls=sum(peer.tally.fulls for peer in swarm.peers),
        depth=max((peer.depth() for peer in stayers if peer.tally.finished_ms is not None), default=0),
        events=swarm.clock.count,
    )


def _time_s(peer: SwarmPeer) -> float:
    assert peer.tally.finished_ms is not None
    return (peer.tally.finished_ms - peer.member.joins_ms) / 1000
