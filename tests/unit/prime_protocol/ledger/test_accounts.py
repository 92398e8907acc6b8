"""Rules about the network, its value and its nodes: what each entry changes, and when it is refused."""

from dataclasses import replace
from typing import Any

import pytest

from prime_protocol.constants import (
    AMOUNT_NANO_MAX,
    ENTRY_VALUE_NANO,
    PROTOCOL_VERSION,
    REGISTRATION_MS,
    UNBONDINGS_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus, Role, RunStatus
from prime_protocol.wire.ids import NetworkId, NodeId, RunId, Ticker
from prime_protocol.wire.typed_data import Domain
from support.ledger_network import BOND, DAY_MS, HOUR_MS, ON_CHAIN, RANDOMNESS, RUN, STAKE, World, digest


@pytest.fixture
def world() -> World:
    made = World()
    made.create_network()
    return made


def test_the_first_entry_says_what_the_log_is() -> None:
    world = World()
    contract = NodeId(b"c" * 20)
    at: dict[str, Any] = {"chain_id": 7, "contract": contract, **RANDOMNESS}
    entry = e.NetworkCreated(log_key="k", unbonding_ms=DAY_MS, ticker=Ticker("COIN"), **at)
    world.write("founder", entry)
    state = world.state
    assert (state.coordinator, state.domain) == (world.id("founder"), Domain(7, contract))
    assert (state.log_key, state.unbonding_ms, state.ticker) == ("k", DAY_MS, "COIN")
    with world.refuses("NetworkCreated"):
        world.write("founder", entry)


def test_a_deposit_counts_once(world: World) -> None:
    entry = e.Deposited(account=world.id("ann"), amount_nano=5, reference=digest("tx 1"))
    world.coordinate(entry)
    with world.refuses("reference"):
        world.coordinate(entry)
    with world.refuses("reference"):
        world.coordinate(replace(entry, account=world.id("bob"), amount_nano=6))
    assert (world.balance("ann"), world.state.funds.deposited_nano) == (5, 5)


def test_what_is_in_a_pool_on_the_chain_is_no_balance_and_counts_once() -> None:
    world = World.started(domain=ON_CHAIN)
    pool, entry = world.state.funds.pools[RUN], funding(world, "friend", 7)
    world.coordinate(entry)
    with world.refuses("reference"):
        world.coordinate(entry)
    with world.refuses("run"):
        world.coordinate(replace(entry, reference=digest("tx 2"), run=RunId("ghost")))
    assert world.state.funds.pools[RUN] == pool + 7
    assert world.run.funded == {world.id("sponsor"): pool, world.id("friend"): 7}
    assert (world.balance("friend"), world.run.forfeited_nano) == (0, 0)
    assert world.state.funds.is_conserved()


def test_where_there_is_no_chain_nothing_comes_into_a_pool_from_outside() -> None:
    world = World.started()
    with world.refuses("run"):
        world.coordinate(funding(world, "friend", 7))


def test_what_came_into_the_pool_of_a_closed_run_stays_its_funders() -> None:
    world = World.started(domain=ON_CHAIN)
    world.set_run(RunStatus.CLOSED)
    world.write("sponsor", e.PoolReturned(amount_nano=world.state.funds.pools[RUN]))
    world.coordinate(funding(world, "friend", 7))
    world.forfeit(5)
    world.write("friend", e.PoolReturned(amount_nano=7))
    assert (world.balance("friend"), world.state.funds.pools[RUN]) == (7, 5)


def funding(world: World, name: str, amount_nano: int) -> e.Deposited:
    return e.Deposited(account=world.id(name), amount_nano=amount_nano, reference=digest("tx 1"), run=RUN)


def test_the_books_hold_no_more_than_their_limit(world: World) -> None:
    world.deposit("ann", AMOUNT_NANO_MAX - 1)
    for amount_nano in (0, 2):
        with world.refuses("amount_nano"):
            world.deposit("bob", amount_nano)
    world.deposit("bob", 1)


def test_an_account_takes_out_what_it_has(world: World) -> None:
    world.deposit("ann", 10)
    for amount_nano in (0, 11):
        with world.refuses("amount_nano"):
            world.write("ann", e.Withdrawn(amount_nano=amount_nano))
    world.write("ann", e.Withdrawn(amount_nano=10))
    assert (world.balance("ann"), world.state.funds.withdrawn_nano) == (0, 10)


def test_registering_again_replaces_the_offer_and_keeps_the_rest(world: World) -> None:
    world.join("ann", Role.WORKER)
    world.coordinate(e.NodeStatusSet(node=world.id("ann"), status=NodeStatus.BANNED, reason="rude"))
    world.wait(REGISTRATION_MS)
    world.write("ann", e.NodeRegistered(roles=(Role.RELAY, Role.WORKER), hardware="two cards"))
    node = world.state.nodes[world.id("ann")]
    assert (node.roles, node.hardware, node.version) == ((Role.RELAY, Role.WORKER), "two cards", PROTOCOL_VERSION)
    assert node.status is NodeStatus.BANNED, "a banned node does not let itself in again"
    assert world.stake_of("ann") == STAKE


def test_the_status_of_an_unknown_node_is_refused(world: World) -> None:
    with world.refuses("node"):
        world.coordinate(e.NodeStatusSet(node=world.id("ghost"), status=NodeStatus.DRAINED, reason=""))


def test_a_delegation_makes_the_node_its_owners(world: World) -> None:
    world.delegate("owner", "key")
    assert world.state.owners[world.id("key")] == world.id("owner")
    assert world.state.nodes[world.id("key")].roles == (), "it has offered nothing yet"
    world.wait(REGISTRATION_MS)
    world.delegate("heir", "key")
    assert world.state.owners[world.id("key")] == world.id("heir")


def test_a_delegation_is_refused_where_it_is_not_the_nodes_or_not_the_owners_word(world: World) -> None:
    good = world.delegation("owner", "key")
    with world.refuses("delegation.node"):
        world.write("thief", good)
    with world.refuses("Delegation.signature"):
        world.write("key", replace(good, signature=world.sign("key", good.delegation)))
    other = replace(good.delegation, network=NetworkId("other"))
    with world.refuses("delegation.network"):
        world.write("key", replace(good, delegation=other, signature=world.sign("owner", other)))


def test_a_delegation_is_refused_before_and_after_its_time(world: World) -> None:
    good = world.delegation("owner", "key", life_ms=HOUR_MS)
    early = replace(good.delegation, issued_at_ms=world.now_ms + 1)
    with world.refuses("Delegation.expires_at_ms"):
        world.write("key", replace(good, delegation=early, signature=world.sign("owner", early)))
    world.wait(HOUR_MS)
    with world.refuses("Delegation.expires_at_ms"):
        world.write("key", good)


def test_revoking_makes_the_node_its_own_and_leaves_the_stake_where_it_is(world: World) -> None:
    world.join("key", Role.WORKER, owner="owner")
    world.deposit("stranger", ENTRY_VALUE_NANO)
    world.write("stranger", e.DelegationRevoked(node=world.id("key")))
    assert world.state.owners[world.id("key")] == world.id("owner"), "a stranger takes back only its own word"
    world.write("owner", e.DelegationRevoked(node=world.id("key")))
    assert world.state.owners[world.id("key")] == world.id("key")
    assert world.state.nodes[world.id("key")].delegated_until_ms is None
    assert world.stake_of("owner", "key") == STAKE
    world.write("owner", e.Unbonded(node=world.id("key"), amount_nano=STAKE))
    world.wait(7 * DAY_MS)
    world.write("owner", e.Released(node=world.id("key")))
    assert world.balance("owner") == BOND + STAKE


def test_stake_is_put_behind_ones_own_nodes_from_ones_balance(world: World) -> None:
    world.register("key", Role.WORKER)
    world.deposit("owner", 10)
    with world.refuses("node"):
        world.stake("owner", "key", 10)
    with world.refuses("node"):
        world.stake("owner", "ghost", 10)
    world.delegate("owner", "key")
    for amount_nano in (0, 11):
        with world.refuses("amount_nano"):
            world.stake("owner", "key", amount_nano)
    world.stake("owner", "key", 10)
    assert (world.balance("owner"), world.stake_of("owner", "key")) == (0, 10)


def test_unbonding_takes_its_time(world: World) -> None:
    world.join("ann", Role.WORKER)
    ann = world.id("ann")
    for amount_nano in (0, STAKE + 1):
        with world.refuses("amount_nano"):
            world.write("ann", e.Unbonded(node=ann, amount_nano=amount_nano))
    with world.refuses("amount_nano"):
        world.write("bob", e.Unbonded(node=ann, amount_nano=1))
    with world.refuses("node"):
        world.write("ann", e.Unbonded(node=world.id("ghost"), amount_nano=1))
    world.write("ann", e.Unbonded(node=ann, amount_nano=30))
    world.wait(DAY_MS)
    world.write("ann", e.Unbonded(node=ann, amount_nano=5))
    world.wait(6 * DAY_MS - 1)
    with world.refuses("node"):
        world.write("ann", e.Released(node=ann))
    world.wait(1)
    world.write("ann", e.Released(node=ann))
    assert (world.balance("ann"), world.stake_of("ann")) == (BOND + 30, STAKE - 35)
    with world.refuses("node"):
        world.write("ann", e.Released(node=ann))
    with world.refuses("node"):
        world.write("ann", e.Released(node=world.id("ghost")))


def test_few_unbondings_are_open_at_once(world: World) -> None:
    world.join("ann", Role.WORKER)
    for _ in range(UNBONDINGS_MAX):
        world.write("ann", e.Unbonded(node=world.id("ann"), amount_nano=1))
    with world.refuses("node"):
        world.write("ann", e.Unbonded(node=world.id("ann"), amount_nano=1))


def test_a_noted_head_is_the_root_of_what_stands_before_it(world: World) -> None:
    with world.refuses("root"):
        world.coordinate(e.HeadNoted(root=digest("another history")))
    world.note_head()


@pytest.mark.parametrize("left_by", ["roles", "status", "stake", "owner", "version"])
def test_a_validator_is_listed_while_it_offers_may_and_has_stake(left_by: str) -> None:
    world = World.started(validators=3)
    node = world.id("val-1")
    assert set(world.run.validators) == {world.id(f"val-{number}") for number in range(3)}
    if left_by == "roles":
        world.wait(REGISTRATION_MS)
        world.register("val-1", Role.RELAY)
    elif left_by == "status":
        world.coordinate(e.NodeStatusSet(node=node, status=NodeStatus.DRAINED, reason=""))
    elif left_by == "stake":
        world.write("val-1", e.Unbonded(node=node, amount_nano=1))
    elif left_by == "owner":
        world.delegate("poor", "val-1")
    else:
        world.coordinate(e.RunUpdated(terms=world.terms(version_min=PROTOCOL_VERSION + 1)))
    assert node not in world.run.validators
    if left_by == "status":
        world.coordinate(e.NodeStatusSet(node=node, status=NodeStatus.ACTIVE, reason=""))
        assert node in world.run.validators


def test_a_node_is_suspended_in_one_run_or_in_all() -> None:
    world = World.started()
    node = world.id("val-0")

    def set_status(status: NodeStatus, run: RunId | None) -> None:
        world.coordinate(e.NodeStatusSet(node=node, status=status, reason="silent", run=run))

    set_status(NodeStatus.DRAINED, RUN)
    assert (world.run.suspended, node in world.run.validators) == ({node: "silent"}, False)
    assert world.state.nodes[node].status is NodeStatus.ACTIVE
    set_status(NodeStatus.ACTIVE, RUN)
    assert (world.run.suspended, node in world.run.validators) == ({}, True)
    with world.refuses("run"):
        set_status(NodeStatus.DRAINED, RunId("another"))
    with pytest.raises(RemoteError, match="a ban is for all runs"):
        e.NodeStatusSet(node=node, status=NodeStatus.BANNED, reason="", run=RUN)
