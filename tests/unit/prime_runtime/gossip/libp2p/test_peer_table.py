"""The peer table: whom it dials and when, whom it drops and bans, and that strangers cannot fill it."""

from typing import Any

import pytest

from prime_protocol.wire.addresses import PeerAddress
from prime_runtime.gossip.libp2p.peer_book import (
    BAN_MS,
    GROUP_BANS_MAX,
    HALF_LIFE_MS,
    RANGE_SHARE,
    SCORE_MAX,
    SOURCE_SHARE,
    PeerFault,
    PeerLimits,
    PeerScore,
)
from prime_runtime.gossip.libp2p.peer_table import (
    ALONE_WAIT_MS_MAX,
    ASK_RARELY,
    DIAL_WAIT_MS,
    DIAL_WAIT_MS_MAX,
    FORGET_FAILURES,
    PINGS_MISSED_MAX,
    SILENT_MS,
    AskPeer,
    DialPeer,
    DropPeer,
    PeerTable,
    PingPeer,
    parse_peer_address,
)
from support.gossip_network import wallet

OWN = wallet(1).peer_id()
LIMITS = PeerLimits(target=3, known_max=20, per_host_max=4, ping_ms=1_000, ask_ms=5_000, allow_private=True)
"""Addresses for examples (203.0.113.*) count as private."""
LATER_MS = 10**9


def table(**changed: Any) -> PeerTable:
    limits = {name: getattr(LIMITS, name) for name in LIMITS.__slots__} | changed
    return PeerTable(OWN, PeerLimits(**limits), salt=b"salt")


def peer(number: int) -> str:
    return wallet(number).peer_id()


def address(number: int, host: str | None = None, port: int = 4001) -> str:
    return f"/ip4/{host or f'203.0.113.{number}'}/tcp/{port}/p2p/{peer(number)}"


def learn(to: PeerTable, *texts: str, until_ms: int = 100, now_ms: int = 0, record: bytes = b"record") -> bool:
    return to.book.learn(tuple(map(PeerAddress.parse, texts)), record=record, until_ms=until_ms, now_ms=now_ms)


def dials(of: PeerTable, now_ms: int) -> list[DialPeer]:
    return [effect for effect in of.tick(now_ms) if isinstance(effect, DialPeer)]


def connect(to: PeerTable, number: int, now_ms: int = 0, host: str | None = None) -> None:
    assert to.connected_to(peer(number), host or f"203.0.113.{number}", now_ms) == []
    to.speaking(peer(number))


def test_it_dials_what_it_was_told_until_it_has_enough() -> None:
    ours = table()
    ours.book.add_bootstrap([address(2), address(3)])
    for number in range(4, 9):
        assert learn(ours, address(number))
    first = dials(ours, 0)
    assert len(first) == LIMITS.target
    assert dials(ours, 1) == [], "those dials are still under way"
    for dial in first:
        ours.dialled(dial.peer, dial.address, is_open=True, now_ms=2)
        ours.connected_to(dial.peer, "203.0.113.7", 2)
    assert dials(ours, LATER_MS) == []
    ours.disconnected(first[0].peer, LATER_MS)
    assert len(dials(ours, LATER_MS + DIAL_WAIT_MS)) == 1


def test_it_never_dials_itself() -> None:
    ours = table()
    ours.book.add_bootstrap([f"/ip4/203.0.113.1/tcp/1/p2p/{OWN}"])
    assert not learn(ours, f"/ip4/203.0.113.1/tcp/1/p2p/{OWN}")
    assert dials(ours, 0) == []


def test_a_failed_address_is_tried_again_after_a_pause_that_doubles() -> None:
    ours = table()
    assert learn(ours, address(2))
    now_ms = 0
    for pause_ms in (2 * DIAL_WAIT_MS, 4 * DIAL_WAIT_MS, 8 * DIAL_WAIT_MS):
        (dial,) = dials(ours, now_ms)
        ours.dialled(dial.peer, dial.address, is_open=False, now_ms=now_ms)
        assert dials(ours, now_ms + pause_ms - 1) == []
        now_ms += pause_ms


