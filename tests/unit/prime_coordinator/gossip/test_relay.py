"""The board gives what is new, the newest weights' servers first, within bounds, and forgets what has expired."""

from random import Random

import pytest

from prime_coordinator.gossip.relay import GossipRelay, RelayLimits
from prime_protocol.constants import GOSSIP_LIFE_MS, RELAY_FRAMES_MAX, RELAY_HEADS_MAX, RELAY_SERVING_MAX
from prime_protocol.gossip.messages import GossipKind, ReceivedGossip
from prime_protocol.wire.ids import RunId
from support.gossip_examples import NOW_MS, RUN, announced, head_seen, key_of, said, serving


@pytest.fixture
def board() -> GossipRelay:
    return GossipRelay(Random(7), now_ms=NOW_MS)


def put(board: GossipRelay, gossip: ReceivedGossip, now_ms: int = NOW_MS) -> bool:
    return board.put(RUN, gossip, now_ms)


def read(board: GossipRelay, seen: int = 0, now_ms: int = NOW_MS) -> tuple[bytes, ...]:
    return board.read(RUN, seen, now_ms)[1]


def test_an_empty_relay_returns_a_cursor_that_misses_nothing(board: GossipRelay) -> None:
    cursor, frames = board.read(RUN, 0, NOW_MS)
    assert (frames, board.has_news(RUN, 0), board.has_urgent(RUN, 0), board.count_nodes(RUN)) == ((), False, False, 0)
    gossip = said("trainer", announced(0))
    put(board, gossip)
    assert read(board, cursor) == (gossip.frame,)


def test_a_reader_gets_only_what_is_new_to_it(board: GossipRelay) -> None:
    first, second = said("trainer", announced(0)), said("a", serving(0))
    put(board, first)
    cursor, frames = board.read(RUN, 0, NOW_MS)
    assert frames == (first.frame,)
    put(board, second)
    assert board.has_news(RUN, cursor)
    cursor, frames = board.read(RUN, cursor, NOW_MS)
    assert frames == (second.frame,)
    assert not board.has_news(RUN, cursor)
    assert board.read(RUN, cursor, NOW_MS) == (cursor, ())


def test_frames_are_counted_by_kind_over_all_runs(board: GossipRelay) -> None:
    for gossip in (
        said("trainer", announced(0)),
        said("a", serving(0)),
        said("b", serving(0)),
        said("a", head_seen(1)),
    ):
        put(board, gossip)
    board.put(RunId("other"), said("a", head_seen(1)), NOW_MS)
    assert board.count() == {
        GossipKind.ANNOUNCED: 1,
        GossipKind.SERVING: 2,
        GossipKind.HEAD_SEEN: 2,
        GossipKind.ACCUSATION: 0,
    }
    assert len(board) == 5


def test_a_new_announcement_is_urgent_and_its_repetition_is_not(board: GossipRelay) -> None:
    assert put(board, said("trainer", announced(0)))
    assert not put(board, said("trainer", announced(0), now_ms=NOW_MS + 1))
    assert put(board, said("trainer", announced(1)))
    assert len(board) == 2


def test_the_first_server_of_the_newest_weights_is_urgent_and_the_second_is_not(board: GossipRelay) -> None:
    put(board, said("trainer", announced(0)))
    assert put(board, said("origin", serving(0)))
    assert not put(board, said("a", serving(0)))
    assert not put(board, said("b", serving(5))), "nobody has announced that"
    assert not put(board, said("origin", serving(0), now_ms=NOW_MS + 1))


def test_a_cursor_of_an_earlier_process_misses_nothing(board: GossipRelay) -> None:
    put(board, said("trainer", announced(0)))
    later = NOW_MS + 10**9
    assert board.has_news(RUN, later)
    assert board.has_urgent(RUN, later)
    assert len(read(board, later)) == 1
    after_restart = GossipRelay(Random(7), now_ms=NOW_MS + 1000)
    assert after_restart.put(RUN, said("trainer", announced(0)), NOW_MS)
    assert len(after_restart.read(RUN, NOW_MS + 3, NOW_MS)[1]) == 1


