"""What a node believes about its own port."""

from random import Random

from prime_node.reverse.reachability import ASK_AGAIN_MS, ASK_FIRST_MS, VALID_MS, Reachability, ReachabilityVotes
from prime_protocol.wire.ids import NodeId

NODES = [NodeId(number.to_bytes(20, "big")) for number in range(6)]
CLOSED, OPEN = "no connection", ""


def vote(votes: ReachabilityVotes, number: int, *, claims: bool, arrived: bool, at_ms: int = 0) -> None:
    votes.add(
        NODES[number],
        f"network {number}",
        claims=claims,
        has_arrived=arrived,
        problem=OPEN if claims else CLOSED,
        now_ms=at_ms,
    )


def test_three_networks_that_cannot_connect_close_the_port() -> None:
    votes = ReachabilityVotes(Random(1))
    for number in range(3):
        assert votes.judge(NODES, 0) is Reachability.UNKNOWN
        vote(votes, number, claims=False, arrived=False)
    assert votes.judge(NODES, 0) is Reachability.CLOSED
    assert votes.problem == CLOSED
    assert votes.judge(NODES, VALID_MS) is Reachability.UNKNOWN


def test_one_connection_outvotes_all_who_say_that_there_is_none() -> None:
    votes = ReachabilityVotes(Random(1))
    for number in range(5):
        vote(votes, number, claims=False, arrived=False)
    vote(votes, 5, claims=True, arrived=True)
    assert votes.judge(NODES, 0) is Reachability.OPEN


def test_a_server_that_claims_a_connection_that_never_came_is_not_asked_again() -> None:
    votes = ReachabilityVotes(Random(1))
    for number in range(5):
        vote(votes, number, claims=True, arrived=False)
    assert votes.false_claims == 5
    assert votes.judge(NODES, 0) is Reachability.UNKNOWN
    assert votes.choose(NODES, 0) == NODES[5]
    assert votes.choose(NODES[:5], ASK_AGAIN_MS) is None


def test_many_keys_of_one_network_have_one_vote() -> None:
    votes = ReachabilityVotes(Random(1))
    for node in NODES[:5]:
        votes.add(node, "one network", claims=False, has_arrived=False, problem=CLOSED, now_ms=0)
    assert votes.judge(NODES, 0) is Reachability.UNKNOWN


def test_where_only_one_server_is_known_its_answer_counts() -> None:
    votes = ReachabilityVotes(Random(1))
    assert votes.judge([], 0) is Reachability.UNKNOWN
    vote(votes, 0, claims=False, arrived=False)
    assert votes.judge(NODES[:1], 0) is Reachability.CLOSED


def test_all_are_asked_in_turn_and_seldom_once_it_is_known() -> None:
    votes, asked = ReachabilityVotes(Random(1)), []
    for number in range(2):
        node = votes.choose(NODES, number * ASK_FIRST_MS)
        assert node is not None
        asked.append(node)
        votes.add(node, str(node), claims=False, has_arrived=False, problem=CLOSED, now_ms=number * ASK_FIRST_MS)
        assert votes.choose(NODES, number * ASK_FIRST_MS + 1) is None
    assert len(set(asked)) == 2
    vote(votes, 5, claims=True, arrived=True, at_ms=ASK_FIRST_MS)
    assert votes.choose(NODES, 3 * ASK_FIRST_MS) is None
    assert votes.choose(NODES, ASK_FIRST_MS + ASK_AGAIN_MS) is not None