def test_a_dead_first_address_does_not_hide_a_live_second_one() -> None:
    ours = table()
    assert learn(ours, address(2, port=1), address(2, port=2))
    (dead,) = dials(ours, 0)
    ours.dialled(dead.peer, dead.address, is_open=False, now_ms=0)
    (live,) = dials(ours, 0)
    assert {dead.address, live.address} == {address(2, port=1), address(2, port=2)}


def test_who_never_answers_is_forgotten_unless_it_is_a_bootstrap_peer() -> None:
    ours = table()
    ours.book.add_bootstrap([address(2)])
    assert learn(ours, address(3))
    for number in range(FORGET_FAILURES):
        for dial in dials(ours, (number + 1) * DIAL_WAIT_MS_MAX):
            ours.dialled(dial.peer, dial.address, is_open=False, now_ms=(number + 1) * DIAL_WAIT_MS_MAX)
    assert ours.book.known == 1
    assert [dial.peer for dial in dials(ours, LATER_MS)] == [peer(2)]


def test_who_has_lost_everybody_goes_back_to_its_bootstrap_peers_soon() -> None:
    ours = table()
    ours.book.add_bootstrap([address(2)])
    now_ms = 0
    for _ in range(12):
        (dial,) = dials(ours, now_ms)
        ours.dialled(dial.peer, dial.address, is_open=False, now_ms=now_ms)
        now_ms += ALONE_WAIT_MS_MAX
    connect(ours, 9, now_ms)
    assert dials(ours, now_ms + ALONE_WAIT_MS_MAX) == [], "with company there is no hurry"


def test_the_newest_card_replaces_the_addresses_of_an_older_one() -> None:
    ours = table()
    assert learn(ours, address(2, port=1), until_ms=100)
    assert learn(ours, address(2, port=2), until_ms=200, record=b"newer")
    assert [dial.address for dial in dials(ours, 0)] == [address(2, port=2)]
    assert ours.book.list_records("asker", count_max=9, wall_ms=150) == [b"newer"]


def test_living_cards_are_handed_out_and_never_the_askers_own() -> None:
    ours = table()
    for number in range(2, 6):
        assert learn(ours, address(number), until_ms=number * 100, record=bytes([number]))
    connect(ours, 5)
    assert ours.book.list_records("asker", count_max=9, wall_ms=300)[0] == bytes([5]), "a connected one first"
    assert sorted(ours.book.list_records(peer(4), count_max=9, wall_ms=300)) == [bytes([5])]
    assert len(ours.book.list_records("asker", count_max=1, wall_ms=0)) == 1


def test_addresses_without_a_card_are_dialled_and_not_handed_out() -> None:
    ours = table()
    assert learn(ours, address(2), record=b"", until_ms=0)
    assert dials(ours, 0)
    assert ours.book.list_records("asker", count_max=9, wall_ms=0) == []


def test_one_host_cannot_fill_the_table() -> None:
    ours = table()
    learnt = [learn(ours, address(number, host="203.0.113.200", port=number)) for number in range(2, 10)]
    assert learnt == [True] * LIMITS.per_host_max + [False] * 4
    ours.book.add_bootstrap([address(30, host="203.0.113.200")])
    assert ours.book.known == LIMITS.per_host_max + 1, "what the operator named is always known"


def test_a_full_table_takes_a_newcomer_only_for_one_that_fails() -> None:
    ours = table(known_max=2, target=1)
    assert learn(ours, address(2))
    assert learn(ours, address(3))
    assert not learn(ours, address(4))
    (dial,) = dials(ours, 0)
    ours.dialled(dial.peer, dial.address, is_open=False, now_ms=0)
    assert learn(ours, address(4))
    assert ours.book.known == 2


