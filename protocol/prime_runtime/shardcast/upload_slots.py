"""Upload slots: which nodes may fetch from this one now, and which children to name when all slots are taken. Pure.

Requests and the time come in, decisions come out. This is the serving side of the broadcast tree; the fetching side is
prime_node.weights.download. All state that remote peers can grow is bounded. Limits count addresses, not node ids: ids
are free. The settings are in config.py.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.rate_limits import BandwidthLimit, ConcurrencyLimit, address_group

DAY_MS = 24 * 3_600_000
SLOTS = 6
"""The best value at 100 Mbit/s in the broadcast simulator; see docs/broadcast.md."""
RETRY_MIN_MS = 100
RETRY_MAX_MS = 5_000
RETRY_TOMORROW_MS = 600_000
"""Retry time after the daily limit: long enough to stop requests, short enough to notice when it is lifted."""
GRACE_MS = 1_000
"""How late a refused address may return and still count as waiting."""
TRACKED_ADDRESSES_MAX = 1024
"""Addresses remembered as waiting, and as recently served."""
MANIFESTS_MAX = 16
"""Manifests whose children are remembered: more than retention keeps."""
TICKET_MS_FIRST = 2_000
"""Initial estimate of the duration of an upload."""
LATE_MS = 4_000
"""A reader that takes longer for a piece is late: 1 MiB in this time is 2 Mbit/s. Allowed while no node waits."""
FAST_BYTES = 2**18
FAST_BYTES_PER_S = 2**20
"""This much of a piece at this rate shows that our own uplink is not the bottleneck."""
CUT_PAUSE_MIN_MS = 4_000
CUT_PAUSE_MAX_MS = 600_000
"""Pause between two cuts without effect. On a slow uplink every reader is late, and a cut upload is lost; so the pause
doubles with each cut, and ends when a piece is sent fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    """What the owner of a node allows, from the settings."""

    slots: int = SLOTS
    """Concurrent uploads, including waiting ones. Few, so that each is fast and its shard can be forwarded soon."""

    address_slots: int = 2
    """Slots for one address, so that one remote host can never hold them all."""

    streak_max: int = 8
    """Consecutive uploads to one address while another waits."""

    day_bytes: int | None = None
    """Maximum bytes per UTC day; running uploads complete. 0 serves no one, None is no limit."""

    bytes_per_s: int | None = None
    """Upload rate over all slots; None is unlimited."""

    children_told: int = 8
    """Children listed in a refusal."""

    children_max: int = 64
    """Children remembered per manifest."""

    def __post_init__(self) -> None:
        assert self.slots >= 1
        assert 1 <= self.address_slots <= self.slots
        assert self.streak_max >= 1
        assert self.bytes_per_s is None or self.bytes_per_s > 0


