"""What is known of the nodes we fetch from: how often they deliver, how fast, and who sent wrong bytes.

One table for all downloads of a node, in memory only. Evidence fades with time. A parent of whom little is known is
taken for somewhat better than the typical one, so that strangers get tried and old failures are forgiven. Waiting never
counts as bandwidth, and being full or not having a shard yet never counts as failure.
"""

from collections import OrderedDict
from dataclasses import dataclass

from prime_protocol.ids import NodeId

HALF_LIFE_MS = 120_000
"""Evidence counts half after this long: home lines change by the minute, not by the second."""
OPTIMISM = 1.5
"""An unknown parent is taken for this many times as fast as the typical one."""
PRIOR_MS = 1_000
"""How much transfer time the optimism is worth against real evidence."""
TYPICAL_BYTES_PER_S = 1_000_000.0
"""Typical rate before anything was fetched: 8 Mbit/s, a slot of a home uplink."""
BAR_MS = 60_000
"""How long the first corrupt shard bars a sender; each further one doubles it."""
BAR_MS_MAX = 3_600_000
STRIKE_HALF_LIFE_MS = 3_600_000
"""A strike counts half after an hour: disks and cables also corrupt, and get mended."""
PARENTS_MAX = 4096


@dataclass(slots=True)
class Record:
    """Decayed sums up to `at_ms`."""

    at_ms: int
    bytes: float = 0.0
    busy_ms: float = 0.0
    wins: float = 0.0
    losses: float = 0.0
    strikes: float = 0.0
    struck_ms: int = 0
    barred_ms: int = 0
    """Not asked before this time."""

    def fade(self, now_ms: int) -> None:
        if now_ms <= self.at_ms:
            return
        factor = 0.5 ** ((now_ms - self.at_ms) / HALF_LIFE_MS)
        self.bytes *= factor
        self.busy_ms *= factor
        self.wins *= factor
        self.losses *= factor
        self.at_ms = now_ms


class Parents:
    """The table. Least recently heard of are forgotten first."""

    def __init__(self) -> None:
        self._records: OrderedDict[NodeId, Record] = OrderedDict()
        self._all = Record(0)

    def note_arrived(self, parent: NodeId, length_bytes: int, elapsed_ms: int, now_ms: int) -> None:
        for record in (self._find(parent, now_ms), self._all):
            record.fade(now_ms)
            record.bytes += length_bytes
            record.busy_ms += max(1, elapsed_ms)
            record.wins += 1

    def note_failed(self, parent: NodeId, now_ms: int) -> None:
        record = self._find(parent, now_ms)
        record.fade(now_ms)
        record.losses += 1

    def note_corrupt(self, parent: NodeId, now_ms: int) -> None:
        """Bar it, the longer the more often it happened lately."""
        record = self._find(parent, now_ms)
        age_ms = max(0, now_ms - record.struck_ms)
        record.strikes = record.strikes * 0.5 ** (age_ms / STRIKE_HALF_LIFE_MS) + 1
        record.struck_ms = now_ms
        record.wins = 0.0
        record.barred_ms = now_ms + round(min(BAR_MS_MAX, BAR_MS * 2 ** (record.strikes - 1)))

    def barred_ms(self, parent: NodeId) -> int:
        """The time before which it is not asked; 0 for most."""
        record = self._records.get(parent)
        return record.barred_ms if record else 0

    def has_proved(self, parent: NodeId) -> bool:
        """It delivered lately, and nothing wrong since."""
        record = self._records.get(parent)
        return record is not None and record.wins > 0.25

    def typical_rate(self) -> float:
        """Bytes a second of one transfer, over all parents."""
        return self._all.bytes * 1000 / self._all.busy_ms if self._all.busy_ms > 1 else TYPICAL_BYTES_PER_S

    def expect(self, parent: NodeId, now_ms: int) -> float:
        """Expected throughput in bytes a second: success times bandwidth, optimistic where little is known."""
        hoped = OPTIMISM * self.typical_rate()
        record = self._records.get(parent)
        if record is None:
            return hoped
        record.fade(now_ms)
        rate = (record.bytes * 1000 + hoped * PRIOR_MS) / (record.busy_ms + PRIOR_MS)
        return rate * (record.wins + 1) / (record.wins + record.losses + 1)

    def __len__(self) -> int:
        return len(self._records)

    def _find(self, parent: NodeId, now_ms: int) -> Record:
        record = self._records.get(parent)
        if record is None:
            record = self._records[parent] = Record(now_ms)
            if len(self._records) > PARENTS_MAX:
                self._records.popitem(last=False)
        self._records.move_to_end(parent)
        return record