def test_a_connected_peer_is_pinged_and_asked_when_due() -> None:
    ours = table(target=2)
    connect(ours, 2)
    assert ours.tick(0) == [AskPeer(peer(2))]
    assert ours.tick(1) == [], "it is being asked"
    ours.asked(peer(2), 10)
    assert ours.tick(LIMITS.ping_ms) == [PingPeer(peer(2))]
    assert ours.pinged(peer(2), is_answered=True, now_ms=1_010) == []
    assert ours.tick(1_020) == []
    assert set(ours.tick(10 + LIMITS.ask_ms)) == {AskPeer(peer(2)), PingPeer(peer(2))}


def test_a_node_with_enough_peers_asks_them_rarely() -> None:
    ours = table(target=1)
    connect(ours, 2)
    ours.tick(0)
    ours.asked(peer(2), 0)
    ours.heard(peer(2), 10**6)
    assert AskPeer(peer(2)) not in ours.tick(LIMITS.ask_ms)
    assert AskPeer(peer(2)) in ours.tick(ASK_RARELY * LIMITS.ask_ms)


def test_a_peer_that_is_heard_needs_no_ping_but_the_first() -> None:
    ours = table(target=1)
    connect(ours, 2)
    ours.heard(peer(2), 999)
    assert PingPeer(peer(2)) in ours.tick(LIMITS.ping_ms), "it tells how far away the peer is"
    ours.pinged(peer(2), is_answered=True, now_ms=LIMITS.ping_ms, rtt_ms=7)
    ours.heard(peer(2), LIMITS.ping_ms + 900)
    assert PingPeer(peer(2)) not in ours.tick(2 * LIMITS.ping_ms)
    assert PingPeer(peer(2)) in ours.tick(2 * LIMITS.ping_ms + 900), "a frozen peer is not heard"


def test_an_owner_sees_who_is_connected_how_far_and_at_what_rate() -> None:
    ours = table()
    assert ours.book.learn((PeerAddress.parse(address(2)),), record=b"", until_ms=0, now_ms=0, source="saved")
    connect(ours, 2, now_ms=1_000)
    link = ours.book.peers[peer(2)].link
    assert link is not None
    link.count(20_000, 5_000, 11_000)
    link.count(22_000, 5_500, 12_000)
    ours.pinged(peer(2), is_answered=True, now_ms=5_000, rtt_ms=31)
    (shown,) = ours.list_connections(13_000)
    assert (shown.peer_id, shown.node, shown.address) == (peer(2), str(wallet(2).node), "203.0.113.2")
    assert (shown.connected_ms, shown.rtt_ms, shown.named_by, shown.relay) == (12_000, 31, "saved", "")
    assert (shown.bytes_in, shown.bytes_out) == (22_000, 5_500)
    assert (shown.in_per_s, shown.out_per_s) == (2_000, 500)


def test_who_misses_two_pings_is_dropped() -> None:
    ours = table(target=1)
    connect(ours, 2)
    for _ in range(PINGS_MISSED_MAX - 1):
        assert ours.pinged(peer(2), is_answered=False, now_ms=5) == []
        assert PingPeer(peer(2)) in ours.tick(5), "asked again at once"
    assert [type(effect) for effect in ours.pinged(peer(2), is_answered=False, now_ms=9)] == [DropPeer]


def test_who_never_gossips_loses_its_place() -> None:
    ours = table()
    ours.connected_to(peer(2), "203.0.113.2", 0)
    assert [type(effect) for effect in ours.tick(SILENT_MS)] == [DropPeer]


def test_events_about_who_is_gone_change_nothing() -> None:
    ours = table()
    ours.disconnected(peer(2), 0)
    ours.speaking(peer(2))
    ours.behaved(peer(2), 0)
    ours.asked(peer(2), 0)
    ours.dialled(peer(2), address(2), is_open=False, now_ms=0)
    assert ours.pinged(peer(2), is_answered=False, now_ms=0) == []
    assert ours.misbehaved(peer(2), PeerFault.FORGED, 0) == []
    assert (ours.book.known, ours.connected) == (0, 0)


def test_a_stranger_that_came_and_went_leaves_nothing() -> None:
    ours = table()
    for number in range(2, 30):
        connect(ours, number)
        ours.disconnected(peer(number), 1)
    assert ours.connected == 0
    assert len(ours.book.peers) == 0


