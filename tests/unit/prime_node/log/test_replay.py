"""A replay folds what is proven to be of the log, stops at a broken rule, and checks the times of live entries only."""

from dataclasses import replace

import pytest

from prime_node.log.replay import (
    Finding,
    HeadSighting,
    HeadSightings,
    LedgerReplay,
    TimeWindow,
    check_entries,
    compute_pause_ms,
    make_accusation,
)
from prime_protocol.constants import ACCUSED_LEAF_BYTES_MAX, LIVE_CLOCK_MS_MAX, PROTOCOL_VERSION, RULES_NOTICE_MS
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.accusation import BrokenRule
from prime_protocol.ledger import entries as e
from prime_protocol.log.merkle import Frontier, compute_leaf_hash
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload
from support.ledger_network import NETWORK, World
from support.served_log import ServedLog


def make_world(entries: int = 600) -> World:
    world = World.started()
    while len(world.leaves) < entries:
        world.deposit("ann", 1)
    return world


WORLD = make_world()
LOG = ServedLog(WORLD.leaves)


def make_replay() -> LedgerReplay:
    return LedgerReplay(NETWORK, WORLD.id("coordinator"))


def mint_twice(world: World) -> bytes:
    """A deposit whose transfer was used before: value out of nothing."""
    entry = next(read(leaf) for leaf in world.leaves if isinstance(read(leaf), e.Deposited))
    return world.seal("coordinator", entry)


def read(leaf: bytes) -> object:
    payload = decode(Payload, decode(e.LogRecord, leaf).frame[65:])
    return decode(getattr(e, payload.kind), payload.body)


# --- Bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "stop"), [(0, 256), (256, 512), (300, 512), (512, 600), (599, 600)])
def test_entries_of_the_log_are_proven_by_its_tiles(start: int, stop: int) -> None:
    before = Frontier().append_many(map(compute_leaf_hash, WORLD.leaves[:start]))
    grown = check_entries(before, WORLD.leaves[start:stop], LOG.seen(600).head, LOG.read_tile)
    assert grown.size == stop


def test_other_bytes_another_past_and_other_tiles_are_refused() -> None:
    head, leaves = LOG.seen(600).head, WORLD.leaves[:256]
    for wrong in ([*leaves[:255], b"invented"], leaves[::-1], [*leaves, leaves[0]]):
        with pytest.raises(RemoteError, match="do not hash to the signed head"):
            check_entries(Frontier(), wrong, head, LOG.read_tile)
    with pytest.raises(RemoteError, match="do not hash to the signed head"):
        check_entries(Frontier().append(bytes(32)), leaves[1:], head, LOG.read_tile)
    other = ServedLog([*WORLD.leaves[:599], b"another end"])
    with pytest.raises(RemoteError, match="leads to root"):
        check_entries(Frontier(), leaves, head, other.read_tile)


# --- Rules ------------------------------------------------------------------------------------------------------------


def test_a_log_that_keeps_the_rules_is_folded_to_the_same_state_in_any_parts() -> None:
    whole, parts = make_replay(), make_replay()
    assert whole.apply(WORLD.leaves).finding is None
    for start in range(0, 600, 100):
        report = parts.apply(WORLD.leaves[start : start + 100])
    assert (report.size, report.finding, report.at_ms) == (600, None, WORLD.state.at_ms)
    assert whole.state == parts.state == WORLD.state


def test_a_replay_continues_from_a_state_that_it_had() -> None:
    first = make_replay()
    first.apply(WORLD.leaves[:300])
    again = LedgerReplay(NETWORK, WORLD.id("coordinator"), first.state)
    assert again.apply(WORLD.leaves[300:]).size == 600


def test_the_first_entry_that_breaks_a_rule_ends_the_replay() -> None:
    world = WORLD.fork()
    forged = mint_twice(world)
    replay = make_replay()
    report = replay.apply([*world.leaves, forged, b"whatever comes after"])
    assert report.finding is not None
    assert (report.finding.rule, report.finding.index, report.finding.leaf) == (BrokenRule.LEDGER, 600, forged)
    assert "reference" in report.finding.problem
    assert (report.size, replay.state) == (600, WORLD.state), "nothing of it was folded"


def test_bytes_that_are_no_entry_and_a_log_of_another_coordinator_break_a_rule() -> None:
    report = make_replay().apply([*WORLD.leaves, b"no entry"])
    assert report.finding is not None
    assert report.finding.index == 600
    stranger = LedgerReplay(NETWORK, WORLD.id("somebody else"))
    report = stranger.apply(WORLD.leaves)
    assert report.finding is not None
    assert (report.finding.index, report.size) == (0, 0)
    assert "of the first entry" in report.finding.problem


def announce(world: World) -> None:
    """Rules that no program knows, from the next moment that the network allows."""
    world.announce_rules(PROTOCOL_VERSION + 1)
    world.wait(RULES_NOTICE_MS - 1)


def test_unknown_rules_are_told_when_they_start_and_accuse_nobody() -> None:
    world = WORLD.fork()
    announce(world)
    world.deposit("ann", 1)
    world.wait(1)
    leaf = world.seal("coordinator", e.HeadNoted(root=world.state.frontier.root()), None, kind="NotInventedYet")
    report = make_replay().apply([*world.leaves, leaf])
    assert (report.finding, report.size) == (None, 602)
    assert report.unknown_rules == (
        f"this log follows rules {PROTOCOL_VERSION + 1} from entry 602 on, and this program knows rules up to"
        f" {PROTOCOL_VERSION}: upgrade prime-swarm to version 0.{PROTOCOL_VERSION + 1}.0 or later"
    )


