"""The download of one manifest: which shard to request from which parent, and what to promise children. Pure.

Events and the time go in, effects come out; the random generator is an argument. The daemon and the broadcast simulator
drive this same object. No one plans the tree: each node requests from several parents at once, from each the shard that
the fewest of its neighbours have (rarest first, as in BitTorrent), and a full parent names its children. A parent is
drawn with a probability proportional to its expected throughput. See docs/broadcast.md.
"""

from collections.abc import Collection, Sequence
from random import Random
from typing import assert_never

from prime_node.weights import events
from prime_node.weights.parents import DEPTH_MAX, Neighbour, Neighbours, ParentScores, draw_bit
from prime_node.weights.transfers import NEVER_MS, DownloadMeter, ShardTransfer, TransferTable
from prime_protocol.constants import GOSSIP_PARENTS_MAX
from prime_protocol.wire.ids import NodeId

FULL_WEIGHT = 0.1
"""Weight of a parent that last reported no free slot. It may have one by now, but others are likelier to."""
LINKED_WEIGHT = 4.0
"""Weight of a node behind a router. Its line serves only the few that it has connected to, so they ask it first and
leave the lines of public nodes to those that have nothing else."""
DEPTH_WEIGHT = 0.25
"""Penalty per level down the tree. Near parents are better, but a steep penalty would crowd all children there."""


TransferChoice = tuple[Neighbour, int, bool]
"""Parent, shard, and whether the parent is still receiving the shard itself."""


def choose_transfer(
    neighbours: Neighbours, transfers: TransferTable, missing: int, parents: ParentScores, rng: Random, now_ms: int
) -> TransferChoice | None:
    """A parent drawn by weight, and the rarest of the missing shards it has; ties are drawn."""
    available = list_available(neighbours, transfers, missing, parents, now_ms) if missing else []
    if not available:
        return None
    neighbour = rng.choices(available, [_compute_weight(each, parents, now_ms) for each in available])[0]
    useful = neighbour.held & missing
    rarest = neighbours.rarity.find_rarest(useful or neighbour.coming & missing)
    return neighbour, draw_bit(rarest, rng), not useful


def list_available(
    neighbours: Neighbours, transfers: TransferTable, missing: int, parents: ParentScores, now_ms: int
) -> list[Neighbour]:
    """Parents that hold a missing shard and may be asked; if there are none, parents that are receiving one.

    Parents without a running transfer go first, so that requests spread before any parent gets two.
    """
    found = [
        each
        for each in neighbours
        if (each.held & missing or each.coming & missing)
        and each.ready_ms <= now_ms
        and (not each.running or each.running < transfers.get_parent_limit(parents.is_proven(each.id)))
    ]
    if transfers.draining:
        found = [each for each in found if each.id not in transfers.draining]
    found = [each for each in found if parents.get_banned_until_ms(each.id) <= now_ms]
    found = [each for each in found if not each.running] or found
    return [each for each in found if each.held & missing] or found


def choose_duplicate(
    neighbours: Neighbours, transfers: TransferTable, parents: ParentScores, now_ms: int
) -> TransferChoice | None:
    """Endgame: a shard with one running transfer, and a parent that should deliver it in half the remaining time."""
    for transfer in transfers:
        if len(transfers.list_for_shard(transfer.shard)) != 1 or transfer.is_cancelled:
            continue
        left_ms = transfer.estimate_left_ms(parents.estimate_rate(transfer.parent, now_ms), now_ms)
        for each in neighbours:
            if not each.held >> transfer.shard & 1 or each.ready_ms > now_ms:
                continue
            if each.running or each.id in transfers.draining or parents.get_banned_until_ms(each.id) > now_ms:
                continue
            if transfer.length_bytes * 1000 / parents.estimate_rate(each.id, now_ms) < left_ms / 2:
                return each, transfer.shard, False
    return None


