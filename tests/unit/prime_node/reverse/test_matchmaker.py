"""Whom a gateway introduces to whom."""

from collections import Counter
from random import Random

from prime_node.reverse.matchmaker import AGAIN_MS, PAIRS_AT_ONCE, PARTNERS_MAX, Matchmaker
from prime_protocol.wire.ids import NodeId

NODES = [NodeId(number.to_bytes(20, "big")) for number in range(30)]
APART = {node: f"198.51.100.{number}" for number, node in enumerate(NODES)}


def run_rounds(matchmaker: Matchmaker, linked: dict[NodeId, str], rounds: int) -> list[frozenset[NodeId]]:
    found = []
    for number in range(rounds):
        pairs = matchmaker.plan(linked, number, known=linked)
        told = [node for each in pairs for node in (each.first, each.second)]
        assert len(told) == len(set(told)) <= 2 * PAIRS_AT_ONCE
        found += [frozenset((each.first, each.second)) for each in pairs]
    return found


def test_everybody_meets_a_few_others_once() -> None:
    pairs = run_rounds(Matchmaker(Random(1)), APART, 100)
    assert len(pairs) == len(set(pairs))
    counts = Counter(node for pair in pairs for node in pair)
    assert max(counts.values()) == PARTNERS_MAX
    assert min(counts[node] for node in NODES) >= PARTNERS_MAX - 1


def test_nodes_behind_one_router_are_not_introduced() -> None:
    linked = {node: f"198.51.100.{number % 2}" for number, node in enumerate(NODES[:6])}
    for pair in run_rounds(Matchmaker(Random(1)), linked, 50):
        first, second = pair
        assert linked[first] != linked[second]


def test_a_pair_meets_again_after_a_while_or_when_one_of_them_came_back() -> None:
    two = dict(list(APART.items())[:2])
    matchmaker = Matchmaker(Random(1))
    assert len(matchmaker.plan(two, 0, known=two)) == 1
    assert matchmaker.plan(two, AGAIN_MS - 1, known=two) == []
    assert len(matchmaker.plan(two, AGAIN_MS, known=two)) == 1
    assert matchmaker.plan({}, AGAIN_MS + 1, known=NODES[:1]) == []
    assert len(matchmaker.plan(two, AGAIN_MS + 2, known=two)) == 1


def test_a_pair_that_is_busy_for_a_while_does_not_meet_again() -> None:
    two = dict(list(APART.items())[:2])
    matchmaker = Matchmaker(Random(1))
    assert len(matchmaker.plan(two, 0, known=two)) == 1
    assert matchmaker.plan({}, 1, known=two) == []
    assert matchmaker.plan(two, 2, known=two) == []
