"""The node's HTTP server for its own machine: the control API, the status page and the Prometheus metrics.

Who is let in is decided in prime_runtime.http.control_api. Page and metrics are read from the report at each request
and change nothing. Labels of metrics have fixed values, or are the runs of the settings.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_node.config import PageConfig
from prime_node.status.alerts import explain_run_problem
from prime_node.status.render import STYLE_PATH, render_html
from prime_node.storage.journal import JobState
from prime_runtime.formatting import NANO
from prime_runtime.http.control_api import ControlCommand, ControlPage, ControlServer, StatusReport
from prime_runtime.metrics import Metrics

PAGE_PORT = 8470
PREFIX = "prime_node"
STYLE = Path(__file__).with_name("style.css")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class LocalServer(ControlServer):
    """The control API, with page and metrics where the settings enable them."""

    def __init__(self, report: StatusReport, commands: Mapping[str, ControlCommand], config: PageConfig) -> None:
        super().__init__(report, commands, make_pages(report) if config.enabled else {})
        self._config = config

    async def start(self) -> str:
        """Its URL. LocalError: the configured port is in use."""
        port = self._config.port or (PAGE_PORT if self._config.enabled else 0)
        return await self.open(port, advice="choose another --page-port", is_firm=bool(self._config.port))


def make_pages(report: StatusReport) -> dict[str, ControlPage]:
    style, metrics = STYLE.read_text(), Metrics("node")
    metrics.registry.register(NodeCollector(report))

    async def show_page(request: web.Request) -> web.StreamResponse:
        return web.Response(text=render_html(report()), content_type="text/html", headers=HEADERS)

    async def show_style(request: web.Request) -> web.StreamResponse:
        return web.Response(text=style, content_type="text/css", headers=HEADERS)

    return {"/": show_page, STYLE_PATH: show_style, "/metrics": metrics.handle}


class NodeCollector(Collector):
    """Derives the metrics from the report at each scrape."""

    def __init__(self, report: StatusReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        is_running = report["state"] == "running"
        yield _gauge("joined", "1 once the node takes part in its run.", float(is_running))
        if is_running:
            yield from _running(report)


def _running(report: dict[str, Any]) -> Iterator[Metric]:
    coordinator, upload = report["coordinator"], report["upload"]
    yield _gauge("coordinator_reached", "1 while the coordinator answers.", float(coordinator["is_reachable"]))
    yield _gauge("held", "1 while the owner's policy holds the node.", float(bool(report["owner"]["hold"])))
    yield _gauge("log_forks", "Pairs of tree heads that prove a fork of the log.", len(report["heads"]["forks"]))
    change = coordinator["rules_change"]
    yield _gauge("rules_change_pending", "1 while a change of the log's rules is announced.", float(change is not None))
    is_unknown = change is not None and not change["is_known"]
    yield _gauge("rules_change_unknown", "1 while this program does not know the announced rules.", float(is_unknown))
    accusations, replay = report["accusations"], report["replay"]
    yield _gauge("stopped_by_accusation", "1 while a broken rule stops the work.", float(accusations["is_stopped"]))
    if replay:
        yield _gauge("replayed_entries", "Entries of the log whose rules this node has checked.", replay["size"])
    yield _gauge("peers", "Connected libp2p peers.", report["p2p"]["peers"])
    steps = [row["step"] for row in report["weights"]["held"] if row["is_complete"]]
    yield _gauge("weights_step", "Newest step whose weights are on this disk; -1 for none.", max(steps, default=-1))
    yield _counter("weights_corrupt_shards", "Shards that failed their digest.", report["weights"]["corrupt"])
    yield _counter("upload_bytes", "Bytes of shards sent.", upload["sent_bytes"])
    yield _counter(
        "part_restarts", "Restarts of parts of the daemon.", sum(part["restarts"] for part in report["parts"])
    )
    if report["engine"]:
        yield _gauge("engine_ready", "1 while the engine holds a model.", float(report["engine"]["state"] == "ready"))
        yield _counter("engine_restarts", "Restarts of the engine.", report["engine"]["restarts"])
    if report["work"]:
        yield _gauge(
            "tokens_per_second", "Throughput of generation, as last measured.", report["work"]["tokens_per_s"] or 0
        )
    if report["jobs"]:
        jobs = GaugeMetricFamily(f"{PREFIX}_jobs", "Jobs in the journal, by state.", labels=["state"])
        for state in JobState:
            jobs.add_metric([state], report["jobs"]["counts"].get(str(state), 0))
        yield jobs
    if report["audits"]:
        yield _counter("verdicts", "Verdicts given since the start.", report["audits"]["done"])
    yield from _list_run_metrics(report["runs"])
    if report["account"]:
        for name in ("stake", "balance", "earned"):
            amount = report["account"][f"{name}_nano"] / NANO
            yield _gauge(f"{name}_amount", "In the network's currency, as the coordinator reports it.", amount)


def _list_run_metrics(runs: list[dict[str, Any]]) -> Iterator[Metric]:
    """The label is a run that the owner has named, so there are at most RUNS_SERVED_MAX."""
    families: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
        "run_ok": ("1 while nothing keeps the run from giving work.", lambda row: not explain_run_problem(row)),
        "run_weights_step": ("Newest step of the run on this disk; -1 for none.", lambda row: row["weights_step"]),
        "run_verdicts": ("Verdicts given in the run since the start.", lambda row: row["verdicts"]),
        "run_audits_open": ("Audits of the run that wait or run.", lambda row: row["audits_open"]),
    }
    for name, (text, get) in families.items():
        family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["run"])
        for row in runs:
            family.add_metric([row["run"]], float(get(row)))
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value)
