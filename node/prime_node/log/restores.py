"""Whether a coordinator that shows a shorter log has restored it, or drops entries and calls it a restore. Pure.

A coordinator that lost its disk continues from a copy of the log. Tree heads over more entries than the copy had then
contradict the log, as in a fork. A lost disk cannot be proven, so a node follows such a log only within bounds:

- the log says so, in a `LogRestored` entry that no head of this node contained before;
- the last head that this node saw before the lost ones belongs to the log;
- the lost heads appeared within RESTORE_LOSS_MS_MAX, by this node's clock while the coordinator still ran: how long it
  was away does not matter, how much is lost does;
- no other restore lost entries in the last RESTORE_INTERVAL_MS.

Everything else stays a fork. Decision 0017 has the reasons.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from prime_protocol.constants import NOTE_BYTES_MAX, RESTORE_INTERVAL_MS, RESTORE_LOSS_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import LogRestored
from prime_protocol.ledger.replay import open_leaf
from prime_protocol.log.merkle import build_inclusion_proof, compute_leaf_hash, verify_inclusion
from prime_protocol.log.tiles import Tile, make_node_reader
from prime_protocol.log.tree_head import TreeHead
from prime_protocol.wire.codec import Size, decode, encode
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NetworkId, NodeId

SPACING_MS = RESTORE_LOSS_MS_MAX // 30
"""Of two heads that come sooner after each other, only the newer one is kept."""
HEADS_MAX = 64

assert HEADS_MAX > RESTORE_LOSS_MS_MAX // SPACING_MS + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHead:
    """A verified head, and when the coordinator showed it."""

    size: Uint
    seen_ms: Uint
    note: Annotated[bytes, Size(0, NOTE_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A `LogRestored` entry that a signed head contains."""

    size: Uint
    at_ms: Uint
    leaf_hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadHistory:
    """The heads of the last minutes, and what is known of restores."""

    heads: Annotated[tuple[SeenHead, ...], Size(0, HEADS_MAX)] = ()
    """In the order of their sizes. One is older than RESTORE_LOSS_MS_MAX, where there is such a head."""
    restore: Restore | None = None
    """The newest one that the verified log contains."""
    lost_size: Uint = 0
    """Size of the largest head that the newest restore has lost, as far as this node saw."""
    lost_ms: Uint = 0
    """When this node followed a restore that lost entries."""

    @classmethod
    def decode(cls, raw: bytes) -> "HeadHistory":
        """RemoteError: the file is damaged, or of another version."""
        return decode(cls, raw)

    def encode(self) -> bytes:
        return encode(self)

    def add(self, size: int, note: bytes, now_ms: int) -> "HeadHistory":
        """With a verified head, larger than those before."""
        heads = list(self.heads)
        seen_ms = max([now_ms, *(head.seen_ms for head in heads[-1:])])
        if len(heads) > 1 and seen_ms - heads[-2].seen_ms < SPACING_MS:
            heads.pop()
        heads.append(SeenHead(size=size, seen_ms=seen_ms, note=note))
        while len(heads) > 1 and (heads[1].seen_ms <= seen_ms - RESTORE_LOSS_MS_MAX or len(heads) > HEADS_MAX):
            heads.pop(0)
        return replace(self, heads=tuple(heads))

    def find_kept(self, restore: Restore) -> SeenHead | None:
        """The newest head that the restored log must contain; None: this node has none."""
        return next((head for head in reversed(self.heads) if head.size <= restore.size), None)

    def find_objection(self, restore: Restore, now_ms: int) -> str:
        """Why a log that restored itself there is not followed; empty: it is."""
        if self.restore is not None and self.restore.leaf_hash == restore.leaf_hash:
            return "the heads that are lost came after that restore"
        if self.lost_ms and now_ms < self.lost_ms + RESTORE_INTERVAL_MS:
            hours = (now_ms - self.lost_ms) // 3_600_000
            return f"another restore lost entries {hours} hours ago"
        lost = [head for head in self.heads if head.size > restore.size]
        span_ms = lost[-1].seen_ms - lost[0].seen_ms if lost else 0
        if span_ms >= RESTORE_LOSS_MS_MAX:
            limit = RESTORE_LOSS_MS_MAX // 60_000
            return f"it lost heads that appeared over {span_ms // 60_000} minutes, the limit is {limit}"
        return ""

    def follow(self, restore: Restore, *, lost_size: int, now_ms: int) -> "HeadHistory":
        """After a restore that lost entries."""
        heads = tuple(head for head in self.heads if head.size <= restore.size)
        return HeadHistory(heads=heads, restore=restore, lost_size=lost_size, lost_ms=now_ms)

    def note(self, restore: Restore) -> "HeadHistory":
        """With a restore that lost nothing that this node saw: its log contains it, so it excuses nothing later."""
        return replace(self, restore=restore, lost_size=0)

    def is_lost(self, size: int, now_ms: int) -> bool:
        """Whether another node's head that contradicts the log is one that the restore has lost.

        Nodes that were away for a while learn of the restore one by one. The largest lost head is known soon after it;
        a larger one that appears later is of a history that somebody is still writing.
        """
        restore = self.restore
        if restore is None or size <= restore.size:
            return False
        return size <= self.lost_size or now_ms <= restore.at_ms + RESTORE_LOSS_MS_MAX


def open_restore(
    leaf: bytes,
    size: int,
    head: TreeHead,
    get_tile: Callable[[Tile], bytes],
    *,
    network: NetworkId,
    coordinator: NodeId,
) -> Restore:
    """The restore that the entry after the first `size` entries of this head's log notes. RemoteError: it is none.

    `get_tile` gives those of `list_inclusion_tiles`. Only what hashes to the head's root counts.
    """
    leaf_hash = compute_leaf_hash(leaf)
    proof = build_inclusion_proof(size, head.size, make_node_reader(head.size, get_tile))
    verify_inclusion(leaf_hash, proof, index=size, size=head.size, root=head.root)
    record, payload = open_leaf(leaf, network)
    if (payload.kind, payload.sender) != (LogRestored.__name__, coordinator):
        raise RemoteError("Payload.kind", f"of entry {size} is {payload.kind} by {payload.sender}")
    entry = decode(LogRestored, payload.body)
    if entry.size != size:
        raise RemoteError("size", f"is {entry.size}, the entry is number {size}")
    return Restore(size=size, at_ms=record.at_ms, leaf_hash=leaf_hash)
