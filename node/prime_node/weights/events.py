"""Bounds of a download: how much at once, how long to wait, when to give up a transfer. One frozen value.

What a download is told, and what it wants done. Pure values; tree.py decides, the rim carries out.

Parents are named by their node id; where they can be reached is the rim's business. Shards are named by their index in
the manifest. In a bitmap bit i stands for shard i, lowest bit of the first byte first.
"""

from dataclasses import dataclass
from enum import StrEnum

from prime_protocol.wire.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """These are one node's own choice; the network does not agree on them."""

    transfers_max: int = 6
    """Transfers at once. Few, so that each is fast and a shard can be passed on soon."""

    parent_transfers_max: int = 2
    """Transfers at once with one parent that has proved itself; one with any other, so a liar costs one shard."""

    neighbours_max: int = 10
    """Parents polled at once. Rarity is counted over them, so fewer see less and more cost the swarm."""

    candidates_max: int = 64
    """Parents remembered at once. Each holds two bitmaps of at most 2 KiB."""

    floor_bytes_per_s: int = 8 * 2**10
    """A transfer below this is stalled whatever else there is: 16 MiB would take 35 minutes."""

    stall_ms: int = 3_000
    """How long a transfer is watched before it is judged: a lost packet and a second of a busy line are normal."""

    slow_share: float = 0.125
    """A transfer below this share of the typical rate of the others is stalled if another parent has the shard."""

    first_byte_ms: int = 10_000
    """How long a parent that holds the shard may take to send its first byte."""

    wait_ms: int = 45_000
    """The same for a parent that is itself receiving it. The rim of the parent answers before that."""

    backoff_ms: int = 500
    """First pause after a failure; it doubles up to `backoff_max_ms`, and every pause is jittered."""

    backoff_max_ms: int = 30_000

    endgame_shards: int = 4
    """When no more than this many are missing, one may be asked from a second parent."""


class FailReason(StrEnum):
    """Why a transfer ended without a shard. None of them is proof of bad will."""

    BROKEN = "broken"
    """The connection was refused, lost or answered nonsense."""
    STALLED = "stalled"
    """We cancelled it: the answer to every Cancel, unless another was already on its way. Held against nobody unless
    the download had called it too slow."""
    ABSENT = "absent"
    """The parent neither holds nor expects the shard, or has never heard of the manifest. Not counted against it."""
    TIMED_OUT = "timed out"
    """The parent expected the shard but did not get it in time. Not counted against it."""


# --- What a download is told ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParentFound:
    """A serving record, or a configured origin, says that this node serves the manifest. Telling it again is harmless.

    Children named in a ParentFull need not be told apart: the download takes them from there.
    """

    parent: NodeId
    depth: int
    slots_free: int


@dataclass(frozen=True, slots=True)
class ParentLost:
    """Its record ran out, or it was banned elsewhere. What runs with it goes on until it fails."""

    parent: NodeId


@dataclass(frozen=True, slots=True)
class PollAnswered:
    """The answer to a Poll: shards held, shards of which bytes are arriving just now, free slots, place in the tree."""

    parent: NodeId
    held: bytes
    coming: bytes
    slots_free: int
    depth: int


@dataclass(frozen=True, slots=True)
class PollFailed:
    """The other answer to a Poll: not reached, or the manifest is unknown there."""

    parent: NodeId


@dataclass(frozen=True, slots=True)
class TransferProgressed:
    """Bytes so far of a running transfer. Told with the first bytes, and then about every 500 ms while more come.

    The first one matters: from then on the shard counts as coming, and children are promised it.
    """

    parent: NodeId
    shard: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class ShardArrived:
    """Digest right, and on disk. `elapsed_ms` is from first byte to last: waiting for it says nothing of bandwidth."""

    parent: NodeId
    shard: int
    length_bytes: int
    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class ShardCorrupt:
    """The bytes did not have the shard's digest, or were too many. They were thrown away."""

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
    """All upload slots are taken. Its children hold or await the manifest: id and depth of each."""

    parent: NodeId
    shard: int
    retry_ms: int
    children: tuple[tuple[NodeId, int], ...]


@dataclass(frozen=True, slots=True)
class DownloadTick:
    """`wake_ms` has come, or the caller just wants time to pass."""


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


# --- What it wants done ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PollParent:
    """Ask for its bitmaps: a long-poll that the parent answers when they changed since it last told us.

    Answered by exactly one HaveTold or PollFailed. Never two at once to one parent. The rim spaces those to one
    parent by 500 ms at least, so that nobody can make us spin.
    """

    parent: NodeId


@dataclass(frozen=True, slots=True)
class FetchShard:
    """Answered by exactly one ShardArrived, ShardCorrupt, ShardFailed or ParentFull."""

    parent: NodeId
    shard: int


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Stop that transfer: too slow, from a liar, or the shard came from elsewhere."""

    parent: NodeId
    shard: int


@dataclass(frozen=True, slots=True)
class DropParent:
    """It sent wrong bytes. Tell the peer table; this download already avoids it for a while."""

    parent: NodeId


@dataclass(frozen=True, slots=True)
class DownloadFinished:
    """Every shard is there. Said once, and last."""


DownloadEffect = PollParent | FetchShard | CancelTransfer | DropParent | DownloadFinished


# --- What can be read from it ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """For the terminal and the status page."""

    held: int
    """Shards on disk."""
    coming: int
    """Shards of which bytes are arriving."""
    shards: int
    held_bytes: int
    total_bytes: int
    rate_bytes_per_s: float
    """Of verified shards, over the last half minute or so."""
    sources: int
    """Parents that bytes are coming from just now."""
    eta_ms: int | None
    """Expected time until the last shard; None while nothing arrives, 0 when finished."""