def choose_slots(bytes_per_s: int) -> int:
    """Slots for an uplink: one per 16 Mbit/s, and at least 2, so that it never idles between two requests."""
    return max(2, min(32, bytes_per_s * 8 // 16_000_000))


@dataclass(frozen=True, slots=True)
class UploadTicket:
    """An admitted upload. Call `finish` however it ends."""

    number: int
    group: str
    manifest: Digest
    child: NodeId | None
    began_ms: int


@dataclass(frozen=True, slots=True)
class UploadAdmitted:
    """Serve the request."""

    ticket: UploadTicket


@dataclass(frozen=True, slots=True)
class UploadRefused:
    """Retry after `retry_ms`, or ask one of these children, most recently served first."""

    retry_ms: int
    children: tuple[NodeId, ...]
    cut: UploadTicket | None = None
    """An upload to end at once, to free a slot."""


class UploadSlots:
    """The upload slots of a node, over all its manifests."""

    def __init__(self, limits: UploadLimits, *, sent_bytes: int = 0, now_ms: int = 0) -> None:
        """`sent_bytes` were sent earlier on the day of `now_ms`, before this process started."""
        self._limits = limits
        self._gate = ConcurrencyLimit(total_max=limits.slots, key_max=limits.address_slots)
        self._open: dict[int, UploadTicket] = {}
        self._pieces: dict[int, int] = {}
        """Since when a reader takes a piece, by the ticket's number."""
        self._cut_pause_ms = 0
        self._cut_after_ms = 0
        self._tickets = 0
        self._ticket_ms = float(TICKET_MS_FIRST)
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._streaks: OrderedDict[str, int] = OrderedDict()
        self._children: OrderedDict[Digest, OrderedDict[NodeId, None]] = OrderedDict()
        self._day = now_ms // DAY_MS
        self._day_bytes = sent_bytes
        self._bandwidth = BandwidthLimit(limits.bytes_per_s) if limits.bytes_per_s is not None else None

    def request_slot(
        self, child: NodeId | None, address: str, manifest: Digest, now_ms: int
    ) -> UploadAdmitted | UploadRefused:
        """Decide about a request for a shard of this manifest that we hold or expect."""
        if self._is_day_used_up(now_ms):
            return UploadRefused(RETRY_TOMORROW_MS, self.children(manifest, child))
        group = address_group(address)
        self._drop_expired_waiting(now_ms)
        if self._must_yield(group, now_ms):
            return UploadRefused(self._refuse(group, now_ms), self.children(manifest, child))
        if not self._gate.enter(group):
            cut = self._choose_cut(group, now_ms)
            return UploadRefused(
                self._refuse(group, now_ms, is_cut=cut is not None), self.children(manifest, child), cut
            )
        return UploadAdmitted(self._admit(child, group, manifest, now_ms))

    def begin_piece(self, ticket: UploadTicket, now_ms: int) -> None:
        """From now on only the reader causes delay."""
        self._pieces[ticket.number] = now_ms

    def end_piece(self, ticket: UploadTicket, sent_bytes: int, now_ms: int) -> None:
        """The reader has received this much of the piece."""
        began_ms = self._pieces.pop(ticket.number, now_ms)
        if sent_bytes >= FAST_BYTES and sent_bytes * 1000 >= FAST_BYTES_PER_S * (now_ms - began_ms):
            self._cut_pause_ms = self._cut_after_ms = 0

    def finish(self, ticket: UploadTicket, sent_bytes: int, now_ms: int) -> None:
        """The upload has ended, complete or not."""
        assert ticket.number in self._open, "finished twice"
        del self._open[ticket.number]
        self._pieces.pop(ticket.number, None)
        self._gate.leave(ticket.group)
        self._start_day(now_ms)
        self._day_bytes += sent_bytes
        self._ticket_ms += 0.2 * (max(0, now_ms - ticket.began_ms) - self._ticket_ms)

    def compute_wait_ms(self, now_ms: int, bytes: int) -> int:
        """The ms to wait before sending these bytes. They count as sent, so call this once per piece."""
        return self._bandwidth.take(bytes, now_ms) if self._bandwidth is not None else 0

    def slots_free(self, now_ms: int) -> int:
        """Free slots, for serving records and bitmap answers."""
        return 0 if self._is_day_used_up(now_ms) else self._limits.slots - len(self._gate)

    def sent_today(self, now_ms: int) -> int:
        """Bytes of uploads that ended on this UTC day."""
        self._start_day(now_ms)
        return self._day_bytes

    def children(self, manifest: Digest, asking: NodeId | None = None) -> tuple[NodeId, ...]:
        """Children to which a refused node is referred."""
        known = reversed(self._children.get(manifest, ()))
        return tuple([child for child in known if child != asking][: self._limits.children_told])

    def forget(self, manifest: Digest) -> None:
        """The manifest is no longer served."""
        self._children.pop(manifest, None)

    # --- Internal ---------------------------------------------------------------------------------------------------

    def _admit(self, child: NodeId | None, group: str, manifest: Digest, now_ms: int) -> UploadTicket:
        self._waiting.pop(group, None)
        self._streaks[group] = self._streaks.get(group, 0) + 1
        self._streaks.move_to_end(group)
        _evict_oldest(self._streaks, TRACKED_ADDRESSES_MAX)
        if child is not None:
            self._remember_child(child, manifest)
        self._tickets += 1
        ticket = self._open[self._tickets] = UploadTicket(self._tickets, group, manifest, child, now_ms)
        return ticket

    def _remember_child(self, child: NodeId, manifest: Digest) -> None:
        known = self._children.setdefault(manifest, OrderedDict())
        self._children.move_to_end(manifest)
        _evict_oldest(self._children, MANIFESTS_MAX)
        known[child] = None
        known.move_to_end(child)
        _evict_oldest(known, self._limits.children_max)

    def _must_yield(self, group: str, now_ms: int) -> bool:
        """The address has had its share or is early, and admitting it would leave no slot for those that wait."""
        others = len(self._waiting) - (group in self._waiting)
        if self._limits.slots - len(self._gate) > others:
            return False
        return self._streaks.get(group, 0) >= self._limits.streak_max or now_ms < self._waiting.get(group, 0)

    def _choose_cut(self, group: str, now_ms: int) -> UploadTicket | None:
        """The longest-delayed upload of another address, if no slot is free for this one."""
        own = sum(ticket.group == group for ticket in self._open.values())
        if len(self._gate) < self._limits.slots or own >= self._limits.address_slots or now_ms < self._cut_after_ms:
            return None
        late = [
            (began_ms, number)
            for number, began_ms in self._pieces.items()
            if now_ms - began_ms > LATE_MS and self._open[number].group != group
        ]
        if not late:
            return None
        cut = self._open[min(late)[1]]
        del self._pieces[cut.number]
        # It has had its share: waiting addresses come first, however soon it asks again.
        self._streaks[cut.group] = self._limits.streak_max
        self._cut_pause_ms = min(CUT_PAUSE_MAX_MS, max(CUT_PAUSE_MIN_MS, 2 * self._cut_pause_ms))
        self._cut_after_ms = now_ms + self._cut_pause_ms
        return cut

    def _refuse(self, group: str, now_ms: int, *, is_cut: bool = False) -> int:
        """Queue the address; returns the time until it should retry. An early retry does not change that time."""
        self._streaks.pop(group, None)
        due_ms = self._waiting.get(group, 0)
        if due_ms <= now_ms:
            # The expected time until the next slot is free.
            next_ms = 0.0 if is_cut else self._ticket_ms / self._limits.slots
            retry_ms = round(min(RETRY_MAX_MS, max(RETRY_MIN_MS, next_ms)))
            due_ms = self._waiting[group] = now_ms + retry_ms
            self._waiting.move_to_end(group)
            _evict_oldest(self._waiting, TRACKED_ADDRESSES_MAX)
        return due_ms - now_ms

    def _drop_expired_waiting(self, now_ms: int) -> None:
        """Drop addresses that did not return in time, oldest first."""
        while self._waiting:
            group, due_ms = next(iter(self._waiting.items()))
            if due_ms - RETRY_MAX_MS <= now_ms <= due_ms + GRACE_MS:
                return
            del self._waiting[group]

    def _is_day_used_up(self, now_ms: int) -> bool:
        self._start_day(now_ms)
        return self._limits.day_bytes is not None and self._day_bytes >= self._limits.day_bytes

    def _start_day(self, now_ms: int) -> None:
        day = now_ms // DAY_MS
        if day > self._day:
            self._day, self._day_bytes = day, 0


def _evict_oldest(known: OrderedDict[Any, Any], size: int) -> None:
    while len(known) > size:
        known.popitem(last=False)
