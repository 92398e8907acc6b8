"""Who may keep connections to a gateway."""

from prime_node.reverse.lane_table import PROBATION_MS, LaneAdmitted, LaneLimits, LaneRefused, LaneTable
from prime_protocol.wire.ids import NodeId

LIMITS = LaneLimits(nodes_max=3, lanes_per_node=2, nodes_per_group=2)


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(20, "big"))


def fill(table: LaneTable) -> None:
    for number in range(3):
        assert table.admit(node(number), f"group {number}", 0) == LaneAdmitted()


def test_a_node_gets_so_many_lanes_and_no_more() -> None:
    table = LaneTable(LIMITS)
    assert table.admit(node(1), "a", 0) == table.admit(node(1), "a", 0) == LaneAdmitted()
    assert isinstance(table.admit(node(1), "a", 0), LaneRefused)
    table.end_lane(node(1))
    assert table.admit(node(1), "a", 0) == LaneAdmitted()


def test_keys_of_one_network_cannot_take_all_places() -> None:
    table = LaneTable(LIMITS)
    assert table.admit(node(1), "a", 0) == table.admit(node(2), "a", 0) == LaneAdmitted()
    assert isinstance(table.admit(node(3), "a", 0), LaneRefused)
    assert table.admit(node(4), "b", 0) == LaneAdmitted()
    table.end_lane(node(1))
    assert len(table) == 2


def test_a_newcomer_takes_the_place_of_a_node_that_delivered_nothing() -> None:
    table = LaneTable(LIMITS)
    fill(table)
    table.count_bytes(node(0), 1_000, 0)
    table.count_bytes(node(2), 1_000, 0)
    assert isinstance(table.admit(node(9), "z", PROBATION_MS - 1), LaneRefused)
    assert table.admit(node(9), "z", PROBATION_MS) == LaneAdmitted(evicted=node(1))
    assert isinstance(table.admit(node(1), "group 1", PROBATION_MS), LaneRefused)


def test_nodes_that_deliver_keep_their_places() -> None:
    table = LaneTable(LIMITS)
    fill(table)
    for number in range(3):
        table.count_bytes(node(number), 10**9, 0)
    assert isinstance(table.admit(node(9), "z", PROBATION_MS), LaneRefused)
    table.end_lane(node(0))
    table.end_lane(node(0))
    assert table.admit(node(9), "z", PROBATION_MS) == LaneAdmitted()
