"""The node's Prometheus metrics, made from its report when somebody asks. Labels have fixed values only."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_node.journal import PieceState
from prime_runtime.metrics import Metrics
from prime_runtime.wording import NANO

PREFIX = "prime_node"


class NodeCollector(Collector):
    """Reads the report at each scrape."""

    def __init__(self, report: Callable[[], dict[str, Any]]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        is_running = report["state"] == "running"
        yield _gauge("joined", "1 once the node takes part in its run.", float(is_running))
        if is_running:
            yield from _running(report)


def make_metrics(report: Callable[[], dict[str, Any]]) -> Metrics:
    metrics = Metrics("node")
    metrics.registry.register(NodeCollector(report))
    return metrics


def _running(report: dict[str, Any]) -> Iterator[Metric]:
    coordinator, upload = report["coordinator"], report["upload"]
    yield _gauge("coordinator_reached", "1 while the coordinator answers.", float(coordinator["is_reachable"]))
    yield _gauge("held", "1 while the owner's policy holds the node.", float(bool(report["owner"]["hold"])))
    yield _gauge("log_forks", "Pairs of tree heads that tell two histories.", len(report["heads"]["forks"]))
    yield _gauge("peers", "Connected libp2p peers.", report["p2p"]["peers"])
    steps = [row["step"] for row in report["weights"]["held"] if row["is_complete"]]
    yield _gauge("weights_step", "Newest step whose weights are here; -1 for none.", max(steps, default=-1))
    yield _counter("weights_corrupt_shards", "Shards that came wrong.", report["weights"]["corrupt"])
    yield _counter("upload_bytes", "Bytes of shards sent.", upload["sent_bytes"])
    yield _counter("part_restarts", "Parts that began again.", sum(part["restarts"] for part in report["parts"]))
    if report["engine"]:
        yield _gauge("engine_ready", "1 while the engine holds a model.", float(report["engine"]["state"] == "ready"))
        yield _counter("engine_restarts", "Times the engine began again.", report["engine"]["restarts"])
    if report["work"]:
        yield _gauge("tokens_per_second", "Pace of generation, as last measured.", report["work"]["tokens_per_s"] or 0)
    if report["pieces"]:
        pieces = GaugeMetricFamily(f"{PREFIX}_pieces", "Pieces of work in the journal, by state.", labels=["state"])
        for state in PieceState:
            pieces.add_metric([state], report["pieces"]["counts"].get(str(state), 0))
        yield pieces
    if report["audits"]:
        yield _counter("verdicts", "Verdicts given since the start.", report["audits"]["done"])
    if report["books"]:
        for name in ("stake", "balance", "earned"):
            tokens = report["books"][f"{name}_nano"] / NANO
            yield _gauge(f"{name}_tokens", "As the coordinator's books have it.", tokens)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value)