def ban(ours: PeerTable, number: int, now_ms: int = 0, host: str | None = None) -> None:
    connect(ours, number, now_ms, host)
    effects = [effect for _ in range(5) for effect in ours.misbehaved(peer(number), PeerFault.FORGED, now_ms)]
    assert [type(effect) for effect in effects] == [DropPeer]
    ours.disconnected(peer(number), now_ms)


def test_who_passes_on_forgeries_is_banned_dropped_and_not_dialled_until_the_ban_ends() -> None:
    ours = table()
    assert learn(ours, address(2))
    ban(ours, 2)
    assert ours.book.is_banned(peer(2), 1)
    assert ours.book.count_banned(1) == 1
    assert [type(effect) for effect in ours.connected_to(peer(2), "203.0.113.2", 1)] == [DropPeer]
    assert not learn(ours, address(2), until_ms=999, now_ms=1)
    assert dials(ours, 1) == []
    assert [dial.peer for dial in dials(ours, BAN_MS + DIAL_WAIT_MS)] == [peer(2)]


def test_an_address_with_three_banned_peers_is_blocked_until_their_bans_end() -> None:
    ours = table()
    for number in range(2, 2 + GROUP_BANS_MAX):
        assert not ours.book.is_blocked("198.51.100.1", 0)
        ban(ours, number, host="198.51.100.1")
    assert ours.book.is_blocked("198.51.100.1", 1)
    assert not ours.book.is_blocked("198.51.100.2", 1)
    assert not ours.book.is_blocked("198.51.100.1", BAN_MS)


def test_this_machine_is_never_shut_out() -> None:
    ours = table()
    for number in range(2, 10):
        ban(ours, number, host="127.0.0.1")
    assert not ours.book.is_blocked("127.0.0.1", 1)


def test_banned_strangers_are_remembered_in_bounds_and_forgotten_afterwards() -> None:
    ours = table(known_max=5)
    for number in range(2, 20):
        ban(ours, number, now_ms=number)
        ours.tick(number)
    assert ours.book.count_banned(30) == 5
    ours.tick(30 + BAN_MS)
    assert len(ours.book.peers) == 0


def test_a_crash_of_the_library_forgets_connections_and_keeps_peers() -> None:
    ours = table()
    assert learn(ours, address(2))
    dials(ours, 0)
    connect(ours, 3)
    ours.disconnect_all(5)
    assert (ours.connected, ours.book.known) == (0, 1)
    assert [dial.peer for dial in dials(ours, 5 + DIAL_WAIT_MS)] == [peer(2)]


def test_good_behaviour_is_forgotten_like_bad() -> None:
    score = PeerScore()
    for _ in range(100):
        score.reward(0)
    assert score.at(0) == SCORE_MAX
    assert score.at(HALF_LIFE_MS) == pytest.approx(SCORE_MAX / 2)
    score.penalize(PeerFault.GARBAGE, HALF_LIFE_MS)
    assert score.at(HALF_LIFE_MS) < 0
    assert score.at(20 * HALF_LIFE_MS) == pytest.approx(0, abs=0.001)


def test_a_second_ban_lasts_twice_as_long() -> None:
    score = PeerScore()
    while not score.penalize(PeerFault.GARBAGE, 0):
        pass
    assert not score.penalize(PeerFault.GARBAGE, 1), "it is banned already"
    assert score.is_banned(BAN_MS - 1)
    assert not score.is_banned(BAN_MS)
    while not score.penalize(PeerFault.GARBAGE, BAN_MS):
        pass
    assert score.is_banned(3 * BAN_MS - 1)
    assert not score.is_banned(3 * BAN_MS)


