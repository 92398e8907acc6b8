"""What the chain has told: stakes as the vault has them, and blocks that are believed only when they lie deep."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger_world import STAKE, World

from prime_coordinator.settlement.chain_files import ChainFiles
from prime_coordinator.settlement.vault_events import (
    BLOCKS_AT_ONCE,
    SHOWN_MAX,
    UNBACKED,
    Followed,
    Stake,
    find_strays,
    find_unbacked,
    is_income,
    list_missing,
    read_income,
)
from prime_protocol.entries import NodeStatus, Role
from prime_protocol.ids import Digest, NodeId, RunId

NODE, OWNER = "0x" + "0a" * 20, "0x" + "0b" * 20
ZEROS = Digest(bytes(32))
COURT = NodeId(b"c" * 20)


@dataclass
class Told:
    contract: str
    name: str
    values: dict[str, Any] = field(default_factory=dict)
    block: int = 1
    transaction: str = "0x" + "11" * 32


def vault(name: str, amount: int = 0) -> Told:
    return Told("StakeVault", name, {"node": NODE.upper().replace("X", "x"), "owner": OWNER, "amount": amount})


def test_stakes_are_those_of_the_vault_after_every_event() -> None:
    followed = Followed(block=0)
    seen = []
    for event in (
        vault("Bound"),
        vault("Deposited", 100),
        vault("Unbonded", 70),
        vault("Seized", 60),
        vault("Restored", 60),
        vault("Withdrawn", 40),
        vault("Seized", 60),
        vault("Forfeited", 60),
    ):
        followed.take(event)
        held = followed.stakes[NODE]
        seen.append((held.stake, held.unbonding, held.escrow))
    assert seen == [(0, 0, 0), (100, 0, 0), (30, 70, 0), (0, 40, 60), (60, 40, 0), (60, 0, 0), (0, 0, 60), (0, 0, 0)]
    assert followed.stakes[NODE].owner == OWNER


def test_blocks_are_read_when_they_lie_deep_enough_and_not_too_many_at_once() -> None:
    followed = Followed(block=10)
    assert followed.next_span(head=13, confirmations=3) is None
    assert followed.next_span(head=15, confirmations=3) == range(11, 13)
    assert followed.next_span(head=10**6, confirmations=3) == range(11, 11 + BLOCKS_AT_ONCE)


def test_judges_of_open_slashes_are_remembered_and_anchors_within_bounds() -> None:
    followed, name = Followed(block=0), bytes([7]) * 32
    followed.take(Told("Court", "SlashProposed", {"submission": name, "judges": [OWNER.upper().replace("X", "x")]}))
    assert followed.judges == {"0x" + name.hex(): [OWNER]}
    followed.take(Told("Court", "SlashExecuted", {"submission": name}))
    assert followed.judges == {}
    followed.take(Told("Court", "Appealed", {"submission": name}))
    for size in range(SHOWN_MAX + 5):
        followed.take(Told("LogAnchor", "Anchored", {"run": bytes(32), "size": size, "root": bytes(32), "previous": 0}))
    assert [row["size"] for row in followed.anchors] == list(range(5, SHOWN_MAX + 5))


def pool(name: str, **values: Any) -> Told:
    return Told("RewardPool", name, {"run": bytes([7]) * 32, "amount": 5, **values})


def test_a_deposit_is_the_owners_once_and_dust_is_none() -> None:
    assert is_income(vault("Deposited")) and not is_income(vault("Unbonded"))
    found = read_income(vault("Deposited", 1_999), ZEROS, 1_000, COURT)
    (made,) = list_missing([found], {}, set())
    assert (made.account, made.amount_nano, made.run) == (NodeId.parse(OWNER), 1, None)
    assert list_missing([found], {}, {ZEROS}) == []
    assert list_missing([read_income(vault("Deposited", 999), ZEROS, 1_000, COURT)], {}, set()) == []


def test_what_is_in_a_pool_is_its_runs_and_waits_for_a_run_that_is_not_known() -> None:
    told = (pool("Funded", funder=OWNER), pool("ForfeitReceived"), vault("Deposited", 5))
    assert all(is_income(event) for event in told) and not is_income(pool("Promised"))
    found = [read_income(event, ZEROS, 1, COURT) for event in told]
    assert find_strays(found, {}) == found[:2]
    assert [made.run for made in list_missing(found, {}, set())] == [None]
    runs = {found[0].run: RunId("demo")}
    assert find_strays(found, runs) == []
    made = [(each.run, each.account) for each in list_missing(found, runs, set())]
    assert made == [("demo", NodeId.parse(OWNER)), ("demo", COURT), (None, NodeId.parse(OWNER))]


def test_what_waits_for_its_run_is_remembered(tmp_path: Path) -> None:
    followed = Followed(
        block=9, stakes={NODE: Stake(OWNER)}, strays=[read_income(pool("ForfeitReceived"), ZEROS, 1, COURT)]
    )
    ChainFiles(tmp_path).keep_followed(followed)
    assert ChainFiles(tmp_path).read_followed(0) == followed


def test_a_node_that_is_not_backed_is_drained_and_taken_back_when_it_is() -> None:
    world = World()
    world.create_network()
    world.join("ann", Role.WORKER)
    node, key = world.id("ann"), str(world.id("ann"))
    backed = {key: Stake(key, stake=STAKE - 10, escrow=10)}
    assert find_unbacked(world.state, backed, 1) == []
    assert [order.reason for order in find_unbacked(world.state, {key: Stake(OWNER, stake=STAKE)}, 1)] == [UNBACKED]
    (order,) = find_unbacked(world.state, {}, 1)
    world.coordinate(order)
    assert world.state.nodes[node].status is NodeStatus.DRAINED
    assert find_unbacked(world.state, {}, 1) == [], "once is enough"
    (order,) = find_unbacked(world.state, backed, 1)
    world.coordinate(order)
    assert world.state.nodes[node].status is NodeStatus.ACTIVE