def test_before_the_rules_change_a_high_version_excuses_nothing() -> None:
    world = WORLD.fork()
    announce(world)
    noted = e.HeadNoted(root=world.state.frontier.root())
    leaf = world.seal("coordinator", noted, None, kind="NotInventedYet", version=PROTOCOL_VERSION + 1)
    report = make_replay().apply([*world.leaves, leaf])
    assert report.finding is not None
    assert (report.finding.rule, report.finding.index, report.unknown_rules) == (BrokenRule.LEDGER, 601, "")


def test_a_coordinator_that_sets_its_clock_ahead_to_start_unknown_rules_is_accused() -> None:
    world = WORLD.fork()
    announce(world)
    world.wait(1)
    leaf = world.seal("coordinator", e.HeadNoted(root=world.state.frontier.root()))
    before_ms = world.now_ms - LIVE_CLOCK_MS_MAX - 1
    replay = make_replay()
    replay.apply(world.leaves)
    report = replay.apply([leaf], TimeWindow(before_ms - 1000, before_ms))
    assert report.finding is not None
    assert (report.finding.rule, bool(report.unknown_rules)) == (BrokenRule.CLOCK, True)


# --- Times ------------------------------------------------------------------------------------------------------------

T, TOLERANCE = 1_000_000_000, LIVE_CLOCK_MS_MAX


def test_a_time_may_lie_outside_its_window_by_the_tolerance_and_no_more() -> None:
    window = TimeWindow(after_ms=T, before_ms=T + 1000)
    for good in (T - TOLERANCE, T, T + 1000 + TOLERANCE):
        assert window.find_problem(good) == ""
    assert "does not contain it" in window.find_problem(T - TOLERANCE - 1)
    assert "this node had it at" in window.find_problem(T + 1001 + TOLERANCE)


def test_only_entries_between_two_sightings_have_a_window() -> None:
    seen = HeadSightings()
    assert list(seen.split(0, 10)) == [(10, None)]
    seen.add(HeadSighting(100, T, is_newest=True))
    assert list(seen.split(0, 150)) == [(100, None), (150, None)], "history, and what no head is known of yet"
    seen.add(HeadSighting(200, T + 5, is_newest=True))
    seen.add(HeadSighting(150, T + 9, is_newest=True))
    assert list(seen.split(50, 200)) == [(100, None), (200, TimeWindow(T, T + 5))]


def test_a_head_to_cosign_may_be_old_so_it_bounds_from_above_only() -> None:
    seen = HeadSightings()
    seen.add(HeadSighting(100, T, is_newest=True))
    seen.add(HeadSighting(200, T + 5, is_newest=False))
    seen.add(HeadSighting(300, T + 9, is_newest=True))
    windows = [TimeWindow(T, T + 5), TimeWindow(T, T + 9)]
    assert list(seen.split(100, 300)) == [(200, windows[0]), (300, windows[1])]


@pytest.mark.parametrize("error_ms", [-TOLERANCE - 1000, TOLERANCE + 1000])
def test_a_live_entry_with_a_wrong_time_is_found_and_still_folded(error_ms: int) -> None:
    replay, at_ms = make_replay(), WORLD.state.at_ms
    replay.apply(WORLD.leaves[:599])
    report = replay.apply(WORLD.leaves[599:], TimeWindow(at_ms - error_ms, at_ms - error_ms))
    assert report.finding is not None
    assert (report.finding.rule, report.finding.index, report.size) == (BrokenRule.CLOCK, 599, 600)
    assert make_replay().apply(WORLD.leaves, TimeWindow(0, at_ms)).finding is None


# --- Accusations and pace ---------------------------------------------------------------------------------------------


def test_an_accusation_proves_that_the_entry_is_in_the_log() -> None:
    world = WORLD.fork()
    forged = mint_twice(world)
    log = ServedLog([*world.leaves, forged, *world.leaves[:50]])
    finding = Finding(BrokenRule.LEDGER, 600, forged, "x" * 10_000)
    made = make_accusation(finding, log.seen().head, log.seen().note, log.read_tile)
    assert (made.index, made.leaf, made.leaf_hash) == (600, forged, compute_leaf_hash(forged))
    assert len(made.problem) == 400
    with pytest.raises(RemoteError, match="does not show that the entry is in the log"):
        make_accusation(replace(finding, index=599), log.seen().head, log.seen().note, log.read_tile)


def test_of_a_long_leaf_the_accusation_carries_the_hash() -> None:
    long = encode(e.LogRecord(0, bytes(ACCUSED_LEAF_BYTES_MAX)))
    log = ServedLog([*WORLD.leaves, long])
    made = make_accusation(Finding(BrokenRule.LEDGER, 600, long, "x"), log.seen().head, log.seen().note, log.read_tile)
    assert (made.leaf, made.leaf_hash) == (b"", compute_leaf_hash(long))


def test_the_pause_keeps_both_the_share_of_the_processor_and_the_rate() -> None:
    assert compute_pause_ms(cpu_ms=50, read_bytes=0, cpu_percent=25, bytes_per_s=10**6) == 150
    assert compute_pause_ms(cpu_ms=50, read_bytes=10**6, cpu_percent=25, bytes_per_s=10**6) == 1000
    assert compute_pause_ms(cpu_ms=50, read_bytes=10**5, cpu_percent=100, bytes_per_s=10**6) == 100
