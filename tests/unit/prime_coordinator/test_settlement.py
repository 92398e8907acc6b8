"""Embedded settlement: the faucet gives once to each node, to so many nodes, and remembers across restarts."""

from ledger_world import NETWORK, World

from prime_coordinator.settlement import Settlement
from prime_coordinator.settlement.embedded import EmbeddedSettlement
from prime_protocol.constants import AMOUNT_NANO_MAX
from prime_protocol.entries import Role


def make(world: World, **settings: int) -> EmbeddedSettlement:
    return EmbeddedSettlement(NETWORK, world.state, **{"faucet_nano": 5, "nodes_max": 2, **settings})


def welcome(world: World, settlement: Settlement, name: str) -> int:
    """Register a node, write what it is given, tell how much."""
    world.register(name, Role.WORKER)
    given = settlement.welcome(world.state, world.id(name))
    for deposit in given:
        world.coordinate(deposit)
    return sum(deposit.amount_nano for deposit in given)


def founded() -> World:
    world = World()
    world.create_network()
    return world


def test_a_node_is_given_once_also_after_a_restart() -> None:
    world = founded()
    assert welcome(world, make(world), "ann") == 5
    assert welcome(world, make(world), "ann") == 0
    assert world.balance("ann") == 5


def test_the_faucet_runs_dry_after_so_many_nodes_also_after_a_restart() -> None:
    world = founded()
    settlement = make(world)
    assert [welcome(world, settlement, name) for name in ("ann", "bob", "cas")] == [5, 5, 0]
    assert welcome(world, make(world), "dan") == 0


def test_a_faucet_that_is_off_or_larger_than_the_books_gives_nothing() -> None:
    world = founded()
    assert welcome(world, make(world, faucet_nano=0), "ann") == 0
    world.deposit("sponsor", 1)
    assert welcome(world, make(world, faucet_nano=AMOUNT_NANO_MAX), "bob") == 0


async def test_nothing_comes_from_outside() -> None:
    world = founded()
    assert await make(world).collect(world.state) == []
