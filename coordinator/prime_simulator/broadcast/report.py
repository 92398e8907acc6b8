"""What a simulated broadcast came to: how long each node that stayed took, against what is possible."""

from dataclasses import dataclass

from prime_simulator.broadcast.peer import Peer
from prime_simulator.broadcast.plan import NEVER_MS, Plan, compute_bound_s, compute_star_s
from prime_simulator.broadcast.swarm import Swarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Times in seconds, each from when the node joined. Only nodes that stay and want the weights are counted."""

    plan: Plan
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


def simulate(plan: Plan) -> Report:
    return make_report(Swarm(plan).run())


def make_report(swarm: Swarm) -> Report:
    plan = swarm.plan
    stayers = [peer for peer in swarm.peers if peer.download is not None and peer.member.leaves_ms == NEVER_MS]
    members = [peer.member for peer in stayers]
    sent = sum(peer.tally.sent_bytes for peer in swarm.peers)
    useful = sum(peer.tally.received_bytes - peer.tally.twice_bytes for peer in swarm.peers)
    return Report(
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


def _time_s(peer: Peer) -> float:
    assert peer.tally.finished_ms is not None
    return (peer.tally.finished_ms - peer.member.joins_ms) / 1000
