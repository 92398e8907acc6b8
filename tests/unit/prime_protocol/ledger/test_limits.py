"""How many entries a key may write that nobody asked it for."""

import pytest

from prime_protocol.constants import (
    DELEGATION_LIFE_MS_MAX,
    ENTRY_VALUE_NANO,
    FREE_BURST_MS,
    FREE_BYTE_MS,
    OWNER_ENTRIES_BURST,
    OWNER_ENTRY_MS,
    REGISTRATION_MS,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import FindingFiled, Role
from prime_protocol.ledger.limits import drop_expired
from prime_protocol.ledger.replay import ENTRY_RULES, EntryAuthor, replay
from support.ledger_network import BOND, NETWORK, STAKE, World

LARGE = e.NodeRegistered(roles=(Role.WORKER,), hardware="x" * 256, addresses=("/" + "x" * 199,) * 8)


@pytest.fixture
def world() -> World:
    made = World()
    made.create_network()
    return made


def exhaust_free_budget(world: World) -> None:
    """As a flood of free keys would, without writing one."""
    world.state.free_until_ms = world.now_ms + FREE_BURST_MS


def exhaust_allowance(world: World, owner: str) -> None:
    world.state.owner_until_ms[world.id(owner)] = world.now_ms + OWNER_ENTRIES_BURST * OWNER_ENTRY_MS


def wait_of(world: World, author: str, entry: object) -> int:
    """When a limit would let the entry pass; it is refused now."""
    with pytest.raises(RemoteError) as caught:
        world.write(author, entry)
    assert caught.value.field == "Payload.sender"
    assert f"try again in {-(-caught.value.retry_after_ms // 1000)} s" in caught.value.problem
    return caught.value.retry_after_ms


@pytest.mark.parametrize("stake_nano", [STAKE, 1])
def test_a_key_registers_at_most_every_ten_minutes_whatever_its_stake(world: World, stake_nano: int) -> None:
    world.join("ann", Role.WORKER, stake_nano=stake_nano)
    world.wait(1)
    assert wait_of(world, "ann", LARGE) == REGISTRATION_MS - 1
    world.wait(REGISTRATION_MS - 2)
    with world.refuses("Payload.sender"):
        world.write("ann", LARGE)
    world.wait(1)
    world.write("ann", LARGE)


def test_a_key_brings_a_delegation_at_most_every_ten_minutes_also_after_it_was_revoked(world: World) -> None:
    world.register("key", Role.WORKER)
    world.delegate("owner", "key")  # registration and delegation come together, so they are counted apart
    world.write("owner", e.DelegationRevoked(node=world.id("key")))
    world.wait(1)
    assert wait_of(world, "key", world.delegation("heir", "key")) == REGISTRATION_MS - 1
    world.wait(REGISTRATION_MS - 1)
    world.delegate("owner", "key")


def test_an_owner_and_its_nodes_share_one_allowance(world: World) -> None:
    world.join("key", Role.WORKER, owner="owner")
    world.wait(REGISTRATION_MS)
    exhaust_allowance(world, "owner")
    for author, entry in (
        ("key", LARGE),
        ("key", world.delegation("owner", "key")),
        ("other", world.delegation("owner", "other")),
        ("owner", e.Staked(node=world.id("key"), amount_nano=1)),
        ("owner", e.Unbonded(node=world.id("key"), amount_nano=1)),
        ("owner", e.Withdrawn(amount_nano=1)),
        ("owner", e.DelegationRevoked(node=world.id("stolen"))),
    ):
        assert wait_of(world, author, entry) == OWNER_ENTRY_MS
    world.wait(OWNER_ENTRY_MS)
    world.write("owner", e.Withdrawn(amount_nano=1))
    with world.refuses("Payload.sender"):
        world.write("owner", e.Withdrawn(amount_nano=1))


def test_an_owner_may_always_leave_a_node_whatever_was_used_up(world: World) -> None:
    for name in ("one", "two"):
        world.delegate("owner", name)
    exhaust_allowance(world, "owner")
    exhaust_free_budget(world)
    before_ms = world.state.free_until_ms
    world.write("owner", e.DelegationRevoked(node=world.id("one")))
    world.write("owner", e.DelegationRevoked(node=world.id("two")))
    assert world.state.owners[world.id("one")] == world.id("one")
    assert world.state.free_until_ms > before_ms, "it is charged all the same"
    with world.refuses("Payload.sender"):
        world.write("owner", e.DelegationRevoked(node=world.id("one")))


def test_what_was_not_brought_is_revoked_by_an_owner_with_value(world: World) -> None:
    leaked = world.delegation("owner", "stolen")
    with world.refuses("node"):
        world.write("owner", e.DelegationRevoked(node=world.id("stolen")))
    world.deposit("owner", ENTRY_VALUE_NANO - 1)
    with world.refuses("node"):
        world.write("owner", e.DelegationRevoked(node=world.id("stolen")))
    world.deposit("owner", 1)
    world.write("owner", e.DelegationRevoked(node=world.id("stolen")))
    with world.refuses("delegation.issued_at_ms"):
        world.write("stolen", leaked)


def test_a_revocation_is_remembered_for_as_long_as_a_delegation_lives(world: World) -> None:
    world.deposit("owner", ENTRY_VALUE_NANO)
    for name in ("one", "two", "one"):
        world.write("owner", e.DelegationRevoked(node=world.id(name)))
        world.wait(1)
    assert {node for _, node in world.state.revoked_ms} == {world.id("two"), world.id("one")}
    world.wait(DELEGATION_LIFE_MS_MAX - 2)
    world.write("owner", e.DelegationRevoked(node=world.id("three")))
    assert {node for _, node in world.state.revoked_ms} == {world.id("one"), world.id("three")}


def test_keys_without_value_share_one_budget_of_bytes(world: World) -> None:
    world.write("ann", LARGE)
    used_ms = world.state.free_until_ms - world.now_ms
    assert used_ms == len(world.leaves[-1]) * FREE_BYTE_MS
    exhaust_free_budget(world)
    assert wait_of(world, "bob", LARGE) == used_ms
    assert wait_of(world, "key", world.delegation("owner", "key")) > 0
    world.wait(used_ms)
    world.write("bob", LARGE)


def test_stake_or_a_balance_needs_no_free_budget(world: World) -> None:
    world.join("ann", Role.WORKER, stake_nano=ENTRY_VALUE_NANO)
    world.write("ann", e.Withdrawn(amount_nano=BOND))
    world.deposit("newcomer", ENTRY_VALUE_NANO)
    world.deposit("poor", ENTRY_VALUE_NANO - 1)
    world.wait(REGISTRATION_MS)
    exhaust_free_budget(world)
    world.write("ann", LARGE)
    world.write("ann", e.Unbonded(node=world.id("ann"), amount_nano=ENTRY_VALUE_NANO))
    world.write("newcomer", LARGE)
    world.delegate("newcomer", "second")
    for name in ("poor", "nobody"):
        with world.refuses("Payload.sender"):
            world.write(name, LARGE)


def test_dust_cannot_be_moved_without_end(world: World) -> None:
    world.deposit("ann", ENTRY_VALUE_NANO - 1)
    exhaust_free_budget(world)
    with world.refuses("Payload.sender"):
        world.write("ann", e.Withdrawn(amount_nano=1))


def test_a_whole_allowance_is_not_kept(world: World) -> None:
    for number in range(5):
        world.register(f"n{number}", Role.WORKER)
    assert len(world.state.owner_until_ms) == 5
    world.wait(OWNER_ENTRY_MS)
    for number in range(5, 8):
        world.register(f"n{number}", Role.WORKER)
    assert world.state.owner_until_ms.keys() == {world.id(f"n{number}") for number in (5, 6, 7)}


def test_a_table_loses_what_is_over_a_few_at_a_time() -> None:
    table = {"a": 5, "b": 6, "c": 1, "d": 2}
    drop_expired(table, 1)
    assert list(table) == ["c", "d", "a", "b"], "what lives on does not hide what is over"
    drop_expired(table, 1)
    assert table == {"a": 5, "b": 6, "d": 2}
    drop_expired({}, 1)


def test_every_entry_that_anyone_writes_is_limited_here_or_answers_another() -> None:
    limited = {e.NodeRegistered, e.Delegated, e.DelegationRevoked, e.Staked, e.Unbonded, e.Released, e.Withdrawn}
    answers = {
        e.NetworkCreated: "the first entry only",
        e.PoolReturned: "once for each account that funded a closed run",
        e.CheckpointPublished: "the trainer's, one step after the other",
        e.StepMeasured: "the trainer's, once for each checkpoint",
        e.SubmissionsListed: "the trainer's, each accepted submission once, and again after LINEAGE_PAUSE_MS",
        e.LeaseEnded: "a lease that the coordinator granted",
        e.Submitted: "a lease that the coordinator granted",
        e.VerdictCommitted: "a draw",
        e.VerdictGiven: "a draw",
        e.Inspected: "an inspector's, once for each settled submission",
        e.RulingGiven: "an inspector's, on what validators could not decide",
        e.Appealed: "a slash",
    }
    anyone = {kind for kind, rule in ENTRY_RULES.items() if rule.author is EntryAuthor.ANYONE}
    assert anyone == limited | {e.RunFunded, FindingFiled} | answers.keys()


def test_a_coordinator_cannot_let_a_friend_pass(world: World) -> None:
    """The limit is a rule of the log: a replay refuses one that breaks it."""
    world.write("friend", LARGE)
    leaves = [*world.leaves, world.seal("friend", e.NodeRegistered(roles=(Role.RELAY,), hardware=""))]
    with pytest.raises(RemoteError, match=r"entry 2: Payload\.sender"):
        replay(NETWORK, leaves)
