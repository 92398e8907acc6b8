"""One manifest's way to this node: which shard to ask of which parent, and what to tell children. Pure.

Events and the time in, effects out; the dice are given. The daemon and the broadcast simulator drive this same object.
Nobody plans the tree: every node asks several parents at once, each for the shard that the fewest of its neighbours
have, and a full parent names its children. See docs/broadcast.md.
"""

from collections.abc import Collection, Sequence
from random import Random
from typing import assert_never

from prime_node.shardcast.events import (
    Cancel,
    Drop,
    Effect,
    Event,
    FailReason,
    Fetch,
    Finished,
    HaveTold,
    ParentFound,
    ParentFull,
    ParentLost,
    Poll,
    PollFailed,
    Progress,
    Progressed,
    ShardArrived,
    ShardCorrupt,
    ShardFailed,
    Tick,
)
from prime_node.shardcast.limits import FetchLimits
from prime_node.shardcast.meter import Meter
from prime_node.shardcast.neighbours import DEPTH_MAX, Neighbour, Neighbours
from prime_node.shardcast.parents import Parents
from prime_node.shardcast.selection import choose, choose_second, find_ready_ms, is_elsewhere
from prime_node.shardcast.transfers import NEVER_MS, Transfer, Transfers
from prime_protocol.constants import GOSSIP_PARENTS_MAX
from prime_protocol.ids import NodeId

RETRY_TOLD_MAX_MS = 60_000
"""Longest pause a full parent can talk us into."""


