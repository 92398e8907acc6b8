"""Which gateways a private node keeps connections to."""

from random import Random

from prime_node.reverse.gateway_plan import (
    GATEWAYS_MAX,
    GREED_PAUSE_MS,
    LANES,
    MET_FACTOR,
    REFUSED_MS,
    RETRY_MIN_MS,
    REVIEW_MS,
    GatewayPlan,
    OfferedWeights,
)
from prime_protocol.wire.ids import NodeId

NODES = [NodeId(number.to_bytes(20, "big")) for number in range(20)]
NOTHING, WEIGHTS = OfferedWeights(0, 0), OfferedWeights(1_000, 1_000)


def test_few_gateways_are_drawn_and_each_gets_its_lanes_once() -> None:
    plan = GatewayPlan(Random(1))
    opened = plan.update(NODES, WEIGHTS, 0).open
    assert len(set(opened)) == GATEWAYS_MAX
    assert len(opened) == GATEWAYS_MAX * LANES
    assert plan.update(NODES, WEIGHTS, 1).open == ()


def test_private_nodes_spread_over_the_gateways() -> None:
    drawn = {node for seed in range(20) for node in GatewayPlan(Random(seed)).update(NODES, WEIGHTS, 0).open}
    assert len(drawn) > 15


def test_a_lane_that_ends_is_opened_again_after_a_pause_that_grows() -> None:
    plan, waits = GatewayPlan(Random(1)), []
    (node,) = set(plan.update(NODES[:1], WEIGHTS, 0).open)
    now_ms = 0
    for _ in range(4):
        plan.mark_ended(node, now_ms)
        began_ms = now_ms
        while not plan.update(NODES[:1], WEIGHTS, now_ms).open:
            now_ms += 100
        waits.append(now_ms - began_ms)
    assert waits == sorted(waits)
    assert waits[0] >= RETRY_MIN_MS
    assert waits[-1] >= 8 * RETRY_MIN_MS


def test_a_server_that_is_no_gateway_gives_way_to_another() -> None:
    plan = GatewayPlan(Random(1), gateways_max=1, lanes=1)
    (first,) = plan.update(NODES[:2], WEIGHTS, 0).open
    plan.mark_ended(first, 0, pause_ms=REFUSED_MS)
    (second,) = plan.update(NODES[:2], WEIGHTS, 0).open
    assert second != first


def test_a_gateway_that_takes_more_than_the_weights_contain_is_left_alone() -> None:
    plan = GatewayPlan(Random(1), gateways_max=1, lanes=1)
    (node,) = plan.update(NODES[:1], WEIGHTS, 0).open
    plan.count_sent(node, 2_000)
    assert plan.update(NODES[:1], WEIGHTS, 1).close == ()
    plan.count_sent(node, 1)
    assert plan.update(NODES[:1], WEIGHTS, 2).close == (node,)
    plan.mark_ended(node, 3)
    assert plan.update(NODES[:1], WEIGHTS, GREED_PAUSE_MS).open == ()
    assert plan.update(NODES[:1], WEIGHTS, 2 * GREED_PAUSE_MS).open == (node,)


def test_the_nodes_that_a_gateway_introduces_count_against_it() -> None:
    plan = GatewayPlan(Random(1), gateways_max=1, lanes=1)
    (node,) = plan.update(NODES[:1], WEIGHTS, 0).open
    plan.count_sent(node, MET_FACTOR * 1_000, is_met=True)
    assert not plan.is_greedy(node, WEIGHTS)
    plan.count_sent(node, 1, is_met=True)
    assert plan.is_greedy(node, WEIGHTS)
    assert plan.update(NODES[:1], WEIGHTS, 1).close == (node,)


def test_new_weights_may_be_taken_as_well() -> None:
    plan = GatewayPlan(Random(1), gateways_max=1, lanes=1)
    (node,) = plan.update(NODES[:1], WEIGHTS, 0).open
    for step in range(2, 100):
        plan.count_sent(node, 1_000)
        assert plan.update(NODES[:1], OfferedWeights(1_000, 1_000 * step), step).close == ()


def test_the_gateway_that_takes_least_is_replaced_now_and_then() -> None:
    plan = GatewayPlan(Random(1), gateways_max=2, lanes=1)
    used, idle = plan.update(NODES, WEIGHTS, 0).open
    for node in (used, idle):
        plan.mark_open(node)
    plan.count_sent(used, 500)
    later = plan.update(NODES, WEIGHTS, REVIEW_MS)
    assert later.close == (idle,)
    assert len(later.open) == 1
    assert {*later.open} & {used, idle} == set()
    assert used in plan.linked


def test_a_gateway_that_is_gone_from_gossip_is_closed() -> None:
    plan = GatewayPlan(Random(1))
    chosen = set(plan.update(NODES[:2], NOTHING, 0).open)
    assert chosen == set(NODES[:2])
    assert plan.update(NODES[:1], NOTHING, 1).close == (NODES[1],)
    assert plan.chosen == [NODES[0]]