def test_a_node_without_urls_is_not_listed_and_one_that_stops_is_removed(board: GossipRelay) -> None:
    put(board, said("a", serving(0, urls=())))
    assert (read(board), board.count_nodes(RUN)) == ((), 0)
    put(board, said("a", serving(0), now_ms=NOW_MS + 1))
    assert board.count_nodes(RUN) == 1
    put(board, said("a", serving(0, urls=()), now_ms=NOW_MS + 2))
    assert (read(board), board.count_nodes(RUN)) == ((), 0)


def test_announcements_come_first_newest_step_first_then_servers_then_heads(board: GossipRelay) -> None:
    head, server = said("a", head_seen(5)), said("b", serving(1))
    newer, older = said("trainer", announced(1)), said("trainer", announced(0))
    for gossip in (head, server, newer, older):
        put(board, gossip)
    assert read(board) == (newer.frame, older.frame, server.frame, head.frame)


def test_a_reply_is_bounded_and_reserves_half_for_the_newest_weights(board: GossipRelay) -> None:
    for step in range(100):
        put(board, said("trainer", announced(step)))
    for number in range(100):
        put(board, said(f"old {number}", serving(0)))
    ahead = {said(f"new {number}", serving(99)) for number in range(20)}
    for gossip in ahead:
        put(board, gossip)
    for number in range(20):
        put(board, said(f"old {number}", head_seen(number + 1)))
    frames = read(board)
    assert len(frames) == RELAY_FRAMES_MAX
    assert len({gossip.frame for gossip in ahead} & set(frames)) == RELAY_SERVING_MAX // 2
    assert len(frames) - RELAY_SERVING_MAX - RELAY_HEADS_MAX == 24, "announcements"
    assert read(board) != frames, "another draw"


def test_servers_of_the_newest_weights_fill_what_others_leave(board: GossipRelay) -> None:
    put(board, said("trainer", announced(0)))
    for number in range(40):
        put(board, said(f"node {number}", serving(0)))
    assert len(read(board)) == 1 + RELAY_SERVING_MAX


def test_what_has_expired_is_neither_shown_nor_kept(board: GossipRelay) -> None:
    put(board, said("trainer", announced(0)))
    put(board, said("a", serving(0)))
    put(board, said("a", head_seen(1)))
    end_ms = NOW_MS + GOSSIP_LIFE_MS
    assert len(read(board, now_ms=end_ms - 1)) == 3
    assert read(board, now_ms=end_ms) == ()
    assert put(board, said("trainer", announced(0), now_ms=end_ms), end_ms), "as if it were new"
    assert len(board) == 1
    assert put(board, said("a", serving(0), now_ms=end_ms), end_ms), "the first to serve it again"


def test_every_table_has_an_end_and_loses_the_oldest_first() -> None:
    limits = RelayLimits(announced_max=2, serving_max=2, heads_max=2)
    board = GossipRelay(Random(7), now_ms=NOW_MS, limits=limits)
    for number in range(4):
        put(board, said("trainer", announced(number)))
        put(board, said(f"node {number}", serving(number)))
        put(board, said(f"node {number}", head_seen(number + 1)))
    kept = [said("trainer", announced(n)).frame for n in (3, 2)]
    kept += [said(f"node {n}", serving(n)).frame for n in (3, 2)]
    kept += [said(f"node {n}", head_seen(n + 1)).frame for n in (3, 2)]
    assert read(board) == tuple(kept)
    assert put(board, said("new", serving(2), now_ms=NOW_MS + 1)), "who served it had to go"
    assert board.count_nodes(RUN) == 2


def test_runs_do_not_see_each_other(board: GossipRelay) -> None:
    put(board, said("trainer", announced(0)))
    assert board.read(RunId("other"), 0, NOW_MS)[1] == ()
    assert not board.has_news(RunId("other"), 0)


def test_serving_nodes_are_listed_until_their_message_expires(board: GossipRelay) -> None:
    assert board.list_serving(RUN, NOW_MS) == []
    for name, depth in (("a", 1), ("b", 2), ("a", 3)):
        put(board, said(name, serving(0, depth=depth)))
    listed = [(sender, message.depth) for sender, message in board.list_serving(RUN, NOW_MS)]
    assert listed == [(key_of("a").node, 3), (key_of("b").node, 2)]
    assert board.list_serving(RUN, NOW_MS + 2 * GOSSIP_LIFE_MS) == []
