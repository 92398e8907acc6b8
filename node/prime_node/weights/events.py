"""The events a download receives, the effects it returns, its limits and its progress. Pure values.

download.py decides; fetcher.py and the broadcast simulator carry the effects out. Parents are named by node id; their
addresses are the fetcher's business. Shards are named by their index in the manifest. Bit i of a bitmap stands for
shard i, lowest bit of the first byte first.
"""

from dataclasses import dataclass
from enum import StrEnum

from prime_protocol.wire.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds of one download. Each node chooses its own; the network does not agree on them."""

    transfers_max: int = 6
    """Transfers at once. Few, so that each is fast and a shard can be passed on soon."""

    parent_transfers_max: int = 2
    """Transfers at once with a proven parent. Any other parent gets one, so a liar costs one shard."""

    neighbours_max: int = 10
    """Parents polled at once. Rarity is counted over them: fewer give a worse estimate, more cost the swarm."""

    candidates_max: int = 64
    """Parents remembered at once. Each holds two bitmaps of at most 2 KiB."""

    floor_bytes_per_s: int = 8 * 2**10
    """A transfer below this rate is stalled in any case: 16 MiB would take 35 minutes."""

    stall_ms: int = 3_000
    """Length of the window over which a transfer's rate is measured. A lost packet or a busy second is normal."""

    slow_share: float = 0.125
    """A transfer below this share of the median rate of the others is stalled if another parent has the shard."""

    first_byte_ms: int = 10_000
    """How long a parent that holds the shard may take to send its first byte."""

    wait_ms: int = 45_000
    """The same for a parent that is still receiving the shard. Its server answers before that."""

    backoff_ms: int = 500
    """First pause after a failure; it doubles up to `backoff_max_ms`, and every pause is jittered."""

    backoff_max_ms: int = 30_000

    endgame_shards: int = 4
    """With at most this many shards missing, one shard may be requested from a second parent as well."""


class FailReason(StrEnum):
    """Why a transfer ended without a shard. None of these reasons proves malice."""

    BROKEN = "broken"
    """The connection was refused or lost, or the answer was malformed."""
    STALLED = "stalled"
    """We cancelled it: the answer to every CancelTransfer, unless another answer was already on its way. It counts
    against the parent only if the download had found the transfer too slow."""
    ABSENT = "absent"
    """The parent neither holds nor expects the shard, or does not know the manifest. Not counted against it."""
    TIMED_OUT = "timed out"
    """The parent expected the shard but did not get it in time. Not counted against it."""


# --- Events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParentFound:
    """A serving record, or a configured origin, says that this node serves the manifest. Repeating it is harmless.

    Children named in a ParentFull need no ParentFound of their own.
    """

    parent: NodeId
    depth: int
    slots_free: int
    is_linked: bool = False
    """It is behind a router and has connected to this node, so only few others can ask it."""


@dataclass(frozen=True, slots=True)
class ParentLost:
    """Its record expired, or it was banned elsewhere. Its running transfers continue until they fail."""

    parent: NodeId


@dataclass(frozen=True, slots=True)
class PollAnswered:
    """The answer to a PollParent: shards held, shards whose bytes are arriving, free slots, depth in the tree."""

    parent: NodeId
    held: bytes
    coming: bytes
    slots_free: int
    depth: int


@dataclass(frozen=True, slots=True)
class PollFailed:
    """The other answer to a PollParent: the parent was not reached, or does not know the manifest."""

    parent: NodeId


@dataclass(frozen=True, slots=True)
class TransferProgressed:
    """Bytes received so far. Sent with the first bytes, then about every 500 ms while more arrive.

    The first one matters: from then on the shard counts as coming, and children may wait for it.
    """

    parent: NodeId
    shard: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class ShardArrived:
    """The shard is on disk and its digest is right. `elapsed_ms` is from first byte to last, without the waiting."""

    parent: NodeId
    shard: int
    length_bytes: int
    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class ShardCorrupt:
    """The bytes had another digest, or were too many. They were discarded."""

    parent: NodeId
    shard: int


@dataclass(frozen=True, slots=True)
class ShardFailed:
    """The transfer ended early."""

    parent: NodeId
    shard: int
    reason: FailReason


@dataclass(frozen=True, slots=True)
class ParentFull:
    """All upload slots are taken. `children` hold or await the manifest: id and depth of each."""

    parent: NodeId
    shard: int
    retry_ms: int
    children: tuple[tuple[NodeId, int], ...]


@dataclass(frozen=True, slots=True)
class DownloadTick:
    """`wake_ms` has come, or the caller wants the clock to advance."""


DownloadEvent = (
    ParentFound
    | ParentLost
    | PollAnswered
    | PollFailed
    | TransferProgressed
    | ShardArrived
    | ShardCorrupt
    | ShardFailed
    | ParentFull
    | DownloadTick
)


# --- Effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PollParent:
    """Request its bitmaps: a long-poll that the parent answers once they have changed since its last answer.

    Answered by exactly one PollAnswered or PollFailed; at most one runs per parent. The fetcher spaces the polls of
    one parent, so that a parent which answers at once cannot make us spin.
    """

    parent: NodeId


@dataclass(frozen=True, slots=True)
class FetchShard:
    """Answered by exactly one ShardArrived, ShardCorrupt, ShardFailed or ParentFull."""

    parent: NodeId
    shard: int


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Stop that transfer: it is too slow, its parent sent corrupt shards, or the shard came from elsewhere."""

    parent: NodeId
    shard: int


@dataclass(frozen=True, slots=True)
class DropParent:
    """It sent wrong bytes: remove it from the directory. This download already avoids it for a while."""

    parent: NodeId


@dataclass(frozen=True, slots=True)
class DownloadFinished:
    """Every shard is on disk. The last effect, returned once."""


DownloadEffect = PollParent | FetchShard | CancelTransfer | DropParent | DownloadFinished


# --- Progress -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """For the terminal and the status page."""

    held: int
    """Shards on disk."""
    coming: int
    """Shards whose bytes are arriving."""
    shards: int
    held_bytes: int
    total_bytes: int
    rate_bytes_per_s: float
    """Of verified shards, over about the last half minute."""
    sources: int
    """Parents that are sending bytes now."""
    eta_ms: int | None
    """Expected time until the last shard; None while nothing arrives, 0 when finished."""
