"""The guard passes on what is new and allowed, once; it says what is nobody's fault and what is malice."""

from threading import Thread

import pytest

from prime_protocol.constants import ANNOUNCED_BURST, GOSSIP_LIFE_MS, HEADS_BURST, SERVING_BURST, SERVING_SENDER_PER_S
from prime_protocol.gossip import guard as gossip_guard
from prime_protocol.gossip.guard import GossipAccepted, GossipGuard, GossipIgnored, GossipRejected
from prime_protocol.gossip.messages import GossipKind
from prime_protocol.wire.ids import RunId
from prime_protocol.wire.seen_messages import BUCKET_MS
from support.gossip_network import (
    ANN,
    BOB,
    NETWORK,
    NOW_MS,
    TRAINER,
    announced,
    guard,
    head_seen,
    is_trainer,
    judged,
    sealed,
    serving,
    wallet,
)

ANNOUNCED, SERVING, HEAD_SEEN = GossipKind.ANNOUNCED, GossipKind.SERVING, GossipKind.HEAD_SEEN
LIFE_MS = GOSSIP_LIFE_MS


def test_every_honest_kind_is_accepted_once_and_then_known() -> None:
    ours = guard()
    for message, key, kind in (
        (announced(), TRAINER, ANNOUNCED),
        (serving(), ANN, SERVING),
        (head_seen(), ANN, HEAD_SEEN),
    ):
        frame = sealed(message, key)
        verdict = judged(ours, frame, kind)
        assert isinstance(verdict, GossipAccepted)
        assert verdict.gossip.message == message
        assert judged(ours, frame, kind) == GossipIgnored("known")


def test_a_copy_under_the_same_number_is_known_even_when_digests_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_guard, "GOSSIP_SEEN_MAX", 0)
    ours, frame = guard(), sealed(serving(), ANN)
    assert isinstance(judged(ours, frame, SERVING), GossipAccepted)
    assert judged(ours, frame, SERVING) == GossipIgnored("older than what is known")


def test_an_older_record_never_replaces_a_newer_one() -> None:
    ours = guard()
    assert isinstance(judged(ours, sealed(serving(1), ANN, sequence=5), SERVING), GossipAccepted)
    assert judged(ours, sealed(serving(2), ANN, sequence=4), SERVING) == GossipIgnored("older than what is known")
    assert isinstance(judged(ours, sealed(serving(3), ANN, sequence=6), SERVING), GossipAccepted)


def test_announcements_of_two_manifests_may_come_in_any_order() -> None:
    ours = guard()
    assert isinstance(judged(ours, sealed(announced(8), sequence=2), ANNOUNCED), GossipAccepted)
    assert isinstance(judged(ours, sealed(announced(7), sequence=1), ANNOUNCED), GossipAccepted)


def test_only_the_trainer_announces_and_who_passes_on_another_is_hostile() -> None:
    verdict = judged(guard(), sealed(announced(), ANN), ANNOUNCED)
    assert isinstance(verdict, GossipRejected)
    assert verdict.is_hostile
    assert "not the trainer" in verdict.reason


def test_who_is_not_known_in_the_run_is_refused_without_blaming_the_forwarder() -> None:
    ours = GossipGuard(NETWORK, is_trainer=is_trainer, is_member=lambda run, node: node == ANN.node)
    assert isinstance(judged(ours, sealed(serving(), ANN), SERVING), GossipAccepted)
    verdict = judged(ours, sealed(serving(), BOB), SERVING)
    assert isinstance(verdict, GossipRejected)
    assert not verdict.is_hostile


def test_what_is_late_is_refused_without_blaming_the_forwarder() -> None:
    verdict = judged(guard(), sealed(serving(), ANN), SERVING, now_ms=NOW_MS + LIFE_MS)
    assert isinstance(verdict, GossipRejected)
    assert not verdict.is_hostile


@pytest.mark.parametrize("frame", [b"", bytes(70), bytes(40_000)])
def test_what_is_no_envelope_is_hostile(frame: bytes) -> None:
    verdict = judged(guard(), frame, SERVING)
    assert isinstance(verdict, GossipRejected)
    assert verdict.is_hostile


def test_a_message_of_another_run_is_hostile() -> None:
    verdict = judged(guard(), sealed(serving(), ANN, run=RunId("other")), SERVING)
    assert isinstance(verdict, GossipRejected)
    assert verdict.is_hostile


def test_a_flipped_bit_is_hostile() -> None:
    frame = bytearray(sealed(serving(), ANN))
    frame[200] ^= 1
    verdict = judged(guard(), bytes(frame), SERVING)
    assert isinstance(verdict, GossipRejected)
    assert verdict.is_hostile


