"""How fast a download goes, and when it should end."""

import math

from prime_node.shardcast.events import Progress

HALF_LIFE_MS = 15_000
"""Bytes count half after this long, so the rate is that of the last half minute or so."""


class Meter:
    """Verified bytes over time, the old ones fading."""

    def __init__(self, total_bytes: int, held_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = held_bytes
        self._began_ms: int | None = None
        self._at_ms = 0
        self._recent_bytes = 0.0

    def add(self, length_bytes: int, now_ms: int) -> None:
        if self._began_ms is None:
            self._began_ms = self._at_ms = now_ms
        self._fade(now_ms)
        self._recent_bytes += length_bytes
        self.held_bytes += length_bytes

    def rate(self, now_ms: int) -> float:
        """Bytes a second: the faded sum over the faded time that it was gathered in."""
        if self._began_ms is None or now_ms <= self._began_ms:
            return 0.0
        self._fade(now_ms)
        window_ms = HALF_LIFE_MS / math.log(2) * (1 - 0.5 ** ((now_ms - self._began_ms) / HALF_LIFE_MS))
        return float(self._recent_bytes * 1000 / window_ms)

    def read(self, shards: int, held: int, coming: int, sources: int, now_ms: int) -> Progress:
        rate = self.rate(now_ms)
        left = self.total_bytes - self.held_bytes
        eta_ms = round(left * 1000 / rate) if rate >= 1 else None
        return Progress(
            held=held,
            coming=coming,
            shards=shards,
            held_bytes=self.held_bytes,
            total_bytes=self.total_bytes,
            rate_bytes_per_s=rate,
            sources=sources,
            eta_ms=eta_ms if left else 0,
        )

    def _fade(self, now_ms: int) -> None:
        if now_ms > self._at_ms:
            self._recent_bytes *= 0.5 ** ((now_ms - self._at_ms) / HALF_LIFE_MS)
            self._at_ms = now_ms
