"""`/metrics`, computed when it is scraped, and `/healthz`."""

from collections.abc import Collection, Iterator
from ipaddress import ip_address

from aiohttp import web
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_coordinator.core import Core
from prime_coordinator.gossip.gossip_http import GossipHttp
from prime_coordinator.gossip.relay import GossipRelay
from prime_coordinator.log.writer import LogWriter
from prime_coordinator.retention.disk_watch import DiskWatch
from prime_coordinator.scheduling.eligibility import NodePhase
from prime_coordinator.settlement.interface import Settlement
from prime_runtime.http.messages import get_client_address
from prime_runtime.metrics import Metrics


def is_private_address(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_private
    except ValueError:
        return False


class CoordinatorMetrics:
    """The gauges an operator watches."""

    def __init__(
        self,
        metrics: Metrics,
        core: Core,
        writer: LogWriter,
        settlement: Settlement,
        disk: DiskWatch,
        trusted_proxies: Collection[str] = (),
    ) -> None:
        self._metrics = metrics
        self._core = core
        self._writer = writer
        self._settlement = settlement
        self._disk = disk
        self._trusted_proxies = trusted_proxies
        self._entries = metrics.gauge("log_entries", "Entries on disk.").at()
        self._head = metrics.gauge("log_head_entries", "Entries under the newest signed head.").at()
        self._nodes = metrics.gauge("nodes", "Nodes by liveness.", phase=[*NodePhase])
        self._leases = metrics.gauge("leases_open", "Leases that are open.").at()
        self._submissions = metrics.gauge("submissions_unsettled", "Submissions without an outcome.").at()
        self._rules = metrics.gauge("rules", "Version of the rules in force.").at()
        self._next_rules = metrics.gauge("rules_announced", "Version of the rules that are announced last.").at()
        self._rules_start = metrics.gauge(
            "rules_change_time_seconds", "When the announced rules start, as Unix time; 0 if no change is pending."
        ).at()
        self._void_roots = metrics.gauge("payout_roots_void", "Recent payout roots that validators made void.").at()

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self._scrape)
        app.router.add_get("/healthz", self._tell_health)

    async def _scrape(self, request: web.Request) -> web.Response:
        """Only for this machine and its private networks: metrics reveal the load."""
        if not is_private_address(get_client_address(request, self._trusted_proxies)):
            return web.Response(status=403, text="metrics are for this machine and its private networks\n")
        state, counts = self._core.state, self._core.liveness.count()
        self._entries.set(self._writer.size)
        self._head.set(self._writer.head_size)
        for phase in NodePhase:
            known = len(state.nodes) - sum(counts.values()) if phase is NodePhase.LOST else counts.get(phase, 0)
            self._nodes.at(phase=phase).set(known)
        self._leases.set(sum(len(run.leases) for run in state.runs.values()))
        self._submissions.set(sum(len(run.unsettled) for run in state.runs.values()))
        rules = state.rules
        self._rules.set(rules.get_version(state.at_ms))
        self._next_rules.set(rules.after)
        self._rules_start.set(rules.from_ms / 1000 if rules.is_pending(state.at_ms) else 0)
        self._void_roots.set(sum(row["void"] for row in self._settlement.describe().get("promises", ())))
        await self._disk.update()
        return await self._metrics.handle(request)

    async def _tell_health(self, request: web.Request) -> web.Response:
        """200 while entries reach the disk; otherwise a service manager should restart the process."""
        is_healthy = self._writer.failure is None
        body = {"ok": is_healthy, "entries": self._writer.size, "head_size": self._writer.head_size}
        return web.json_response(body, status=200 if is_healthy else 503)


class GossipMetrics(Collector):
    """Messages in the relay, nodes that long-poll, and how many messages were posted and delivered."""

    def __init__(self, metrics: Metrics, relay: GossipRelay, gossip_http: GossipHttp) -> None:
        self._prefix = f"{metrics.prefix}_relay"
        self._relay = relay
        self._gossip_http = gossip_http
        metrics.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        pinned = GaugeMetricFamily(self._prefix, "Messages in the relay.", labels=["kind"])
        for kind, count in self._relay.count().items():
            pinned.add_metric([kind], count)
        yield pinned
        shared = CounterMetricFamily(f"{self._prefix}_posted", "Messages posted over HTTP.", labels=["outcome"])
        for outcome, count in self._gossip_http.shared.items():
            shared.add_metric([outcome], count)
        yield shared
        yield CounterMetricFamily(f"{self._prefix}_replies", "Polls answered.", self._gossip_http.replies)
        yield CounterMetricFamily(f"{self._prefix}_sent", "Messages in those answers.", self._gossip_http.messages_sent)
        waiting = self._gossip_http.count_waiting()
        yield GaugeMetricFamily(f"{self._prefix}_waiting", "Nodes that long-poll.", waiting)
