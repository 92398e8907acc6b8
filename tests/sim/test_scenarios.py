"""Worlds that must hold, one family after the other: the real coordinator and nodes, through everything that happens.

A failing seed is in the name of the test and in its message; docs/operating/simulate.md says how to replay it.
"""

from typing import Any

import pytest

from prime_lab.simulator.plan import SimulationPlan, draw_plan
from prime_lab.simulator.rare_adversaries import ADVERSARY_NAMES
from prime_lab.simulator.simulation import SimulationReport, simulate


def run(seed: int, **options: Any) -> SimulationReport:
    report = simulate(SimulationPlan(seed=seed, **{"nodes": 24, "steps": 2, **options}))
    assert not report.complaints, f"{report.plan}\n" + "\n".join(report.complaints)
    assert report.steps == report.plan.steps
    return report


def test_a_quiet_network_of_honest_nodes_rejects_and_slashes_nobody() -> None:
    report = run(1, malicious=0.0, steps=3)
    assert report.outcomes["fraudulent"] == report.outcomes["invalid"] == report.slashed == 0
    assert report.outcomes["accept"] > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_work_goes_on_while_messages_are_lost_doubled_and_overtaken(seed: int) -> None:
    run(seed, loss=0.2, duplicate=0.2, skew_ms=15_000)


@pytest.mark.parametrize("seed", [1, 2])
def test_work_goes_on_through_partitions(seed: int) -> None:
    run(seed, partitions=6)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_when_the_coordinator_crashes(seed: int) -> None:
    run(seed, host_crashes=10, loss=0.05)


@pytest.mark.parametrize("seed", [1, 2])
def test_work_goes_on_when_nodes_crash_and_come_back(seed: int) -> None:
    run(seed, node_crashes=40, audit_crash=0.1)


@pytest.mark.parametrize("liar", ADVERSARY_NAMES)
def test_each_kind_of_liar_alone_breaks_nothing(liar: str) -> None:
    run(3, adversaries=(liar,), malicious=0.25)


def test_forgers_are_rejected_and_slashed() -> None:
    report = run(5, adversaries=("forger",), malicious=0.25)
    assert report.outcomes["fraudulent"] > 0
    assert report.slashed > 0


def test_many_lying_workers_do_not_stop_the_honest_ones() -> None:
    run(6, adversaries=("forger", "hoarder", "latecomer", "duplicator", "copycat", "thief", "vandal"), malicious=0.6)


def test_lying_validators_in_the_minority_slash_no_honest_node() -> None:
    report = run(7, adversaries=("lazy", "vindictive", "colluder", "silent", "meddler"), malicious=0.25, nodes=40)
    assert report.slashed == 0


def test_an_honest_slash_fails_the_seed_even_where_liars_are_most_of_the_judges() -> None:
    plan = SimulationPlan(seed=2, nodes=24, steps=1, quorum=1, adversaries=("vindictive",), malicious=0.6)
    assert any(complaint.startswith("no_honest_node_is_slashed") for complaint in simulate(plan).complaints)


def test_an_accepted_forgery_fails_the_seed_even_where_liars_are_most_of_the_judges() -> None:
    plan = SimulationPlan(seed=1, nodes=24, steps=1, quorum=1, adversaries=("forger", "lazy"), malicious=0.6)
    assert any(complaint.startswith("drawn_forgeries_are_rejected") for complaint in simulate(plan).complaints)


def test_a_flood_of_keys_gets_no_work() -> None:
    run(8, flood=100)


@pytest.mark.parametrize("seed", range(1, 5))
def test_everything_at_once(seed: int) -> None:
    report = simulate(draw_plan(seed, nodes=40, steps=2))
    assert not report.complaints, f"{report.plan}\n" + "\n".join(report.complaints)
