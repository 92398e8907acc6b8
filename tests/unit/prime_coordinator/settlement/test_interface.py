"""Every settlement, held to the same claims; and what only the embedded one does: its faucet."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from prime_coordinator.settlement.interface import EmbeddedSettlement, Settlement
from prime_protocol.constants import AMOUNT_NANO_MAX, REGISTRATION_MS
from prime_protocol.ledger.entries import Outcome, Role
from support.ledger_network import HOUR_MS, NETWORK, STAKE, World
from support.processes.anvil import needs_anvil

# --- The same claims for all ------------------------------------------------------------------------------------------


class Place(Protocol):
    """A network with one kind of settlement, and the outside that goes with it."""

    world: World

    @property
    def settlement(self) -> Settlement: ...

    def restart(self) -> object: ...

    async def settle(self) -> None:
        """Let the outside and the books catch up."""
        ...

    async def bring(self, *names: str, role: Role) -> None:
        """Register these, and bring a stake of theirs in from outside."""
        ...


class EmbeddedPlace:
    """The faucet is the outside."""

    def __init__(self) -> None:
        self.world = founded()
        self.restart()

    def restart(self) -> object:
        self.settlement = make(self.world, faucet_nano=STAKE, nodes_max=100)
        return self.settlement

    async def settle(self) -> None:
        for order in await self.settlement.collect(self.world.state):
            self.world.coordinate(order)

    async def bring(self, *names: str, role: Role) -> None:
        for name in names:
            self.world.register(name, role)
            for deposit in self.settlement.get_welcome_deposits(self.world.state, self.world.id(name)):
                self.world.coordinate(deposit)
            self.world.stake(name, name)


@asynccontextmanager
async def open_place(kind: str, folder: Path) -> AsyncIterator[Place]:
    if kind == "embedded":
        yield EmbeddedPlace()
        return
    from support.processes.evm_settlement import Rig, rig

    class ChainPlace(Rig):
        async def bring(self, *names: str, role: Role) -> None:
            await self.join(*names, role=role)

    async with rig(folder, kind=ChainPlace) as made:
        yield made


KINDS = ["embedded", pytest.param("evm", marks=needs_anvil)]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_came_in_counts_once_whatever_is_started_again(kind: str, tmp_path: Path) -> None:
    async with open_place(kind, tmp_path) as place:
        await place.bring("ann", role=Role.WORKER)
        for _ in range(2):
            await place.settle()
            place.restart()
        await place.settle()
        assert place.world.state.funds.deposited_nano == place.world.stake_of("ann") == STAKE


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_deposit_nothing_is_credited(kind: str, tmp_path: Path) -> None:
    async with open_place(kind, tmp_path) as place:
        await place.settle()
        assert await place.settlement.collect(place.world.state) == []
        assert place.world.state.funds.deposited_nano == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_the_ledger_of_one_scenario_is_the_same_and_conserved(kind: str, tmp_path: Path) -> None:
    """Stake, work, a slash that stands and one that is overturned: value is where the log's rules put it."""
    async with open_place(kind, tmp_path) as place:
        world = place.world
        await place.bring("ann", "bob", role=Role.WORKER)
        await place.bring(*(f"val-{number}" for number in range(6)), role=Role.VALIDATOR)
        world.create_run(appeal_bond_nano=0, quorum=2)
        world.publish()
        guilty, wronged = world.convicted("ann", 0), world.convicted("bob", 1)
        await place.settle()
        world.appeal("bob", wronged)
        world.agree(wronged, Outcome.ACCEPT)
        world.overturn(wronged)
        world.wait(2 * HOUR_MS)
        world.execute(guilty)
        await place.settle()
        books = world.state.funds
        assert (world.stake_of("ann"), world.stake_of("bob")) == (STAKE - world.run.terms.slash_nano, STAKE)
        assert (books.burned_nano, books.total_nano()) == (world.run.terms.slash_nano, 8 * STAKE - books.burned_nano)
        assert books.is_conserved()


@pytest.mark.parametrize("kind", KINDS)
async def test_it_says_what_it_is(kind: str, tmp_path: Path) -> None:
    async with open_place(kind, tmp_path) as place:
        assert place.settlement.describe()["kind"] == kind
        place.settlement.request_anchor()


# --- The faucet -------------------------------------------------------------------------------------------------------


def make(world: World, **settings: int) -> EmbeddedSettlement:
    return EmbeddedSettlement(NETWORK, world.state, **{"faucet_nano": 5, "nodes_max": 2, **settings})


def welcome(world: World, settlement: Settlement, name: str) -> int:
    """Register a node, write what it is given, tell how much."""
    world.register(name, Role.WORKER)
    given = settlement.get_welcome_deposits(world.state, world.id(name))
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
    world.wait(REGISTRATION_MS)
    assert welcome(world, make(world), "ann") == 0
    assert world.balance("ann") == 5


def test_the_faucet_runs_dry_after_so_many_nodes_also_after_a_restart() -> None:
    world = founded()
    settlement = make(world)
    assert [welcome(world, settlement, name) for name in ("ann", "bob", "cas")] == [5, 5, 0]
    assert welcome(world, make(world), "dan") == 0


def test_a_faucet_that_is_off_or_exceeds_the_ledger_gives_nothing() -> None:
    world = founded()
    assert welcome(world, make(world, faucet_nano=0), "ann") == 0
    world.deposit("sponsor", 1)
    assert welcome(world, make(world, faucet_nano=AMOUNT_NANO_MAX), "bob") == 0
