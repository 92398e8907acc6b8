"""One broadcast as a value: its nodes, their links and their faults. Drawn from one seed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from prime_node.weights.events import FetchLimits
from prime_runtime.shardcast.upload_slots import choose_slots

MIB = 2**20
MBIT = 125_000
"""Bytes a second in a megabit a second."""

NEVER_MS = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmMember:
    """One node of the plan."""

    up_bytes_per_s: int
    down_bytes_per_s: int
    slots: int
    delay_ms: float = 20.0
    """One way to the middle of the network, times two for another node."""
    joins_ms: float = 0.0
    leaves_ms: float = NEVER_MS
    is_silent: bool = False
    """Leaves without closing its connections, as with a power cut."""
    lies: bool = False
    """Says it has everything, sends wrong bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastPlan:
    """Member 0 is the origin: it holds every shard from the start and stays."""

    seed: int
    members: tuple[SwarmMember, ...]
    lengths: tuple[int, ...]
    known: int = 32
    """Number of random nodes whose serving records reach a node; that of the origin always does."""
    record_ms: float = 1_000.0
    """Within this time of joining."""
    have_ms: float = 500.0
    """Least time between two bitmaps that one node tells another."""
    progress_ms: float = 500.0
    """Between two words about a running transfer."""
    poll_ms: float = 25_000.0
    """A long-poll without news is answered after this long."""
    wait_ms: float = 30_000.0
    """A request for a shard that does not come is answered after this long."""
    connect_ms: float = 3_000.0
    """How long it takes to notice that a node which vanished does not answer."""
    limits: FetchLimits = field(default_factory=FetchLimits)
    end_ms: float = 3_600_000.0
    """Time limit: a node that has not finished by then has failed."""

    @property
    def size_bytes(self) -> int:
        return sum(self.lengths)


HOME_LINES = (
    # share, down Mbit/s, up Mbit/s
    (0.25, 100, 12),
    (0.35, 200, 25),
    (0.22, 500, 50),
    (0.13, 300, 300),
    (0.05, 940, 940),
)
"""Our own mix of lines as they are sold, not a measurement of anybody's network: a quarter VDSL, more than half cable
of two classes, the rest symmetric fibre of two classes. With the quality that draw_home_line adds, the median uplink
has 29 Mbit/s, the mean 112 and a tenth less than 11; the median downlink has 223."""


def draw_home_line(rng: Random) -> tuple[int, int]:
    """Down and up in bytes a second: a class of line, and how good it is where it is."""
    _, down, up = rng.choices(HOME_LINES, [share for share, _, _ in HOME_LINES])[0]
    quality = min(1.5, max(0.5, rng.lognormvariate(0, 0.25)))
    return int(down * quality * MBIT), int(up * quality * MBIT)


def split_shards(size_bytes: int, shard_bytes: int) -> tuple[int, ...]:
    whole, rest = divmod(size_bytes, shard_bytes)
    return (shard_bytes,) * whole + ((rest,) if rest else ())


def plan_uniform_lines(
    seed: int, *, nodes: int, mbit: int = 100, size_bytes: int = 256 * MIB, shard_bytes: int = MIB, slots: int = 6
) -> BroadcastPlan:
    """Every node, the origin too, has the same bandwidth up and down, without faults."""
    rng = Random(f"broadcast {seed}")
    rate = mbit * MBIT
    members = tuple(
        SwarmMember(up_bytes_per_s=rate, down_bytes_per_s=rate, slots=slots, delay_ms=rng.uniform(2, 15))
        for _ in range(nodes + 1)
    )
    return BroadcastPlan(seed=seed, members=members, lengths=split_shards(size_bytes, shard_bytes), record_ms=100.0)


def plan_home_lines(
    seed: int,
    *,
    nodes: int,
    size_bytes: int = 64 * MIB,
    shard_bytes: int = 4 * MIB,
    origin_mbit: int = 1000,
    churn: float = 0.2,
    late: float = 0.1,
    malicious: float = 0.0,
    within_ms: float = 15_000.0,
) -> BroadcastPlan:
    """Home lines; a share leaves within the given time, half of these silently; another share joins as late.

    Bitmaps and words about progress are spaced wider than the daemon does it, which costs the swarm a little and saves
    the simulator half of its events.
    """
    rng = Random(f"broadcast {seed}")
    up = origin_mbit * MBIT
    origin = SwarmMember(up_bytes_per_s=up, down_bytes_per_s=up, slots=choose_slots(up), delay_ms=5.0)
    members = [origin]
    for _ in range(nodes):
        down, up = draw_home_line(rng)
        leaves, joins = rng.random() < churn, rng.random() < late
        members.append(
            SwarmMember(
                up_bytes_per_s=up,
                down_bytes_per_s=down,
                slots=choose_slots(up),
                delay_ms=rng.uniform(5, 40),
                joins_ms=rng.uniform(0, within_ms) if joins else 0.0,
                leaves_ms=rng.uniform(0, within_ms) if leaves else NEVER_MS,
                is_silent=rng.random() < 0.5,
                lies=rng.random() < malicious,
            )
        )
    lengths = split_shards(size_bytes, shard_bytes)
    return BroadcastPlan(seed=seed, members=tuple(members), lengths=lengths, have_ms=1_000.0, progress_ms=2_000.0)


def compute_bound_s(plan: BroadcastPlan, stayers: Sequence[SwarmMember]) -> float:
    """No way of sending can be faster: the origin sends each byte once, everybody receives each once, and all that is
    received was sent by somebody."""
    size = plan.size_bytes
    up = sum(member.up_bytes_per_s for member in plan.members)
    down = min(member.down_bytes_per_s for member in stayers)
    return max(size / plan.members[0].up_bytes_per_s, size / down, size * len(stayers) / up)


def compute_star_s(plan: BroadcastPlan, stayers: Sequence[SwarmMember]) -> float:
    """Every node fetches everything from the origin, whose uplink is shared without loss."""
    size = plan.size_bytes
    down = min(member.down_bytes_per_s for member in stayers)
    return max(size * len(stayers) / plan.members[0].up_bytes_per_s, size / down)
