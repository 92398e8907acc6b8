"""One node of the simulated broadcast: the real Download and UploadSlots, with lines and bitmaps around them."""

from dataclasses import dataclass, field
from random import Random

from prime_node.shardcast.parents import Parents
from prime_node.shardcast.tree import Download
from prime_protocol.ids import Digest, NodeId
from prime_runtime.shardcast.slots import Ticket, UploadLimits, UploadSlots
from prime_simulator.broadcast.flows import Flow, Line
from prime_simulator.broadcast.plan import Member, Plan

MANIFEST = Digest(bytes(32))


@dataclass(slots=True, eq=False)
class Request:
    """One Fetch on its way, from the asking to the answer."""

    child: "Peer"
    parent: "Peer"
    shard: int
    ticket: Ticket | None = None
    flow: Flow | None = None
    began_ms: float = 0.0
    is_answered: bool = False
    """The child has, or will shortly have, its one answer."""


@dataclass(slots=True)
class Listener:
    """What a node remembers of one that polls it."""

    told_version: int = -1
    told_ms: float = -1e9
    asked: int = 0
    """Number of the poll that waits; 0 if none does."""
    is_planned: bool = False


@dataclass(slots=True)
class Tally:
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
class Peer:
    """Member `index` of the plan, alive."""

    index: int
    id: NodeId
    member: Member
    address: str
    up: Line
    down: Line
    slots: UploadSlots
    download: Download | None
    """None at the origin and at a liar: they fetch nothing."""
    has: int = 0
    """Bitmap of the shards it serves."""
    sent: int = 0
    """Bitmap of the shards that it has begun to send to somebody."""
    maps: tuple[bytes, bytes] = (b"", b"")
    version: int = 0
    is_there: bool = False
    is_gone: bool = False
    wake_ms: float = float("inf")
    listeners: dict[int, Listener] = field(default_factory=dict)
    requests: dict[tuple[int, int], Request] = field(default_factory=dict)
    """Its own fetches, by parent and shard."""
    serving: dict[Request, None] = field(default_factory=dict)
    waiting: dict[int, list[Request]] = field(default_factory=dict)
    """Children's requests for a shard that is still coming."""
    progress_planned: bool = False
    tally: Tally = field(default_factory=Tally)

    def depth(self) -> int:
        return self.download.depth() if self.download else 0

    def expects(self, shard: int) -> bool:
        return bool(self.maps[1]) and self.maps[1][shard >> 3] >> (shard & 7) & 1 == 1


def make_peer(index: int, plan: Plan) -> Peer:
    member = plan.members[index]
    fetches = index > 0 and not member.lies
    everything = (1 << len(plan.lengths)) - 1
    raw = everything.to_bytes((len(plan.lengths) + 7) // 8, "little")
    none = bytes(len(raw))
    dice = Random(f"{plan.seed} {index}")
    download = Download(plan.lengths, (), Parents(), dice, plan.limits) if fetches else None
    limits = UploadLimits(slots=member.slots, address_slots=min(2, member.slots))
    return Peer(
        index=index,
        id=NodeId(index.to_bytes(20, "big")),
        member=member,
        address=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
        up=Line(member.up_bytes_per_s / 1000),
        down=Line(member.down_bytes_per_s / 1000),
        slots=UploadSlots(limits),
        download=download,
        has=0 if fetches else everything,
        maps=(none if fetches else raw, none),
    )
