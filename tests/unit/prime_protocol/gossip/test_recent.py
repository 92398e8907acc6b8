"""What a node keeps for peers that join: the newest of each kind, in bounds."""

from dataclasses import replace

from prime_protocol.constants import (
    GOSSIP_FRAME_BYTES_MAX,
    GOSSIP_LIFE_MS,
    RECENT_ANNOUNCED_MAX,
    RECENT_BYTES_MAX,
    RECENT_SERVING_MAX,
)
from prime_protocol.gossip.guard import GossipAccepted, GossipGuard
from prime_protocol.gossip.messages import GossipKind, RecentReply, RecentRequest, get_frame_kind
from prime_protocol.gossip.recent import RecentGossip
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import RunId
from support.gossip_network import (
    ANN,
    BOB,
    NETWORK,
    NOW_MS,
    RUN,
    accusation,
    announced,
    guard,
    head_seen,
    judged,
    sealed,
    serving,
    wallet,
)


def accept(by: GossipGuard, frame: bytes) -> bytes:
    verdict = judged(by, frame, get_frame_kind(frame, NETWORK))
    assert isinstance(verdict, GossipAccepted), verdict
    return frame


def test_announcements_come_first_and_those_of_the_newest_steps_are_kept() -> None:
    ours = guard()
    head = accept(ours, sealed(head_seen(), ANN))
    shown = accept(ours, sealed(accusation(), ANN))
    served = accept(ours, sealed(serving(), ANN))
    by_step = {
        step: accept(ours, sealed(announced(step), sequence=step + 1)) for step in (*range(20, 40), *range(10, 20))
    }
    newest = [by_step[step] for step in range(39, 39 - RECENT_ANNOUNCED_MAX, -1)]
    assert sorted(ours.list_recent(RUN, NOW_MS)) == sorted([*newest, served, head, shown])
    assert ours.list_recent(RUN, NOW_MS)[RECENT_ANNOUNCED_MAX:] == (served, head, shown)
    assert ours.list_recent(RunId("other"), NOW_MS) == ()
    assert ours.list_recent(RUN, NOW_MS + GOSSIP_LIFE_MS) == (), "all have expired"


def test_a_newer_record_replaces_the_older_and_one_that_stops_goes() -> None:
    ours = guard()
    accept(ours, sealed(serving(1), ANN, sequence=1))
    newer = accept(ours, sealed(serving(2), ANN, sequence=2))
    other = accept(ours, sealed(serving(2), BOB, sequence=1))
    assert ours.list_recent(RUN, NOW_MS) == (other, newer)
    accept(ours, sealed(serving(0, urls=()), ANN, sequence=3))
    assert ours.list_recent(RUN, NOW_MS) == (other,)


def test_records_of_many_nodes_are_bounded_and_the_oldest_gives_way() -> None:
    ours = guard()
    frames = [accept(ours, sealed(serving(), wallet(number))) for number in range(2, 3 + RECENT_SERVING_MAX)]
    assert ours.list_recent(RUN, NOW_MS) == tuple(reversed(frames[1:]))


def test_an_answer_is_bounded_in_bytes_and_travels() -> None:
    recent = RecentGossip()
    now_ms = NOW_MS
    for number in range(RECENT_SERVING_MAX):
        verdict = judged(guard(), sealed(serving(), wallet(number + 2)), GossipKind.SERVING)
        assert isinstance(verdict, GossipAccepted)
        recent.put(RUN, bytes([number]), replace(verdict.gossip, frame=bytes([number]) * GOSSIP_FRAME_BYTES_MAX))
    frames = recent.list_frames(RUN, now_ms)
    assert len(frames) == RECENT_BYTES_MAX // GOSSIP_FRAME_BYTES_MAX
    for message in (RecentReply(frames=frames), RecentRequest(run=RUN)):
        assert decode(type(message), encode(message)) == message