def find_ready_ms(neighbours: Neighbours, missing: int, parents: ParentScores, now_ms: int) -> int:
    """The next time at which a paused or banned parent with a missing shard may be asked."""
    useful = [each for each in neighbours if (each.held | each.coming) & missing]
    pauses = [max(each.ready_ms, parents.get_banned_until_ms(each.id)) for each in useful]
    return min((ready_ms for ready_ms in pauses if ready_ms > now_ms), default=NEVER_MS)


def is_held_elsewhere(neighbours: Neighbours, transfer: ShardTransfer, now_ms: int) -> bool:
    """Another parent holds the shard and could be asked."""
    return any(
        each.held >> transfer.shard & 1 and each.id != transfer.parent and each.ready_ms <= now_ms
        for each in neighbours
    )


def _compute_weight(neighbour: Neighbour, parents: ParentScores, now_ms: int) -> float:
    slots = 1.0 if neighbour.slots_free else FULL_WEIGHT
    slots *= LINKED_WEIGHT if neighbour.is_linked else 1.0
    return parents.estimate_rate(neighbour.id, now_ms) * slots / (1 + DEPTH_WEIGHT * neighbour.depth)


RETRY_CLAIMED_MAX_MS = 60_000
"""Longest pause that a full parent can impose on us."""


