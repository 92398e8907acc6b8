"""The way into the ledger: signed, in order, and remembered until it is on disk."""

import pytest

from prime_coordinator.entry_writer import EntryWriter
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.replay import replay
from prime_protocol.wire.ids import Step
from support.ledger_network import NETWORK, RUN, World, digest


def make() -> tuple[World, EntryWriter]:
    world = World.started()
    return world, EntryWriter(world.key("coordinator"), world.ledger)


def gift(world: World, number: int) -> e.Deposited:
    return e.Deposited(account=world.id("ann"), amount_nano=1, reference=digest(f"gift {number}"))


def test_what_is_written_is_drained_once_and_a_stranger_can_replay_it() -> None:
    world, writer = make()
    writer.append_own(gift(world, 1), None, world.now_ms)
    writer.append_own(gift(world, 2), None, world.now_ms)
    fresh = writer.drain()
    assert len(fresh) == 2
    assert writer.drain() == []
    assert replay(NETWORK, [*world.leaves, *fresh]).state == world.state


def test_a_refused_entry_leaves_nothing_behind() -> None:
    world, writer = make()
    writer.append_requested(gift(world, 1), None, world.now_ms)
    size = world.state.size
    with pytest.raises(RemoteError):
        writer.append_requested(gift(world, 1), None, world.now_ms)
    assert world.state.size == size
    assert len(writer.drain()) == 1


def test_a_refusal_of_our_own_entry_is_our_bug() -> None:
    world, writer = make()
    with pytest.raises(AssertionError, match="PaidOut"):
        writer.append_own(e.PaidOut(step=Step(7)), RUN, world.now_ms)


def test_the_logs_time_does_not_run_backwards_when_the_clock_does() -> None:
    world, writer = make()
    at_ms = world.state.at_ms
    logged = writer.append_requested(gift(world, 1), None, at_ms - 10_000)
    assert logged.at_ms == at_ms


def test_another_key_of_ours_writes_under_its_own_name() -> None:
    world, writer = make()
    writer.append_own(e.RunFunded(amount_nano=1), RUN, world.now_ms, key=world.key("ann"))
    assert world.run.funded[world.id("ann")] == 1
