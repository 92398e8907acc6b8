"""Prometheus metrics with a registry of their own for each program, and labels that cannot grow.

A label has a fixed set of values; anything else is counted as "other". A node id, a run or a path that a stranger
chose is never a label.
"""

import math
from collections.abc import Collection
from typing import Generic, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

OTHER = "other"
SERIES_MAX = 1000
"""Most label combinations of one metric. A scrape of 1000 series is about 100 kB."""

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

M = TypeVar("M", Counter, Gauge, Histogram)


class Series(Generic[M]):
    """One metric and the values its labels may have."""

    def __init__(self, metric: M, labels: dict[str, Collection[str]]) -> None:
        combinations = math.prod(len(values) + 1 for values in labels.values())
        assert combinations <= SERIES_MAX, f"{combinations} label combinations, the limit is {SERIES_MAX}"
        self._metric: M = metric
        self._labels = {name: frozenset(values) for name, values in labels.items()}

    def at(self, **labels: str) -> M:
        """The child for these label values; unknown values fall together."""
        assert labels.keys() == self._labels.keys(), f"labels are {sorted(self._labels)}, given {sorted(labels)}"
        if not labels:
            return self._metric
        known = {name: value if value in self._labels[name] else OTHER for name, value in labels.items()}
        child: M = self._metric.labels(**known)
        return child


class Metrics:
    """The metrics of one program. Names begin with `prime_` and the program."""

    def __init__(self, program: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._prefix = f"prime_{program}"
        ProcessCollector(namespace=self._prefix, registry=self.registry)

    def counter(self, name: str, text: str, **labels: Collection[str]) -> Series[Counter]:
        return Series(Counter(f"{self._prefix}_{name}", text, list(labels), registry=self.registry), labels)

    def gauge(self, name: str, text: str, **labels: Collection[str]) -> Series[Gauge]:
        return Series(Gauge(f"{self._prefix}_{name}", text, list(labels), registry=self.registry), labels)

    def latency(self, name: str, text: str, **labels: Collection[str]) -> Series[Histogram]:
        """Seconds. `with series.at(...).time():` or `.observe(seconds)`."""
        histogram = Histogram(
            f"{self._prefix}_{name}_seconds", text, list(labels), registry=self.registry, buckets=LATENCY_BUCKETS_S
        )
        return Series(histogram, labels)

    async def handle(self, request: web.Request) -> web.Response:
        """GET /metrics. Bind it to loopback or a private network: it tells how busy this machine is."""
        return web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class RequestMetrics:
    """How many requests a server answered, with what status, and how long it took."""

    def __init__(self, metrics: Metrics, kinds: Collection[str]) -> None:
        statuses = ("200", "400", "401", "403", "404", "408", "409", "413", "429", "500", "503", "504")
        self._total = metrics.counter("requests_total", "Requests answered.", kind=kinds, status=statuses)
        self._latency = metrics.latency("request", "From the first byte to the answer.", kind=kinds)
        self.open = metrics.gauge("requests_open", "Requests being handled.").at()

    def observe(self, kind: str, status: int, duration_ms: int) -> None:
        self._total.at(kind=kind, status=str(status)).inc()
        self._latency.at(kind=kind).observe(duration_ms / 1000)