class Download:
    """The decisions of one manifest's download. It never sees the bytes."""

    def __init__(
        self,
        lengths: Sequence[int],
        held: Collection[int],
        parents: ParentScores,
        rng: Random,
        limits: events.FetchLimits,
    ) -> None:
        self._lengths = tuple(lengths)
        self._all = (1 << len(lengths)) - 1
        self._held = 0
        for shard in held:
            self._held |= 1 << shard
        assert self._held <= self._all, "holds a shard that the manifest does not have"
        self._parents, self._rng, self._limits = parents, rng, limits
        self._neighbours = Neighbours(len(lengths), limits, rng)
        self._transfers = TransferTable(limits)
        self._meter = DownloadMeter(sum(lengths), sum(lengths[shard] for shard in held))
        self._effects: list[events.DownloadEffect] = []
        self._is_finished, self._depth = False, DEPTH_MAX
        self.wake_ms = 0
        """The caller sends a DownloadTick at this time if nothing happens before."""

    def handle(self, event: events.DownloadEvent, now_ms: int) -> list[events.DownloadEffect]:
        assert not self._effects
        last = self._apply(event, now_ms)
        if isinstance(event, events.TransferProgressed):
            # The most frequent event, and it creates no new choice.
            self.wake_ms = min(self.wake_ms, self._transfers.check_ms)
            return []
        if self._held == self._all:
            self._effects += [] if self._is_finished else [events.DownloadFinished()]
            self._is_finished = True
        else:
            self._check_transfers(now_ms)
            missing = self._all & ~self._held
            # Bitmaps without a missing shard create no new choice either.
            if not isinstance(event, events.ParentFound) and (last is None or (last.held | last.coming) & missing):
                self._start_transfers(now_ms)
            self._effects += [
                events.PollParent(parent) for parent in self._neighbours.choose_polls(last, missing, now_ms)
            ]
        self.wake_ms = self._find_wake_ms(now_ms)
        effects, self._effects = self._effects, []
        return effects

    def _apply(self, event: events.DownloadEvent, now_ms: int) -> Neighbour | None:
        """Apply the event; returns the neighbour whose poll it ended, if any."""
        match event:
            case events.ParentFound(parent, depth, slots_free, is_linked):
                self._neighbours.add_from_record(parent, depth, slots_free)
                self._restore_parent(parent)
                if (found := self._neighbours.get(parent)) is not None:
                    found.is_linked = is_linked
            case events.ParentLost(parent):
                self._neighbours.remove(parent)
            case events.PollAnswered():
                return self._neighbours.apply_poll_answer(event, now_ms)
            case events.PollFailed(parent):
                self._neighbours.apply_poll_failure(parent, now_ms)
            case events.TransferProgressed(parent, shard, received_bytes):
                self._on_progress(parent, shard, received_bytes, now_ms)
            case events.ShardArrived():
                self._on_shard_arrived(event, now_ms)
            case events.ShardCorrupt(parent, shard):
                self._on_shard_corrupt(parent, shard, now_ms)
            case events.ShardFailed(parent, shard, reason):
                self._on_shard_failed(parent, shard, reason, now_ms)
            case events.ParentFull():
                self._on_parent_full(event, now_ms)
            case events.DownloadTick():
                pass
            case _:
                assert_never(event)
        return None

    def _restore_parent(self, parent: NodeId) -> None:
        """Restore what is known of a parent that was lost and found: its ban, by any download, and its transfers."""
        neighbour, barred_ms = self._neighbours.get(parent), self._parents.get_banned_until_ms(parent)
        if neighbour is not None:
            neighbour.running = sum(each.parent == parent for each in self._transfers)
            neighbour.ready_ms = max(neighbour.ready_ms, barred_ms)
            neighbour.poll_ms = max(neighbour.poll_ms, barred_ms)

    # --- Ends of transfers ------------------------------------------------------------------------------------------

    def _end(self, parent: NodeId, shard: int) -> tuple[ShardTransfer | None, Neighbour | None]:
        """Remove the transfer. The parent's upload slot is presumably free again."""
        transfer, neighbour = self._transfers.get(parent, shard), self._neighbours.get(parent)
        if transfer is not None:
            self._transfers.end(transfer)
            if neighbour is not None:
                neighbour.running -= 1
                neighbour.slots_free += 1
        return transfer, neighbour

    def _on_progress(self, parent: NodeId, shard: int, received_bytes: int, now_ms: int) -> None:
        transfer, neighbour = self._transfers.get(parent, shard), self._neighbours.get(parent)
        if transfer is not None:
            self._transfers.progress(transfer, received_bytes, now_ms)
        if neighbour is not None and self._depth == DEPTH_MAX:
            self._depth = neighbour.depth + 1

    def _on_shard_arrived(self, event: events.ShardArrived, now_ms: int) -> None:
        _, neighbour = self._end(event.parent, event.shard)
        self._parents.record_arrived(event.parent, event.length_bytes, event.elapsed_ms, now_ms)
        if neighbour is not None:
            neighbour.pauses, neighbour.was_full = 0, False
            neighbour.got_bytes += event.length_bytes
            self._depth = 1 + self._neighbours.find_depth()
        if self._held >> event.shard & 1:
            return
        self._held |= 1 << event.shard
        self._meter.add(self._lengths[event.shard], now_ms)
        for other in self._transfers.list_for_shard(event.shard):
            self._cancel(other)

    def _on_shard_corrupt(self, parent: NodeId, shard: int, now_ms: int) -> None:
        """The parent sent wrong bytes: ban it, and cancel its other transfers instead of waiting for more."""
        _, neighbour = self._end(parent, shard)
        self._parents.record_corrupt(parent, now_ms)
        self._effects.append(events.DropParent(parent))
        for other in [each for each in self._transfers if each.parent == parent and not each.is_cancelled]:
            self._cancel(other)
        self._restore_parent(parent)
        if neighbour is not None:
            self._neighbours.set_bitmaps(neighbour, held=0, coming=0)

    def _on_shard_failed(self, parent: NodeId, shard: int, reason: events.FailReason, now_ms: int) -> None:
        transfer, neighbour = self._end(parent, shard)
        is_our_doing = transfer is not None and (transfer.is_cancelled or reason is events.FailReason.STALLED)
        if transfer is None or (is_our_doing and not transfer.was_slow):
            return
        if transfer.is_promised and not transfer.first_bytes_ms and reason is events.FailReason.STALLED:
            reason = events.FailReason.TIMED_OUT
        if reason in (events.FailReason.BROKEN, events.FailReason.STALLED):
            self._parents.record_failed(parent, now_ms)
        if neighbour is None:
            return
        neighbour.was_full = False
        if reason in (events.FailReason.ABSENT, events.FailReason.TIMED_OUT):
            kept = ~(1 << shard)
            self._neighbours.set_bitmaps(neighbour, held=neighbour.held & kept, coming=neighbour.coming & kept)
        neighbour.pause(self._limits.backoff_ms, self._limits, self._rng, now_ms)

    def _on_parent_full(self, event: events.ParentFull, now_ms: int) -> None:
        _, neighbour = self._end(event.parent, event.shard)
        for child, depth in event.children:
            self._neighbours.add_from_hearsay(child, depth, 0)
            self._restore_parent(child)
        if neighbour is not None:
            neighbour.slots_free, neighbour.was_full = 0, True
            pause_ms = max(1, min(RETRY_CLAIMED_MAX_MS, event.retry_ms))
            neighbour.pause(pause_ms, self._limits, self._rng, now_ms)

    def _cancel(self, transfer: ShardTransfer) -> None:
        self._transfers.cancel(transfer)
        self._effects.append(events.CancelTransfer(transfer.parent, transfer.shard))

    # --- Starting transfers -----------------------------------------------------------------------------------------

    def _check_transfers(self, now_ms: int) -> None:
        """Cancel stalled transfers."""
        for transfer in self._transfers.find_due(now_ms):
            if self._transfers.is_stalled(transfer, is_held_elsewhere(self._neighbours, transfer, now_ms), now_ms):
                transfer.was_slow = True
                self._cancel(transfer)

    def _start_transfers(self, now_ms: int) -> None:
        """Start transfers until `transfers_max` run, or no parent has a shard for us."""
        is_endgame = (self._all & ~self._held).bit_count() <= self._limits.endgame_shards
        while len(self._transfers) < self._limits.transfers_max:
            missing = self._all & ~self._held & ~self._transfers.asked
            choice = choose_transfer(self._neighbours, self._transfers, missing, self._parents, self._rng, now_ms)
            if choice is None and is_endgame:
                choice = choose_duplicate(self._neighbours, self._transfers, self._parents, now_ms)
            if choice is None:
                return
            neighbour, shard, is_promised = choice
            neighbour.running += 1
            neighbour.slots_free = max(0, neighbour.slots_free - 1)
            self._transfers.start(ShardTransfer(neighbour.id, shard, self._lengths[shard], now_ms, is_promised))
            self._effects.append(events.FetchShard(neighbour.id, shard))

    def _find_wake_ms(self, now_ms: int) -> int:
        if self._is_finished:
            return NEVER_MS
        wake_ms = min(self._transfers.check_ms, self._neighbours.find_poll_ms(now_ms))
        if len(self._transfers) < self._limits.transfers_max:
            missing = self._all & ~self._held & ~self._transfers.asked
            wake_ms = min(wake_ms, find_ready_ms(self._neighbours, missing, self._parents, now_ms))
        return max(now_ms + 1, wake_ms)

    # --- State for others -------------------------------------------------------------------------------------------

    @property
    def held(self) -> bytes:
        """Bitmap of the shards on disk, for our answers to children."""
        return self._held.to_bytes((len(self._lengths) + 7) // 8, "little")

    @property
    def coming(self) -> bytes:
        """Bitmap of the shards whose bytes are arriving: a child that requests one waits for it."""
        return self._transfers.coming.to_bytes((len(self._lengths) + 7) // 8, "little")

    def depth(self) -> int:
        """One below the nearest of the parents that sent most."""
        return self._depth

    def parents(self) -> tuple[NodeId, ...]:
        """The parents that sent most so far, most first."""
        return self._neighbours.find_best(GOSSIP_PARENTS_MAX)

    def progress(self, now_ms: int) -> events.DownloadProgress:
        sources = len({each.parent for each in self._transfers if each.first_bytes_ms})
        coming = self._transfers.coming.bit_count()
        return self._meter.read(len(self._lengths), self._held.bit_count(), coming, sources, now_ms)