class Download:
    """Everything about one manifest that is not bytes."""

    def __init__(
        self, lengths: Sequence[int], held: Collection[int], parents: Parents, dice: Random, limits: FetchLimits
    ) -> None:
        self._lengths = tuple(lengths)
        self._all = (1 << len(lengths)) - 1
        self._held = 0
        for shard in held:
            self._held |= 1 << shard
        assert self._held <= self._all, "holds a shard that the manifest does not have"
        self._parents, self._dice, self._limits = parents, dice, limits
        self._neighbours = Neighbours(len(lengths), limits, dice)
        self._transfers = Transfers(limits)
        self._meter = Meter(sum(lengths), sum(lengths[shard] for shard in held))
        self._effects: list[Effect] = []
        self._is_finished, self._depth = False, DEPTH_MAX
        self.wake_ms = 0
        """Come back with a Tick at this time, if nothing happens before."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        assert not self._effects
        last = self._apply(event, now_ms)
        if isinstance(event, Progressed):
            # The most frequent event, and it opens no choice.
            self.wake_ms = min(self.wake_ms, self._transfers.check_ms)
            return []
        if self._held == self._all:
            self._effects += [] if self._is_finished else [Finished()]
            self._is_finished = True
        else:
            self._check_transfers(now_ms)
            missing = self._all & ~self._held
            # News that name no missing shard open no choice either.
            if not isinstance(event, ParentFound) and (last is None or (last.held | last.coming) & missing):
                self._fill(now_ms)
            self._effects += [Poll(parent) for parent in self._neighbours.choose_polls(last, missing, now_ms)]
        self.wake_ms = self._find_wake_ms(now_ms)
        effects, self._effects = self._effects, []
        return effects

    def _apply(self, event: Event, now_ms: int) -> Neighbour | None:
        """Take it in; the neighbour whose poll it ended, if any."""
        match event:
            case ParentFound(parent, depth, slots_free):
                self._neighbours.find(parent, depth, slots_free)
                self._recall(parent)
            case ParentLost(parent):
                self._neighbours.lose(parent)
            case HaveTold():
                return self._neighbours.take_bitmaps(event, now_ms)
            case PollFailed(parent):
                self._neighbours.miss_poll(parent, now_ms)
            case Progressed(parent, shard, received_bytes):
                self._take_bytes(parent, shard, received_bytes, now_ms)
            case ShardArrived():
                self._take_shard(event, now_ms)
            case ShardCorrupt(parent, shard):
                self._refuse_shard(parent, shard, now_ms)
            case ShardFailed(parent, shard, reason):
                self._miss_shard(parent, shard, reason, now_ms)
            case ParentFull():
                self._stand_back(event, now_ms)
            case Tick():
                pass
            case _:
                assert_never(event)
        return None

    def _recall(self, parent: NodeId) -> None:
        """What we knew before it was lost and found: whether it is barred, by any download, and what runs with it."""
        neighbour, barred_ms = self._neighbours.get(parent), self._parents.barred_ms(parent)
        if neighbour is not None:
            neighbour.running = sum(each.parent == parent for each in self._transfers)
            neighbour.ready_ms = max(neighbour.ready_ms, barred_ms)
            neighbour.poll_ms = max(neighbour.poll_ms, barred_ms)

    # --- Ends of transfers ------------------------------------------------------------------------------------------

    def _end(self, parent: NodeId, shard: int) -> tuple[Transfer | None, Neighbour | None]:
        """Its slot is free again, as far as we know."""
        transfer, neighbour = self._transfers.get(parent, shard), self._neighbours.get(parent)
        if transfer is not None:
            self._transfers.end(transfer)
            if neighbour is not None:
                neighbour.running -= 1
                neighbour.slots_free += 1
        return transfer, neighbour

    def _take_bytes(self, parent: NodeId, shard: int, received_bytes: int, now_ms: int) -> None:
        transfer, neighbour = self._transfers.get(parent, shard), self._neighbours.get(parent)
        if transfer is not None:
            self._transfers.progress(transfer, received_bytes, now_ms)
        if neighbour is not None and self._depth == DEPTH_MAX:
            self._depth = neighbour.depth + 1

    def _take_shard(self, event: ShardArrived, now_ms: int) -> None:
        _, neighbour = self._end(event.parent, event.shard)
        self._parents.note_arrived(event.parent, event.length_bytes, event.elapsed_ms, now_ms)
        if neighbour is not None:
            neighbour.pauses, neighbour.was_full = 0, False
            neighbour.got_bytes += event.length_bytes
            self._depth = 1 + self._neighbours.find_depth()
        if self._held >> event.shard & 1:
            return
        self._held |= 1 << event.shard
        self._meter.add(self._lengths[event.shard], now_ms)
        for other in self._transfers.list_of(event.shard):
            self._cancel(other)

    def _refuse_shard(self, parent: NodeId, shard: int, now_ms: int) -> None:
        """It cost one shard; what else runs with that parent is not worth waiting for."""
        _, neighbour = self._end(parent, shard)
        self._parents.note_corrupt(parent, now_ms)
        self._effects.append(Drop(parent))
        for other in [each for each in self._transfers if each.parent == parent and not each.is_cancelled]:
            self._cancel(other)
        self._recall(parent)
        if neighbour is not None:
            self._neighbours.tell(neighbour, held=0, coming=0)

    def _miss_shard(self, parent: NodeId, shard: int, reason: FailReason, now_ms: int) -> None:
        transfer, neighbour = self._end(parent, shard)
        is_our_doing = transfer is not None and (transfer.is_cancelled or reason is FailReason.STALLED)
        if transfer is None or (is_our_doing and not transfer.was_slow):
            return
        if transfer.is_promised and not transfer.flowing_ms and reason is FailReason.STALLED:
            reason = FailReason.TIMED_OUT
        if reason in (FailReason.BROKEN, FailReason.STALLED):
            self._parents.note_failed(parent, now_ms)
        if neighbour is None:
            return
        neighbour.was_full = False
        if reason in (FailReason.ABSENT, FailReason.TIMED_OUT):
            kept = ~(1 << shard)
            self._neighbours.tell(neighbour, held=neighbour.held & kept, coming=neighbour.coming & kept)
        neighbour.pause(self._limits.backoff_ms, self._limits, self._dice, now_ms)

    def _stand_back(self, event: ParentFull, now_ms: int) -> None:
        _, neighbour = self._end(event.parent, event.shard)
        for child, depth in event.children:
            self._neighbours.hear_of(child, depth, 0)
            self._recall(child)
        if neighbour is not None:
            neighbour.slots_free, neighbour.was_full = 0, True
            pause_ms = max(1, min(RETRY_TOLD_MAX_MS, event.retry_ms))
            neighbour.pause(pause_ms, self._limits, self._dice, now_ms)

    def _cancel(self, transfer: Transfer) -> None:
        self._transfers.cancel(transfer)
        self._effects.append(Cancel(transfer.parent, transfer.shard))

    # --- Asking -----------------------------------------------------------------------------------------------------

    def _check_transfers(self, now_ms: int) -> None:
        """Cancel what stalled."""
        for transfer in self._transfers.find_due(now_ms):
            if self._transfers.is_stalled(transfer, is_elsewhere(self._neighbours, transfer, now_ms), now_ms):
                transfer.was_slow = True
                self._cancel(transfer)

    def _fill(self, now_ms: int) -> None:
        """Ask until as many transfers run as may, or nobody has anything for us."""
        is_endgame = (self._all & ~self._held).bit_count() <= self._limits.endgame_shards
        while len(self._transfers) < self._limits.transfers_max:
            missing = self._all & ~self._held & ~self._transfers.asked
            choice = choose(self._neighbours, self._transfers, missing, self._parents, self._dice, now_ms)
            if choice is None and is_endgame:
                choice = choose_second(self._neighbours, self._transfers, self._parents, now_ms)
            if choice is None:
                return
            neighbour, shard, is_promised = choice
            neighbour.running += 1
            neighbour.slots_free = max(0, neighbour.slots_free - 1)
            self._transfers.start(Transfer(neighbour.id, shard, self._lengths[shard], now_ms, is_promised))
            self._effects.append(Fetch(neighbour.id, shard))

    def _find_wake_ms(self, now_ms: int) -> int:
        if self._is_finished:
            return NEVER_MS
        wake_ms = min(self._transfers.check_ms, self._neighbours.find_poll_ms(now_ms))
        if len(self._transfers) < self._limits.transfers_max:
            missing = self._all & ~self._held & ~self._transfers.asked
            wake_ms = min(wake_ms, find_ready_ms(self._neighbours, missing, self._parents, now_ms))
        return max(now_ms + 1, wake_ms)

    # --- Reading ----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> bytes:
        """Bitmap of the shards on disk, for our own answers to children."""
        return self._held.to_bytes((len(self._lengths) + 7) // 8, "little")

    @property
    def coming(self) -> bytes:
        """Bitmap of the shards of which bytes are arriving: a child that asks for one is made to wait."""
        return self._transfers.coming.to_bytes((len(self._lengths) + 7) // 8, "little")

    def depth(self) -> int:
        """One below the nearest of those parents that gave most."""
        return self._depth

    def parents(self) -> tuple[NodeId, ...]:
        """Those who gave most so far, most first."""
        return self._neighbours.find_best(GOSSIP_PARENTS_MAX)

    def progress(self, now_ms: int) -> Progress:
        sources = len({each.parent for each in self._transfers if each.flowing_ms})
        coming = self._transfers.coming.bit_count()
        return self._meter.read(len(self._lengths), self._held.bit_count(), coming, sources, now_ms)
