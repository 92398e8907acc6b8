"""The parents of downloads: scores over time, the bitmaps of a download's neighbours, and how rare each shard is. Pure.

A neighbour is a parent that has reported its bitmaps; all of them count for rarity. Only a few are polled at a time,
and a useless one gives its polling slot to another. Scores are kept for all downloads and decay with time. A parent
without much evidence is assumed to be somewhat better than the typical one, so that new nodes get tried and old
failures are forgiven. Waiting never counts as bandwidth; being full or lacking a shard never counts as failure.

Bitmaps are integers, bit i for shard i. Counts are kept in bit planes: plane k holds bit k of every shard's count, so
that adding a neighbour or finding the rarest shard is a few operations on whole bitmaps, however many shards.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from prime_node.weights.events import FetchLimits, PollAnswered
from prime_node.weights.transfers import NEVER_MS
from prime_protocol.wire.ids import NodeId


class RarityCounts:
    """Counts how many of the current bitmaps have each shard."""

    def __init__(self) -> None:
        self._planes: list[int] = []

    def add(self, bitmap: int) -> None:
        """Add one to the count of each set bit: a ripple-carry addition over the planes."""
        carry = bitmap
        for index, plane in enumerate(self._planes):
            if not carry:
                return
            self._planes[index] = plane ^ carry
            carry &= plane
        if carry:
            self._planes.append(carry)

    def remove(self, bitmap: int) -> None:
        """Subtract one from the count of each set bit; each was added before."""
        borrow = bitmap
        for index, plane in enumerate(self._planes):
            if not borrow:
                return
            self._planes[index] = plane ^ borrow
            borrow &= ~plane
        assert not borrow, "removed what was never added"

    def replace(self, old: int, new: int) -> None:
        self.remove(old & ~new)
        self.add(new & ~old)

    def find_rarest(self, candidates: int) -> int:
        """The candidates with the lowest count.

        From the highest plane down: keep the candidates whose bit is 0 there, unless that would leave none.
        """
        for plane in reversed(self._planes):
            candidates = candidates & ~plane or candidates
        return candidates

    def count(self, shard: int) -> int:
        return sum((plane >> shard & 1) << index for index, plane in enumerate(self._planes))


def draw_bit(bitmap: int, rng: Random) -> int:
    """Index of a set bit, each equally likely. Binary search by bit count, since a bitmap has up to 16,384 bits."""
    assert bitmap
    rank = rng.randrange(bitmap.bit_count())
    index, width = 0, bitmap.bit_length()
    while width > 1:
        half = width >> 1
        low = bitmap & ((1 << half) - 1)
        below = low.bit_count()
        if rank < below:
            bitmap, width = low, half
        else:
            bitmap, width = bitmap >> half, width - half
            rank -= below
            index += half
    return index


HALF_LIFE_MS = 120_000
"""Evidence counts half after this long: home connections change by the minute, not by the second."""
OPTIMISM = 1.5
"""An unknown parent is assumed to be this many times as fast as the typical one."""
PRIOR_MS = 1_000
"""Weight of the optimistic prior, as transfer time."""
TYPICAL_BYTES_PER_S = 1_000_000.0
"""Typical rate before anything was fetched: 8 Mbit/s, a slot of a home uplink."""
BAN_MS = 60_000
"""Ban after the first corrupt shard; each further one doubles it."""
BAN_MS_MAX = 3_600_000
STRIKE_HALF_LIFE_MS = 3_600_000
"""A strike counts half after an hour: disks and cables also corrupt data, and get repaired."""
PARENTS_MAX = 4096


@dataclass(slots=True)
class ParentScore:
    """Decayed sums up to `at_ms`."""

    at_ms: int
    bytes: float = 0.0
    busy_ms: float = 0.0
    wins: float = 0.0
    losses: float = 0.0
    strikes: float = 0.0
    struck_ms: int = 0
    banned_until_ms: int = 0
    """The parent is not asked before this time."""

    def decay(self, now_ms: int) -> None:
        if now_ms <= self.at_ms:
            return
        factor = 0.5 ** ((now_ms - self.at_ms) / HALF_LIFE_MS)
        self.bytes *= factor
        self.busy_ms *= factor
        self.wins *= factor
        self.losses *= factor
        self.at_ms = now_ms


class ParentScores:
    """Scores by node id, for all downloads of this node, in memory only. The least recently updated goes first."""

    def __init__(self) -> None:
        self._records: OrderedDict[NodeId, ParentScore] = OrderedDict()
        self._all = ParentScore(0)

    def record_arrived(self, parent: NodeId, length_bytes: int, elapsed_ms: int, now_ms: int) -> None:
        for record in (self._find(parent, now_ms), self._all):
            record.decay(now_ms)
            record.bytes += length_bytes
            record.busy_ms += max(1, elapsed_ms)
            record.wins += 1

    def record_failed(self, parent: NodeId, now_ms: int) -> None:
        record = self._find(parent, now_ms)
        record.decay(now_ms)
        record.losses += 1

    def record_corrupt(self, parent: NodeId, now_ms: int) -> None:
        """Ban it, the longer the more often it happened lately."""
        record = self._find(parent, now_ms)
        age_ms = max(0, now_ms - record.struck_ms)
        record.strikes = record.strikes * 0.5 ** (age_ms / STRIKE_HALF_LIFE_MS) + 1
        record.struck_ms = now_ms
        record.wins = 0.0
        record.banned_until_ms = now_ms + round(min(BAN_MS_MAX, BAN_MS * 2 ** (record.strikes - 1)))

    def get_banned_until_ms(self, parent: NodeId) -> int:
        """The time before which it is not asked; 0 without a ban."""
        record = self._records.get(parent)
        return record.banned_until_ms if record else 0

    def is_proven(self, parent: NodeId) -> bool:
        """It delivered a shard lately, and no corrupt one since."""
        record = self._records.get(parent)
        return record is not None and record.wins > 0.25

    def get_typical_rate(self) -> float:
        """Bytes a second of one transfer, over all parents."""
        return self._all.bytes * 1000 / self._all.busy_ms if self._all.busy_ms > 1 else TYPICAL_BYTES_PER_S

    def estimate_rate(self, parent: NodeId, now_ms: int) -> float:
        """Expected throughput in bytes a second: success rate times bandwidth, each with an optimistic prior."""
        prior_rate = OPTIMISM * self.get_typical_rate()
        record = self._records.get(parent)
        if record is None:
            return prior_rate
        record.decay(now_ms)
        rate = (record.bytes * 1000 + prior_rate * PRIOR_MS) / (record.busy_ms + PRIOR_MS)
        return rate * (record.wins + 1) / (record.wins + record.losses + 1)

    def __len__(self) -> int:
        return len(self._records)

    def _find(self, parent: NodeId, now_ms: int) -> ParentScore:
        record = self._records.get(parent)
        if record is None:
            record = self._records[parent] = ParentScore(now_ms)
            if len(self._records) > PARENTS_MAX:
                self._records.popitem(last=False)
        self._records.move_to_end(parent)
        return record


DEPTH_MAX = 64
"""Depth of a node that has received nothing yet."""
SLOTS_CLAIMED_MAX = 64
"""The free slots that a peer claims are capped at this."""
ROTATE_ODDS = 16
"""One poll answer in this many gives the polling slot to another parent, useful or not. Without it, two cliques of
nodes that only poll each other might never exchange shards."""


@dataclass(slots=True)
class Neighbour:
    """One parent as this download sees it."""

    id: NodeId
    depth: int = 0
    slots_free: int = 0
    held: int = 0
    coming: int = 0
    running: int = 0
    """Running transfers."""
    is_linked: bool = False
    """Few others can ask it."""
    got_bytes: int = 0
    ready_ms: int = 0
    """Not asked for a shard before this time."""
    pauses: int = 0
    """Consecutive times that it was full or failed."""
    was_full: bool = False
    """It is paused because it was full: a free slot ends the pause."""
    poll_ms: int = 0
    """Not polled before this time."""
    poll_failures: int = 0

    def pause(self, pause_ms: int, limits: FetchLimits, rng: Random, now_ms: int) -> None:
        """Exponential backoff with jitter, never shorter than the parent asked for."""
        pause_ms = max(pause_ms, min(limits.backoff_max_ms, pause_ms << min(self.pauses, 10)))
        self.pauses += 1
        self.ready_ms = now_ms + round(pause_ms * rng.uniform(1.0, 1.5))


class Neighbours:
    """The parents of one download: their bitmaps, pauses and polls. Bounded."""

    def __init__(self, shards: int, limits: FetchLimits, rng: Random) -> None:
        self._all = (1 << shards) - 1
        self._limits = limits
        self._rng = rng
        self._known: dict[NodeId, Neighbour] = {}
        self._polled: set[NodeId] = set()
        """Parents with an unanswered poll, including parents lost since."""
        self.rarity = RarityCounts()

    def __iter__(self) -> Iterator[Neighbour]:
        """In the order in which they were found."""
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def get(self, parent: NodeId) -> Neighbour | None:
        return self._known.get(parent)

    def add_from_record(self, parent: NodeId, depth: int, slots_free: int) -> None:
        """Add a parent named by a signed record. If the table is full, it replaces the worst idle one."""
        known = self._known.get(parent)
        if known is not None:
            if parent not in self._polled:
                self._update(known, depth, slots_free)
        elif len(self._known) < self._limits.candidates_max or self._evict_worst():
            self.add_from_hearsay(parent, depth, slots_free)

    def add_from_hearsay(self, parent: NodeId, depth: int, slots_free: int) -> None:
        """Add a parent named by another peer. Such an unsigned claim replaces no known parent."""
        if parent not in self._known and len(self._known) < self._limits.candidates_max:
            self._known[parent] = Neighbour(parent)
            self._update(self._known[parent], depth, slots_free)

    def remove(self, parent: NodeId) -> None:
        neighbour = self._known.pop(parent, None)
        if neighbour is not None:
            self.rarity.remove(neighbour.held | neighbour.coming)

    def set_bitmaps(self, neighbour: Neighbour, *, held: int, coming: int) -> None:
        """Set the bitmaps it reported. Bits beyond the manifest are dropped."""
        held &= self._all
        coming &= self._all & ~held
        self.rarity.replace(neighbour.held | neighbour.coming, held | coming)
        neighbour.held, neighbour.coming = held, coming

    def _update(self, neighbour: Neighbour, depth: int, slots_free: int) -> None:
        neighbour.depth = max(0, min(DEPTH_MAX - 1, depth))
        neighbour.slots_free = max(0, min(SLOTS_CLAIMED_MAX, slots_free))

    def find_depth(self) -> int:
        """Depth of the nearest parent that sent at least a quarter of what the best one sent."""
        most = max((each.got_bytes for each in self), default=0)
        return min((each.depth for each in self if each.got_bytes * 4 >= most), default=DEPTH_MAX - 1)

    def find_best(self, count: int) -> tuple[NodeId, ...]:
        """The parents that sent most, most first."""
        gave = sorted((each for each in self if each.got_bytes), key=lambda each: -each.got_bytes)
        return tuple(each.id for each in gave[:count])

    # --- Polling ----------------------------------------------------------------------------------------------------

    def apply_poll_answer(self, event: PollAnswered, now_ms: int) -> Neighbour | None:
        """Apply the answer to a poll; returns the neighbour, or None if it was removed meanwhile."""
        self._polled.discard(event.parent)
        neighbour = self._known.get(event.parent)
        if neighbour is None:
            return None
        neighbour.poll_failures = 0
        self._update(neighbour, event.depth, event.slots_free)
        held, coming = int.from_bytes(event.held, "little"), int.from_bytes(event.coming, "little")
        self.set_bitmaps(neighbour, held=held, coming=coming)
        if neighbour.slots_free and neighbour.was_full and neighbour.ready_ms > now_ms:
            # All children learn of the free slot at about the same time; a random delay lets one be first.
            neighbour.ready_ms = min(neighbour.ready_ms, now_ms + self._rng.randrange(self._limits.backoff_ms))
        return neighbour

    def apply_poll_failure(self, parent: NodeId, now_ms: int) -> None:
        """Poll it again later. After two failures in a row its bitmaps are void."""
        self._polled.discard(parent)
        neighbour = self._known.get(parent)
        if neighbour is None:
            return
        pause_ms = min(self._limits.backoff_max_ms, self._limits.backoff_ms << min(neighbour.poll_failures, 10))
        neighbour.poll_failures += 1
        neighbour.poll_ms = now_ms + round(pause_ms * self._rng.uniform(0.5, 1.0))
        if neighbour.poll_failures > 1:
            self.set_bitmaps(neighbour, held=0, coming=0)

    def choose_polls(self, last: Neighbour | None, missing: int, now_ms: int) -> list[NodeId]:
        """Fill the polling slots. `last` has just answered and keeps its slot if it is useful."""
        chosen = []
        if last is not None and self._keeps_place(last, missing, now_ms):
            chosen.append(self._start_poll(last))
        while len(self._polled) < self._limits.neighbours_max:
            waiting = [each for each in self if self._is_pollable(each, now_ms)]
            if last is not None and len(waiting) > 1:
                waiting = [each for each in waiting if each is not last]
            if not waiting:
                break
            weights = [1 / (1 + each.depth) / (1 + each.poll_failures) for each in waiting]
            chosen.append(self._start_poll(self._rng.choices(waiting, weights)[0]))
        return chosen

    def find_poll_ms(self, now_ms: int) -> int:
        """The next time at which a free polling slot can be filled."""
        if len(self._polled) >= self._limits.neighbours_max:
            return NEVER_MS
        return min(
            (each.poll_ms for each in self if each.poll_ms > now_ms and each.id not in self._polled), default=NEVER_MS
        )

    def _keeps_place(self, neighbour: Neighbour, missing: int, now_ms: int) -> bool:
        is_useful = (neighbour.held | neighbour.coming) & missing != 0
        return is_useful and self._is_pollable(neighbour, now_ms) and self._rng.randrange(ROTATE_ODDS) > 0

    def _is_pollable(self, neighbour: Neighbour, now_ms: int) -> bool:
        """A parent that holds every shard need not be polled: its bitmaps cannot change."""
        return neighbour.poll_ms <= now_ms and neighbour.held != self._all and neighbour.id not in self._polled

    def _start_poll(self, neighbour: Neighbour) -> NodeId:
        self._polled.add(neighbour.id)
        return neighbour.id

    # --- Eviction ---------------------------------------------------------------------------------------------------

    def _evict_worst(self) -> bool:
        """Evict the idle parent with the most poll failures, fewest bytes sent, fewest shards and greatest depth."""
        idle = [each for each in self if not each.running and each.id not in self._polled]
        if not idle:
            return False
        worst = max(idle, key=lambda each: (each.poll_failures, -each.got_bytes, -each.held.bit_count(), each.depth))
        self.remove(worst.id)
        return True
