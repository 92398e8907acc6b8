"""Prometheus metrics, one registry per program, with bounded labels.

A label has a fixed set of values; any other value counts as "other". A node id, a run or a path is never a label,
because a remote peer could choose it.
"""

import math
from bisect import bisect_left
from collections import Counter as Totals
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate
from typing import Generic, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

OTHER = "other"
SERIES_MAX = 1000
"""Label combinations of one metric. A scrape of 1000 series has about 100 kB."""

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

STATUSES = {code: str(code) for code in (200, 400, 401, 403, 404, 408, 409, 413, 429, 500, 503, 504)}

M = TypeVar("M", Counter, Gauge, Histogram)


class LabeledMetric(Generic[M]):
    """A metric and the allowed values of its labels."""

    def __init__(self, metric: M, labels: dict[str, Collection[str]]) -> None:
        combinations = math.prod(len(values) + 1 for values in labels.values())
        assert combinations <= SERIES_MAX, f"{combinations} label combinations, the limit is {SERIES_MAX}"
        self._metric: M = metric
        self._labels = {name: frozenset(values) for name, values in labels.items()}
        self._children: dict[tuple[str, ...], M] = {}

    def at(self, **labels: str) -> M:
        """The child for these label values; unknown values count as "other"."""
        found = self._children.get(tuple(labels.values()))
        if found is not None:
            return found
        assert labels.keys() == self._labels.keys(), f"labels are {sorted(self._labels)}, given {sorted(labels)}"
        if not labels:
            return self._metric
        known = {name: value if value in self._labels[name] else OTHER for name, value in labels.items()}
        child: M = self._metric.labels(**known)
        if known == labels:
            # Only values of a fixed set are cached, so the cache is bounded.
            self._children[tuple(labels.values())] = child
        return child


class Metrics:
    """The metrics of a program. Names begin with `prime_` and the name of the program."""

    def __init__(self, program: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.prefix = f"prime_{program}"
        ProcessCollector(namespace=self.prefix, registry=self.registry)

    def counter(self, name: str, text: str, **labels: Collection[str]) -> LabeledMetric[Counter]:
        return LabeledMetric(Counter(f"{self.prefix}_{name}", text, list(labels), registry=self.registry), labels)

    def gauge(self, name: str, text: str, **labels: Collection[str]) -> LabeledMetric[Gauge]:
        return LabeledMetric(Gauge(f"{self.prefix}_{name}", text, list(labels), registry=self.registry), labels)

    def latency(self, name: str, text: str, **labels: Collection[str]) -> LabeledMetric[Histogram]:
        """Seconds. `with series.at(...).time():` or `.observe(seconds)`."""
        histogram = Histogram(
            f"{self.prefix}_{name}_seconds", text, list(labels), registry=self.registry, buckets=LATENCY_BUCKETS_S
        )
        return LabeledMetric(histogram, labels)

    async def handle(self, request: web.Request) -> web.Response:
        """GET /metrics. Bind it to loopback or a private network: it shows how busy this machine is."""
        return web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class RequestMetrics(Collector):
    """Requests by kind and status, and their latency.

    It keeps plain numbers until a scrape: a busy server answers thousands of requests between two scrapes.
    """

    def __init__(self, metrics: Metrics, kinds: Collection[str]) -> None:
        self._prefix = metrics.prefix
        self._kinds = frozenset(kinds)
        self._counts: Totals[tuple[str, str]] = Totals()
        self._buckets: dict[str, list[int]] = {}
        self._sums_ms: Totals[str] = Totals()
        self._count_open: Callable[[], int] = lambda: 0
        metrics.registry.register(self)

    def watch_open(self, count_open: Callable[[], int]) -> None:
        """Set the function that counts open requests."""
        self._count_open = count_open

    def observe(self, kind: str, status: int, duration_ms: int) -> None:
        if kind not in self._kinds:
            kind = OTHER
        self._counts[(kind, STATUSES.get(status, OTHER))] += 1
        buckets = self._buckets.get(kind)
        if buckets is None:
            buckets = self._buckets[kind] = [0] * (len(LATENCY_BUCKETS_S) + 1)
        buckets[bisect_left(LATENCY_BUCKETS_S, duration_ms / 1000)] += 1
        self._sums_ms[kind] += duration_ms

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        total = CounterMetricFamily(f"{self._prefix}_requests", "Requests answered.", labels=["kind", "status"])
        for (kind, status), count in sorted(self._counts.items()):
            total.add_metric([kind, status], count)
        yield total
        latency = HistogramMetricFamily(
            f"{self._prefix}_request_seconds", "From the first byte to the answer.", labels=["kind"]
        )
        bounds = [*map(str, LATENCY_BUCKETS_S), "+Inf"]
        for kind, buckets in sorted(self._buckets.items()):
            rising = list(zip(bounds, accumulate(buckets), strict=True))
            latency.add_metric([kind], buckets=rising, sum_value=self._sums_ms[kind] / 1000)
        yield latency
        yield GaugeMetricFamily(f"{self._prefix}_requests_open", "Requests being handled.", self._count_open())