@pytest.mark.parametrize(
    ("kind", "burst"), [(ANNOUNCED, ANNOUNCED_BURST), (SERVING, SERVING_BURST), (HEAD_SEEN, HEADS_BURST)]
)
def test_one_sender_is_passed_on_at_its_rate(kind: GossipKind, burst: int) -> None:
    ours = guard()
    key = TRAINER if kind is ANNOUNCED else ANN
    message = {ANNOUNCED: announced(), SERVING: serving(), HEAD_SEEN: head_seen()}[kind]
    frames = [sealed(message, key, sequence=number) for number in range(burst + 1)]
    verdicts = [judged(ours, frame, kind) for frame in frames]
    assert [type(verdict) for verdict in verdicts[:-1]] == [GossipAccepted] * burst
    assert verdicts[-1] == GossipIgnored("too many of one sender")


def test_a_sender_that_waits_is_heard_again_and_others_were_never_disturbed() -> None:
    ours = guard()
    for number in range(SERVING_BURST):
        judged(ours, sealed(serving(), ANN, sequence=number), SERVING)
    assert isinstance(judged(ours, sealed(serving(), BOB), SERVING), GossipAccepted)
    later_ms = NOW_MS + int(1000 / SERVING_SENDER_PER_S)
    again = sealed(serving(), ANN, sequence=SERVING_BURST, now_ms=later_ms)
    assert isinstance(judged(ours, again, SERVING, now_ms=later_ms), GossipAccepted)


def test_memory_is_bounded_and_strangers_do_not_crowd_out_who_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_guard, "GOSSIP_SENDERS_MAX", 3)
    ours = guard()
    for number in range(2, 5):
        assert isinstance(judged(ours, sealed(serving(), wallet(number)), SERVING), GossipAccepted)
    assert judged(ours, sealed(serving(), wallet(9)), SERVING) == GossipIgnored("too many senders")
    assert isinstance(judged(ours, sealed(serving(), wallet(2), sequence=2), SERVING), GossipAccepted)
    assert isinstance(judged(ours, sealed(announced()), ANNOUNCED), GossipAccepted), "a trainer always has room"


def test_one_trainer_cannot_fill_the_memory_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_guard, "GOSSIP_SUBJECTS_MAX", 2)
    ours = guard()
    for step in range(2):
        assert isinstance(judged(ours, sealed(announced(step), sequence=step), ANNOUNCED), GossipAccepted)
    assert judged(ours, sealed(announced(2), sequence=2), ANNOUNCED) == GossipIgnored("too many subjects of one sender")
    assert isinstance(judged(ours, sealed(announced(1), sequence=3), ANNOUNCED), GossipAccepted)


def test_what_has_expired_is_forgotten_and_still_refused() -> None:
    ours = guard()
    frame = sealed(serving(), ANN)
    judged(ours, frame, SERVING)
    judged(ours, sealed(announced()), ANNOUNCED)
    assert len(ours) == 2
    later_ms = NOW_MS + LIFE_MS + BUCKET_MS
    assert isinstance(judged(ours, frame, SERVING, now_ms=later_ms), GossipRejected)
    assert len(ours) == 0


def test_a_clock_that_is_set_back_lets_no_frame_through_again() -> None:
    ours, frame = guard(), sealed(serving(), ANN)
    assert isinstance(judged(ours, frame, SERVING), GossipAccepted)
    glitch_ms = NOW_MS + 2 * LIFE_MS
    judged(ours, sealed(serving(), BOB, now_ms=glitch_ms), SERVING, now_ms=glitch_ms)
    assert judged(ours, frame, SERVING) == GossipIgnored("issued before this node's clock was set back")
    fresh = sealed(serving(), ANN, sequence=2, now_ms=NOW_MS + 1)
    assert isinstance(judged(ours, fresh, SERVING, now_ms=NOW_MS + 1), GossipAccepted)


def test_a_clock_that_steps_back_gives_no_sender_more() -> None:
    ours = guard()
    for number in range(SERVING_BURST):
        judged(ours, sealed(serving(), ANN, sequence=number), SERVING)
    early_ms = NOW_MS - 1_000
    again = sealed(serving(), ANN, sequence=SERVING_BURST, now_ms=early_ms)
    assert judged(ours, again, SERVING, now_ms=early_ms) == GossipIgnored("too many of one sender")


def test_two_threads_with_the_same_frames_accept_each_once() -> None:
    ours = guard()
    frames = [sealed(announced(step), sequence=step) for step in range(100)]
    accepted: list[int] = []

    def judge_all() -> None:
        accepted.extend(isinstance(judged(ours, frame, ANNOUNCED), GossipAccepted) for frame in frames)

    threads = [Thread(target=judge_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(accepted) == len(frames)
