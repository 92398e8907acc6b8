"""Rules change ahead of time, one version at a time, and at the same entry for everyone."""

import pytest

from prime_protocol.constants import PROTOCOL_VERSION, RULES_NOTICE_MS, RULES_NOTICE_MS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.replay import Ledger, replay
from prime_protocol.ledger.versions.plan import FIRST_RULES, UnknownRules
from support.ledger_network import NETWORK, RANDOMNESS, World


def test_rules_change_with_the_first_entry_of_the_announced_time() -> None:
    world = World.started(rules=1)
    world.announce_rules(2)
    world.wait(RULES_NOTICE_MS - 1)
    world.deposit("ann", 1)
    assert world.state.rules.get_version(world.now_ms) == 1
    world.wait(1)
    world.deposit("ann", 1)
    assert world.state.rules.get_version(world.now_ms) == 2
    assert replay(NETWORK, world.leaves).state == world.state


@pytest.mark.parametrize(("wait_ms", "field"), [(RULES_NOTICE_MS - 1, "from_ms"), (-1, "from_ms"), (0, "from_ms")])
def test_a_change_without_notice_or_in_the_past_is_refused(wait_ms: int, field: str) -> None:
    world = World.started(rules=1)
    with world.refuses(field):
        world.announce_rules(2, wait_ms)


def test_a_change_in_the_far_future_would_keep_others_waiting() -> None:
    world = World.started(rules=1)
    with world.refuses("from_ms"):
        world.announce_rules(2, RULES_NOTICE_MS_MAX + 1)
    world.announce_rules(2, RULES_NOTICE_MS_MAX)


@pytest.mark.parametrize("rules", [1, 3])
def test_the_next_version_follows_and_no_other(rules: int) -> None:
    world = World.started(rules=1)
    with world.refuses("rules"):
        world.announce_rules(rules)


def test_one_change_is_pending_at_a_time() -> None:
    world = World.started(rules=1)
    world.announce_rules(2)
    with world.refuses("rules"):
        world.announce_rules(3)
    world.wait(RULES_NOTICE_MS)
    world.announce_rules(3)


def test_a_network_fixes_its_own_notice() -> None:
    world = World()
    facts = {"log_key": "key", "chain_id": 0, "contract": world.id("ann"), "unbonding_ms": 0}
    world.coordinate(e.NetworkCreated(**facts, **RANDOMNESS, rules=1, rules_notice_ms=0))
    world.announce_rules(2, 0)
    world.deposit("ann", 1)
    assert world.state.rules.get_version(world.now_ms) == 2


def test_a_program_stops_where_rules_begin_that_it_does_not_know() -> None:
    world, newer = World.started(), PROTOCOL_VERSION + 1
    world.announce_rules(newer)
    world.wait(RULES_NOTICE_MS - 1)
    world.deposit("ann", 1)
    world.wait(1)
    before, leaf = world.snapshot(), world.seal("ann", world.registration("ann"), kind="Invented")
    with pytest.raises(UnknownRules, match=rf"rules {newer} from entry \d+ on, .* to version 0\.{newer}\.0"):
        world.apply(leaf)
    assert world.snapshot() == before
    assert issubclass(UnknownRules, LocalError), "it is the reader who has to do something"


def test_a_log_that_begins_with_unknown_rules_is_told_from_a_wrong_one() -> None:
    world = World()
    facts = {"log_key": "key", "chain_id": 0, "contract": world.id("ann"), "unbonding_ms": 0}
    entry = e.NetworkCreated(**facts, **RANDOMNESS, rules=PROTOCOL_VERSION + 1)
    with pytest.raises(UnknownRules, match="to the newest version"):
        Ledger(NETWORK).apply(world.seal("coordinator", entry, version=PROTOCOL_VERSION + 1))
    assert Ledger(NETWORK).state.rules == FIRST_RULES


@pytest.mark.parametrize("release", ["", "two", "1.0'; rm -rf ~", "1..0", "9" * 33])
def test_a_release_is_a_number_that_a_command_may_contain(release: str) -> None:
    world = World.started(rules=1)
    with pytest.raises(RemoteError, match="release"):
        world.apply(
            world.seal("coordinator", e.RulesChanged(rules=2, from_ms=world.now_ms + RULES_NOTICE_MS, release=release))
        )


def test_work_needs_the_version_of_the_rules() -> None:
    world = World.started(rules=1)
    world.state.nodes[world.id("ann")].version = 1
    world.announce_rules(2)
    world.lease("ann", 0)
    world.wait(RULES_NOTICE_MS)
    with world.refuses("node"):
        world.lease("ann", 1)
    world.lease("bob", 1)
