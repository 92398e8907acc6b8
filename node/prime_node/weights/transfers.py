"""The running transfers of a download: which of them are stalled, how fast the whole goes, when it will end. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from prime_node.weights.events import DownloadProgress, FetchLimits
from prime_protocol.wire.ids import NodeId

HALF_LIFE_MS = 15_000
"""Bytes count half after this long, so the rate is that of about the last half minute."""


class DownloadMeter:
    """Exponentially decayed rate of verified bytes."""

    def __init__(self, total_bytes: int, held_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = held_bytes
        self._began_ms: int | None = None
        self._at_ms = 0
        self._recent_bytes = 0.0

    def add(self, length_bytes: int, now_ms: int) -> None:
        if self._began_ms is None:
            self._began_ms = self._at_ms = now_ms
        self._decay(now_ms)
        self._recent_bytes += length_bytes
        self.held_bytes += length_bytes

    def rate(self, now_ms: int) -> float:
        """Bytes a second: the decayed sum over the equally decayed time. The integral of the decay is the window."""
        if self._began_ms is None or now_ms <= self._began_ms:
            return 0.0
        self._decay(now_ms)
        window_ms = HALF_LIFE_MS / math.log(2) * (1 - 0.5 ** ((now_ms - self._began_ms) / HALF_LIFE_MS))
        return float(self._recent_bytes * 1000 / window_ms)

    def read(self, shards: int, held: int, coming: int, sources: int, now_ms: int) -> DownloadProgress:
        rate = self.rate(now_ms)
        left = self.total_bytes - self.held_bytes
        eta_ms = round(left * 1000 / rate) if rate >= 1 else None
        return DownloadProgress(
            held=held,
            coming=coming,
            shards=shards,
            held_bytes=self.held_bytes,
            total_bytes=self.total_bytes,
            rate_bytes_per_s=rate,
            sources=sources,
            eta_ms=eta_ms if left else 0,
        )

    def _decay(self, now_ms: int) -> None:
        if now_ms > self._at_ms:
            self._recent_bytes *= 0.5 ** ((now_ms - self._at_ms) / HALF_LIFE_MS)
            self._at_ms = now_ms


NEVER_MS = 2**62
WARNINGS_MAX = 3
SILENCE_MS = 2_500
"""Progress arrives every half second. If none arrives for this long, no bytes do either."""


@dataclass(slots=True)
class ShardTransfer:
    """One shard from one parent."""

    parent: NodeId
    shard: int
    length_bytes: int
    asked_ms: int
    is_promised: bool
    """The parent was still receiving the shard itself when we asked."""
    received_bytes: int = 0
    first_bytes_ms: int = 0
    """When the first bytes came; 0 before that."""
    seen_ms: int = 0
    seen_bytes: int = 0
    """Start of the current measuring window."""
    last_rate: float = 0.0
    """Bytes a second in the window before."""
    warnings: int = 0
    """Consecutive windows in which it was too slow."""
    is_cancelled: bool = False
    was_slow: bool = False
    """Cancelled because it was too slow."""
    progressed_ms: int = 0
    """Time of the last progress."""

    def current_rate(self, now_ms: int) -> float:
        """Bytes a second in the current window, or in the last one if this one is shorter than a second."""
        passed_ms = now_ms - self.seen_ms
        return (self.received_bytes - self.seen_bytes) * 1000 / passed_ms if passed_ms >= 1_000 else self.last_rate

    def start_next_window(self, rate: float, now_ms: int) -> None:
        """The next window starts at the last progress, so that a silence is noticed once it has lasted one window."""
        self.seen_ms = self.progressed_ms if self.progressed_ms > self.seen_ms else now_ms
        self.seen_bytes, self.last_rate = self.received_bytes, rate

    def estimate_left_ms(self, expected_rate: float, now_ms: int) -> float:
        """Expected time until it ends: at its own rate once that is known, else at the expected rate."""
        silence_ms = now_ms - (self.progressed_ms or self.asked_ms)
        whole_ms = self.length_bytes * 1000 / expected_rate
        if not self.first_bytes_ms or silence_ms >= SILENCE_MS:
            # It is unknown when it resumes: assume as long a silence again, and then the whole shard.
            return silence_ms + whole_ms
        if self.progressed_ms == self.first_bytes_ms:
            return whole_ms - silence_ms
        rate = self.received_bytes * 1000 / (self.progressed_ms - self.first_bytes_ms)
        return (self.length_bytes - self.received_bytes) * 1000 / max(1.0, rate) - silence_ms


class TransferTable:
    """All transfers of one download. A cancelled one stays until its final event arrives."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._running: dict[tuple[NodeId, int], ShardTransfer] = {}
        self.asked = 0
        """Bitmap of the requested shards."""
        self.coming = 0
        """Bitmap of the shards whose first bytes have arrived."""
        self.check_ms = NEVER_MS
        """No transfer is due for a stall check before this time."""
        self.draining: dict[NodeId, int] = {}
        """Cancelled transfers of each parent that have not ended. Until they have, the parent gets no request."""

    def __iter__(self) -> Iterator[ShardTransfer]:
        return iter(self._running.values())

    def __len__(self) -> int:
        return len(self._running)

    def get(self, parent: NodeId, shard: int) -> ShardTransfer | None:
        return self._running.get((parent, shard))

    def start(self, transfer: ShardTransfer) -> None:
        assert (transfer.parent, transfer.shard) not in self._running
        self._running[transfer.parent, transfer.shard] = transfer
        self.asked |= 1 << transfer.shard
        self.check_ms = min(self.check_ms, self._due_ms(transfer))

    def progress(self, transfer: ShardTransfer, received_bytes: int, now_ms: int) -> None:
        if received_bytes <= transfer.received_bytes:
            return
        transfer.received_bytes = received_bytes
        transfer.progressed_ms = now_ms
        if not transfer.first_bytes_ms:
            transfer.first_bytes_ms = transfer.seen_ms = max(1, now_ms)
            transfer.seen_bytes = received_bytes
            self.check_ms = min(self.check_ms, self._due_ms(transfer))
            if not transfer.is_cancelled:
                self.coming |= 1 << transfer.shard

    def cancel(self, transfer: ShardTransfer) -> None:
        assert not transfer.is_cancelled
        transfer.is_cancelled = True
        self.draining[transfer.parent] = self.draining.get(transfer.parent, 0) + 1
        self._recount(transfer.shard)

    def end(self, transfer: ShardTransfer) -> None:
        del self._running[transfer.parent, transfer.shard]
        if transfer.is_cancelled:
            left = self.draining.pop(transfer.parent) - 1
            if left:
                self.draining[transfer.parent] = left
        if not self._running:
            self.check_ms = NEVER_MS
        self._recount(transfer.shard)

    def get_parent_limit(self, has_proved: bool) -> int:
        """Transfers at once with one parent."""
        return self._limits.parent_transfers_max if has_proved else 1

    def list_for_shard(self, shard: int) -> list[ShardTransfer]:
        """The transfers of one shard that are not cancelled."""
        return [each for each in self if each.shard == shard and not each.is_cancelled]

    def _recount(self, shard: int) -> None:
        left = self.list_for_shard(shard)
        bit = 1 << shard
        self.asked = self.asked | bit if left else self.asked & ~bit
        is_coming = any(each.first_bytes_ms for each in left)
        self.coming = self.coming | bit if is_coming else self.coming & ~bit

    # --- Stall detection --------------------------------------------------------------------------------------------

    def find_due(self, now_ms: int) -> list[ShardTransfer]:
        """The transfers that are due for a stall check now. Sets `check_ms` to the next due time."""
        if now_ms < self.check_ms:
            return []
        live = [each for each in self if not each.is_cancelled]
        self.check_ms = min((self._due_ms(each) for each in live), default=NEVER_MS)
        return [each for each in live if self._due_ms(each) <= now_ms]

    def _due_ms(self, transfer: ShardTransfer) -> int:
        if transfer.first_bytes_ms:
            return transfer.seen_ms + self._limits.stall_ms
        patience_ms = self._limits.wait_ms if transfer.is_promised else self._limits.first_byte_ms
        return transfer.asked_ms + patience_ms

    def is_stalled(self, transfer: ShardTransfer, is_elsewhere: bool, now_ms: int) -> bool:
        """Check one that is due, and start its next window. `is_elsewhere`: another parent could send the shard.

        The rate is compared with what other parents send now. If none of them sends anything, our own line is slow; if
        no other parent has the shard, a restart gains nothing and loses the bytes so far. In both cases a transfer is
        stalled only after several slow windows in a row.
        """
        if not transfer.first_bytes_ms:
            return True
        flowing = [each for each in self if each.first_bytes_ms and not each.is_cancelled]
        others = [each for each in flowing if each.parent != transfer.parent]
        moving = [rate for rate in (each.current_rate(now_ms) for each in others) if rate > 0]
        typical_rate = median(moving) if moving else 0.0
        rate = transfer.current_rate(now_ms)
        transfer.start_next_window(rate, now_ms)
        self.check_ms = min(self.check_ms, self._due_ms(transfer))
        is_slow = rate < max(self._limits.floor_bytes_per_s, self._limits.slow_share * typical_rate)
        transfer.warnings = transfer.warnings + 1 if is_slow else 0
        is_worth_it = is_elsewhere and (bool(moving) or not others)
        return is_slow and (is_worth_it or transfer.warnings >= WARNINGS_MAX)