def test_an_address_that_cannot_be_told_is_none() -> None:
    assert parse_peer_address(f"/ip4/0.0.0.0/tcp/1/p2p/{OWN}") is None
    assert parse_peer_address(address(2)) == PeerAddress.parse(address(2))


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.3.4", "100.64.0.1"])
def test_a_stranger_cannot_send_us_into_a_private_network(host: str) -> None:
    ours = table(allow_private=False)
    assert not learn(ours, address(2, host))
    assert dials(ours, LATER_MS) == []
    assert learn(ours, address(2, host), address(2, "8.8.8.8")), "its public address is good"
    assert dials(ours, LATER_MS) == [DialPeer(peer(2), address(2, "8.8.8.8"))]
    ours.book.add_bootstrap([address(3, host)])
    assert DialPeer(peer(3), address(3, host)) in dials(ours, 2 * LATER_MS), "what the owner says is dialled"


def test_an_attacker_with_a_thousand_addresses_of_one_range_gets_one_place_of_the_dials() -> None:
    ours = table(known_max=400, target=8)
    for number in range(1_000, 1_100):
        learn(ours, address(number, f"11.1.1.{number - 999}"), record=b"cheap")
    for number in range(2, 9):
        assert learn(ours, address(number, f"{10 + 2 * number}.5.5.5"))
    dialled = {dial.peer for dial in dials(ours, LATER_MS)}
    assert {peer(number) for number in range(2, 9)} < dialled
    assert len(dialled) == 8


def test_one_range_and_one_source_may_name_a_share_of_the_known_peers() -> None:
    ours = table(known_max=80)
    place = [learn(ours, address(number, f"11.1.{number}.1")) for number in range(1, 80)]
    assert sum(place) == 80 // RANGE_SHARE
    parsed = [PeerAddress.parse(address(number, f"{number}.7.1.1")) for number in range(20, 99)]
    named = [ours.book.learn((each,), record=b"", until_ms=0, now_ms=0, source="16Uiu2HAmEve") for each in parsed]
    assert sum(named) == 80 // SOURCE_SHARE
    assert ours.book.learn((parsed[-1],), record=b"", until_ms=0, now_ms=0, source="16Uiu2HAmBob")


def test_a_source_that_named_useless_peers_may_name_others_when_they_are_forgotten() -> None:
    ours = table(known_max=8, target=10)
    one, two = (PeerAddress.parse(address(number, f"{number}.7.1.1")) for number in (20, 30))
    assert ours.book.learn((one,), record=b"", until_ms=0, now_ms=0, source="eve")
    assert not ours.book.learn((two,), record=b"", until_ms=0, now_ms=0, source="eve")
    for attempt in range(FORGET_FAILURES):
        (dial,) = dials(ours, (attempt + 1) * LATER_MS)
        ours.dialled(dial.peer, dial.address, is_open=False, now_ms=(attempt + 1) * LATER_MS)
    assert ours.book.learn((two,), record=b"", until_ms=0, now_ms=0, source="eve")


def test_peers_of_different_sources_are_dialled_first() -> None:
    ours = table(known_max=400, target=2)
    for number in range(20, 60):
        each = PeerAddress.parse(address(number, f"{number}.7.1.1"))
        assert ours.book.learn((each,), record=b"", until_ms=0, now_ms=0, source="eve")
    saved = PeerAddress.parse(address(70, "70.7.1.1"))
    assert ours.book.learn((saved,), record=b"", until_ms=0, now_ms=0, source="saved")
    assert peer(70) in {dial.peer for dial in dials(ours, LATER_MS)}


def test_a_coordinator_that_moved_is_dialled_at_its_new_address_only() -> None:
    ours = table()
    ours.book.add_bootstrap([address(2, "10.0.0.1"), address(2, "10.0.0.2")])
    ours.book.add_bootstrap([address(2, "10.0.0.3")])
    assert [dial.address for dial in dials(ours, LATER_MS)] == [address(2, "10.0.0.3")]


def test_the_addresses_worth_saving_are_those_that_were_reached() -> None:
    ours = table()
    learn(ours, address(2), address(2, "203.0.113.99"))
    (dial,) = dials(ours, 0)
    ours.dialled(dial.peer, dial.address, is_open=True, now_ms=1)
    connect(ours, 2, now_ms=1)
    connect(ours, 3, now_ms=1)
    assert ours.list_dialled() == (dial.address,)
