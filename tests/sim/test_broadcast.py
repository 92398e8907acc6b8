"""Whole broadcasts in virtual time, run by the nodes' own decisions. The numbers published are in docs/broadcast.md."""

import hashlib
from dataclasses import replace
from math import ceil, log2

import pytest

from prime_lab.simulator.broadcast.peers import SwarmPeer
from prime_lab.simulator.broadcast.plan import (
    MBIT,
    MIB,
    BroadcastPlan,
    SwarmMember,
    plan_home_lines,
    plan_uniform_lines,
    split_shards,
)
from prime_lab.simulator.broadcast.swarm import BroadcastSimulation, make_report, simulate_broadcast

SECONDS = 1_000.0


def line(mbit: float, slots: int = 6, **more: object) -> SwarmMember:
    rate = int(mbit * MBIT)
    return SwarmMember(up_bytes_per_s=rate, down_bytes_per_s=rate, slots=slots, **more)  # type: ignore[arg-type]


def plan_of(*members: SwarmMember, mib: int = 32, shard_mib: int = 1, seed: int = 1) -> BroadcastPlan:
    """The first is the origin. Records reach everybody at once."""
    return BroadcastPlan(seed=seed, members=members, lengths=split_shards(mib * MIB, shard_mib * MIB), record_ms=50.0)


def finished_s(peer: SwarmPeer) -> float:
    assert peer.tally.finished_ms is not None, f"node {peer.index} did not finish"
    return peer.tally.finished_ms / SECONDS


def wasted_bytes(swarm: BroadcastSimulation, peer: SwarmPeer) -> int:
    return peer.tally.received_bytes + peer.tally.corrupt_bytes - swarm.plan.size_bytes


# --- The figure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_sixteen_nodes_at_100_mbit_take_little_more_than_one_transfer(seed: int) -> None:
    """Bitmaps are up to half a second old; the limit is 1.3 x size / bandwidth + depth x shard time.

    bench/broadcast.py tries twenty seeds.
    """
    plan = plan_uniform_lines(seed, nodes=16, size_bytes=256 * MIB, shard_bytes=MIB)
    report = simulate_broadcast(plan)
    transfer_s = plan.size_bytes / (100 * MBIT)
    shard_s = MIB / (100 * MBIT)
    assert report.last_s <= 1.3 * transfer_s + ceil(log2(17)) * shard_s
    assert report.last_s <= 1.22 * transfer_s, "the margin that docs/broadcast.md claims"
    assert report.origin_sent < 1.2, "the origin sends little that anybody else could have sent"


def test_larger_shards_hold_the_figure_too() -> None:
    plan = plan_uniform_lines(1, nodes=16, size_bytes=256 * MIB, shard_bytes=2 * MIB)
    assert simulate_broadcast(plan).last_s <= 1.3 * 21.48 + 5 * 0.168


# --- One seed, one story --------------------------------------------------------------------------------------------


def trace(plan: BroadcastPlan) -> str:
    digest = hashlib.sha256()
    BroadcastSimulation(plan, lambda time_ms, index, event: digest.update(f"{time_ms} {index} {event}".encode())).run()
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    one = plan_home_lines(5, nodes=30, malicious=0.1, size_bytes=16 * MIB)
    assert trace(one) == trace(one)
    assert trace(one) != trace(plan_home_lines(6, nodes=30, malicious=0.1, size_bytes=16 * MIB))


# --- What goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_relay_killed_mid_transfer_delays_its_children_and_loses_nothing(is_silent: bool) -> None:
    relay = line(1000, slots=32, leaves_ms=1_500.0, is_silent=is_silent)
    swarm = BroadcastSimulation(plan_of(line(100), relay, *[line(100)] * 8)).run()
    untouched = BroadcastSimulation(plan_of(line(100), line(1000, slots=32), *[line(100)] * 8)).run()
    assert swarm.peers[1].tally.finished_ms is None
    for peer in swarm.peers[2:]:
        assert finished_s(peer) < finished_s(untouched.peers[peer.index]) + 8
    assert swarm.peers[1].tally.sent_bytes > 0, "it did serve before it died"


def test_one_liar_costs_each_node_at_most_one_shard() -> None:
    swarm = BroadcastSimulation(plan_of(line(100), line(100, lies=True), *[line(100)] * 8)).run()
    for peer in swarm.peers[2:]:
        finished_s(peer)
        assert peer.tally.corrupt_shards <= 1
        assert wasted_bytes(swarm, peer) == peer.tally.corrupt_shards * MIB
    assert sum(peer.tally.corrupt_shards for peer in swarm.peers) >= 4, "the liar was asked"


def test_liars_in_the_majority_only_slow_the_others() -> None:
    members = [line(100, lies=index % 3 > 0) for index in range(31)]
    report = simulate_broadcast(plan_of(line(100), *members, mib=8))
    assert report.unfinished == 0
    assert len(report.times) == 11


def test_a_parent_that_crawls_holds_up_nobody() -> None:
    swarm = BroadcastSimulation(plan_of(line(100), line(0.2), line(100), line(100), line(100))).run()
    assert max(finished_s(swarm.peers[index]) for index in (2, 3, 4)) < 12


def test_a_late_joiner_gets_it_from_the_others() -> None:
    late_ms = 60 * SECONDS
    swarm = BroadcastSimulation(plan_of(line(20), *[line(100)] * 5, line(100, joins_ms=late_ms))).run()
    alone_s = 32 * MIB / (20 * MBIT)
    assert finished_s(swarm.peers[-1]) - 60 < alone_s / 2, "faster than the origin could"


def test_if_all_but_the_origin_leave_the_last_node_still_finishes() -> None:
    leavers = [line(100, leaves_ms=1_000.0 + 50 * index, is_silent=index % 2 == 0) for index in range(12)]
    swarm = BroadcastSimulation(plan_of(line(100), *leavers, line(100), mib=32)).run()
    assert finished_s(swarm.peers[-1]) < 30


def test_forty_nodes_and_one_slot_form_a_line_and_all_finish() -> None:
    """Every parent is full most of the time; nobody gives up and nobody starves."""
    report = simulate_broadcast(plan_of(*[line(100, slots=1)] * 41, mib=4))
    assert report.unfinished == 0
    assert report.fulls > 40
    assert report.last_s < 20


def test_a_delta_of_one_shard_reaches_a_thousand_nodes_in_logarithmic_time() -> None:
    """Nobody has anything to trade: the tree alone carries it, by promises."""
    members = [line(100, delay_ms=15.0)] * 1001
    report = simulate_broadcast(replace(plan_of(*members, mib=4, shard_mib=4), known=12))
    shard_s = 4 * MIB / (100 * MBIT)
    assert report.unfinished == 0
    assert report.last_s < 4 * log2(1001) * shard_s
    assert report.last_s < report.star_s / 20


# --- Growth ---------------------------------------------------------------------------------------------------------


def test_time_to_the_last_node_grows_by_a_constant_for_each_eightfold() -> None:
    """Home lines, a fifth of the nodes leaving; the star grows eightfold. bench/broadcast.py goes to 10,000."""
    last_s = {}
    for nodes in (8, 64, 512):
        report = make_report(
            BroadcastSimulation(plan_home_lines(3, nodes=nodes, size_bytes=8 * MIB, shard_bytes=MIB)).run()
        )
        assert report.unfinished == 0
        last_s[nodes] = report.last_s
    assert last_s[64] - last_s[8] < 12
    assert last_s[512] - last_s[64] < 12
