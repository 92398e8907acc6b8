"""The parents one download knows: what each has told it has, when it may be asked again, and whom to poll.

A neighbour is a parent that has told its bitmaps; all of them count for rarity. Only a few are polled at a time, and
the place of one that has nothing to tell goes to another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from prime_node.shardcast.events import HaveTold
from prime_node.shardcast.limits import FetchLimits
from prime_node.shardcast.rarity import Rarity
from prime_node.shardcast.transfers import NEVER_MS
from prime_protocol.ids import NodeId

DEPTH_MAX = 64
"""Depth of a node that has got nothing yet."""
SLOTS_TOLD_MAX = 64
"""What a stranger says about itself is cut to this."""
ROTATE_ODDS = 16
"""One answer in so many gives the place to another parent, useful or not: else two cliques might never meet."""


@dataclass(slots=True)
class Neighbour:
    """One parent as this download sees it."""

    id: NodeId
    depth: int = 0
    slots_free: int = 0
    held: int = 0
    coming: int = 0
    running: int = 0
    """Transfers with it."""
    got_bytes: int = 0
    ready_ms: int = 0
    """Not asked for a shard before this time."""
    pauses: int = 0
    """How often in a row it was full or failed."""
    was_full: bool = False
    """The pause is for being full: news of a free slot ends it."""
    poll_ms: int = 0
    """Not polled before this time."""
    poll_failures: int = 0

    def pause(self, pause_ms: int, limits: FetchLimits, dice: Random, now_ms: int) -> None:
        """Longer each time, never the same for two children, never shorter than asked for."""
        pause_ms = max(pause_ms, min(limits.backoff_max_ms, pause_ms << min(self.pauses, 10)))
        self.pauses += 1
        self.ready_ms = now_ms + round(pause_ms * dice.uniform(1.0, 1.5))


class Neighbours:
    """All parents of one download; bounded."""

    def __init__(self, shards: int, limits: FetchLimits, dice: Random) -> None:
        self._all = (1 << shards) - 1
        self._limits = limits
        self._dice = dice
        self._known: dict[NodeId, Neighbour] = {}
        self._polled: set[NodeId] = set()
        """Polls not answered yet, those of parents that were lost meanwhile included."""
        self.rarity = Rarity()

    def __iter__(self) -> Iterator[Neighbour]:
        """In the order they were found."""
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def get(self, parent: NodeId) -> Neighbour | None:
        return self._known.get(parent)

    def find(self, parent: NodeId, depth: int, slots_free: int) -> None:
        """Learn of a parent from a signed record, if there is room or somebody worse to forget."""
        known = self._known.get(parent)
        if known is not None:
            if parent not in self._polled:
                self._describe(known, depth, slots_free)
        elif len(self._known) < self._limits.candidates_max or self._forget_worst():
            self.hear_of(parent, depth, slots_free)

    def hear_of(self, parent: NodeId, depth: int, slots_free: int) -> None:
        """The same from anybody's word, which displaces nobody."""
        if parent not in self._known and len(self._known) < self._limits.candidates_max:
            self._known[parent] = Neighbour(parent)
            self._describe(self._known[parent], depth, slots_free)

    def lose(self, parent: NodeId) -> None:
        neighbour = self._known.pop(parent, None)
        if neighbour is not None:
            self.rarity.remove(neighbour.held | neighbour.coming)

    def tell(self, neighbour: Neighbour, *, held: int, coming: int) -> None:
        """Its bitmaps, as it says; bits beyond the manifest are nothing."""
        held &= self._all
        coming &= self._all & ~held
        self.rarity.replace(neighbour.held | neighbour.coming, held | coming)
        neighbour.held, neighbour.coming = held, coming

    def _describe(self, neighbour: Neighbour, depth: int, slots_free: int) -> None:
        neighbour.depth = max(0, min(DEPTH_MAX - 1, depth))
        neighbour.slots_free = max(0, min(SLOTS_TOLD_MAX, slots_free))

    def find_depth(self) -> int:
        """Of the nearest among those that gave a quarter of what the best gave, or more."""
        most = max((each.got_bytes for each in self), default=0)
        return min((each.depth for each in self if each.got_bytes * 4 >= most), default=DEPTH_MAX - 1)

    def find_best(self, count: int) -> tuple[NodeId, ...]:
        """Those who gave most, most first."""
        gave = sorted((each for each in self if each.got_bytes), key=lambda each: -each.got_bytes)
        return tuple(each.id for each in gave[:count])

    # --- Polling ----------------------------------------------------------------------------------------------------

    def take_bitmaps(self, event: HaveTold, now_ms: int) -> Neighbour | None:
        """The answer to a poll; the neighbour, unless it was forgotten meanwhile."""
        self._polled.discard(event.parent)
        neighbour = self._known.get(event.parent)
        if neighbour is None:
            return None
        neighbour.poll_failures = 0
        self._describe(neighbour, event.depth, event.slots_free)
        held, coming = int.from_bytes(event.held, "little"), int.from_bytes(event.coming, "little")
        self.tell(neighbour, held=held, coming=coming)
        if neighbour.slots_free and neighbour.was_full and neighbour.ready_ms > now_ms:
            # Everybody hears of the free slot at about the same time; the dice let one be first.
            neighbour.ready_ms = min(neighbour.ready_ms, now_ms + self._dice.randrange(self._limits.backoff_ms))
        return neighbour

    def miss_poll(self, parent: NodeId, now_ms: int) -> None:
        """Poll it again later; what it told is void if it fails twice."""
        self._polled.discard(parent)
        neighbour = self._known.get(parent)
        if neighbour is None:
            return
        pause_ms = min(self._limits.backoff_max_ms, self._limits.backoff_ms << min(neighbour.poll_failures, 10))
        neighbour.poll_failures += 1
        neighbour.poll_ms = now_ms + round(pause_ms * self._dice.uniform(0.5, 1.0))
        if neighbour.poll_failures > 1:
            self.tell(neighbour, held=0, coming=0)

    def choose_polls(self, last: Neighbour | None, missing: int, now_ms: int) -> list[NodeId]:
        """Fill the places. `last` has just answered and keeps its place if it is of use."""
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
            chosen.append(self._start_poll(self._dice.choices(waiting, weights)[0]))
        return chosen

    def find_poll_ms(self, now_ms: int) -> int:
        """When a place could be filled that cannot be filled now."""
        if len(self._polled) >= self._limits.neighbours_max:
            return NEVER_MS
        return min(
            (each.poll_ms for each in self if each.poll_ms > now_ms and each.id not in self._polled), default=NEVER_MS
        )

    def _keeps_place(self, neighbour: Neighbour, missing: int, now_ms: int) -> bool:
        is_useful = (neighbour.held | neighbour.coming) & missing != 0
        return is_useful and self._is_pollable(neighbour, now_ms) and self._dice.randrange(ROTATE_ODDS) > 0

    def _is_pollable(self, neighbour: Neighbour, now_ms: int) -> bool:
        """Who has everything has no more to tell."""
        return neighbour.poll_ms <= now_ms and neighbour.held != self._all and neighbour.id not in self._polled

    def _start_poll(self, neighbour: Neighbour) -> NodeId:
        self._polled.add(neighbour.id)
        return neighbour.id

    # --- Forgetting -------------------------------------------------------------------------------------------------

    def _forget_worst(self) -> bool:
        """Of those that nothing runs with: the one that failed most, gave least, told least, and is farthest down."""
        idle = [each for each in self if not each.running and each.id not in self._polled]
        if not idle:
            return False
        worst = max(idle, key=lambda each: (each.poll_failures, -each.got_bytes, -each.held.bit_count(), each.depth))
        self.lose(worst.id)
        return True
