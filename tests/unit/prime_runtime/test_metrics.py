"""Metrics: a registry for each program, labels that cannot grow, a page that Prometheus reads."""

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client.parser import text_string_to_metric_families

from prime_runtime.metrics import Metrics, RequestMetrics


async def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = await metrics.handle(make_mocked_request("GET", "/metrics"))
    assert isinstance(response, web.Response)
    assert response.content_type == "text/plain"
    assert isinstance(response.body, bytes)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }


async def test_two_programs_in_one_process_do_not_share_metrics() -> None:
    node, other = Metrics("node"), Metrics("node")
    node.gauge("peers", "Peers.").at().set(3)
    other.gauge("peers", "Peers.").at().set(4)
    assert (await scrape(node))[("prime_node_peers", ())] == 3


async def test_unknown_label_values_fall_together() -> None:
    metrics = Metrics("node")
    verdicts = metrics.counter("verdicts_total", "Verdicts.", verdict=["accept", "reject"])
    for value in ["accept", "evil", 'x"} 1\nfake 2', "reject"]:
        verdicts.at(verdict=value).inc()
    samples = await scrape(metrics)
    assert samples[("prime_node_verdicts_total", (("verdict", "other"),))] == 2
    assert len([name for name, _ in samples if name == "prime_node_verdicts_total"]) == 3


def test_a_label_set_that_could_grow_is_refused() -> None:
    metrics = Metrics("node")
    with pytest.raises(AssertionError, match="label combinations"):
        metrics.counter("x_total", "X.", a=[str(n) for n in range(100)], b=[str(n) for n in range(100)])
    with pytest.raises(AssertionError, match="labels are"):
        metrics.counter("y_total", "Y.", a=["1"]).at(b="1")


async def test_requests_are_counted_and_timed() -> None:
    metrics = Metrics("coordinator")
    requests = RequestMetrics(metrics, ["lease"])
    requests.observe("lease", 200, 30)
    requests.observe("strange", 418, 2_000)
    requests.watch_open(lambda: 5)
    samples = await scrape(metrics)
    assert samples[("prime_coordinator_requests_total", (("kind", "lease"), ("status", "200")))] == 1
    assert samples[("prime_coordinator_requests_total", (("kind", "other"), ("status", "other")))] == 1
    assert samples[("prime_coordinator_request_seconds_bucket", (("kind", "lease"), ("le", "0.05")))] == 1
    assert samples[("prime_coordinator_request_seconds_bucket", (("kind", "lease"), ("le", "0.025")))] == 0
    assert samples[("prime_coordinator_requests_open", ())] == 5
