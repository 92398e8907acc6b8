"""Limits on request rate, concurrency and bandwidth, per key or in total. Pure: callers pass the time.

Memory is bounded. When the table of buckets is full, new keys share one bucket: a flood of fresh identities together
gets the rate of one identity, and known keys are not affected.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A sustained rate, and a burst that is allowed after a pause."""

    per_second: float
    burst: int


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ms: int


class TokenBuckets:
    """A token bucket for each key."""

    def __init__(self, rate: RateLimit, *, keys_max: int) -> None:
        assert rate.per_second > 0
        assert rate.burst >= 1
        self._rate = rate
        self._keys_max = keys_max
        # In order of last use: the first bucket is the likeliest to be full again.
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._shared = _Bucket(rate.burst, 0)

    def take(self, key: Hashable, now_ms: int) -> int:
        """Take a token and return 0, or return the ms until one is available."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._enter(key, now_ms)
        else:
            self._buckets.move_to_end(key)
        self._refill(bucket, now_ms)
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return 0
        return 1 + int((1 - bucket.tokens) * 1000 / self._rate.per_second)

    def __len__(self) -> int:
        return len(self._buckets)

    def _enter(self, key: Hashable, now_ms: int) -> _Bucket:
        """A full bucket for a new key; the shared bucket if the table is full."""
        if len(self._buckets) >= self._keys_max:
            self._drop_full(now_ms)
        if len(self._buckets) >= self._keys_max:
            return self._shared
        bucket = self._buckets[key] = _Bucket(self._rate.burst, now_ms)
        return bucket

    def _drop_full(self, now_ms: int) -> None:
        """Drop buckets that are full again: they equal a new one. At most two per new key, so the cost is constant."""
        for _ in range(2):
            if not self._buckets:
                return
            key, bucket = next(iter(self._buckets.items()))
            self._refill(bucket, now_ms)
            if bucket.tokens < self._rate.burst:
                return
            del self._buckets[key]

    def _refill(self, bucket: _Bucket, now_ms: int) -> None:
        passed_ms = now_ms - bucket.at_ms
        if passed_ms > 0:  # a clock that steps back changes nothing
            bucket.tokens = min(self._rate.burst, bucket.tokens + passed_ms * self._rate.per_second / 1000)
            bucket.at_ms = now_ms


class BandwidthLimit:
    """A number of bytes per second, over all users of this object. It returns a delay and never refuses."""

    def __init__(self, bytes_per_s: int) -> None:
        assert bytes_per_s > 0
        self.bytes_per_s = bytes_per_s
        self._budget = 0.0
        self._at_ms = 0

    def take(self, count: int, now_ms: int) -> int:
        """The ms to wait for these bytes. They count as transferred, so call this once per piece."""
        # The burst is a tenth of a second. The budget may become negative; the delay pays it back.
        passed_ms = max(0, now_ms - self._at_ms)
        self._at_ms = max(self._at_ms, now_ms)
        self._budget = min(self.bytes_per_s / 10, self._budget + passed_ms * self.bytes_per_s / 1000) - count
        return max(0, round(-self._budget * 1000 / self.bytes_per_s))


class ConcurrencyLimit:
    """Bounds how many are inside at once, in total and per key. It refuses and never queues."""

    def __init__(self, *, total_max: int, key_max: int) -> None:
        self._total_max = total_max
        self._key_max = key_max
        self._inside: dict[Hashable, int] = {}
        self._total = 0

    def enter(self, key: Hashable) -> bool:
        """True if admitted; then `leave` must be called once."""
        inside = self._inside.get(key, 0)
        if self._total >= self._total_max or inside >= self._key_max:
            return False
        self._inside[key] = inside + 1
        self._total += 1
        return True

    def leave(self, key: Hashable) -> None:
        inside = self._inside.pop(key, 0) - 1
        assert inside >= 0, "left without having entered"
        self._total -= 1
        if inside:
            self._inside[key] = inside

    def __len__(self) -> int:
        return self._total


@lru_cache(maxsize=4096)
def address_group(address: str) -> str:
    """The unit that counts as one origin: an IPv4 address, or the /64 that providers assign to an IPv6 customer."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"


def network_group(address: str) -> str:
    """The unit that counts as one network: a /24, or the /48 that providers assign to an IPv6 site."""
    return _mask(address, bits_4=24, bits_6=48)


@lru_cache(maxsize=4096)
def address_range(address: str) -> str:
    """The unit that counts as one owner of addresses: a /16, or the /32 that registries assign to an IPv6 provider.
    Thousands of addresses of one such range are cheap; addresses of many ranges are not."""
    return _mask(address, bits_4=16, bits_6=32)


def _mask(address: str, *, bits_4: int, bits_6: int) -> str:
    origin = address_group(address)
    try:
        parsed = ip_address(origin.partition("/")[0])
    except ValueError:
        return origin
    bits = bits_6 if isinstance(parsed, IPv6Address) else bits_4
    return str(ip_network(f"{parsed}/{bits}", strict=False))


LOG_LINE_RATE = RateLimit(per_second=0.2, burst=20)


class RateLimitedLogger:
    """For log lines that remote peers can cause: a burst, then one every few seconds with the number omitted."""

    def __init__(self, logger: logging.Logger, now_ms: Callable[[], int]) -> None:
        self._logger = logger
        self._now_ms = now_ms
        self._lines = TokenBuckets(LOG_LINE_RATE, keys_max=1)
        self._omitted = 0

    def log(self, level: int, text: str, *args: Any, error: BaseException | None = None) -> None:
        if self._lines.take("", self._now_ms()):
            self._omitted += 1
            return
        more = f" ({self._omitted} such lines omitted)" if self._omitted else ""
        self._omitted = 0
        self._logger.log(level, text + more, *args, exc_info=error)
