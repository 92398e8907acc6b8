"""What the chain has told: stakes as the vault has them, and blocks that are believed only when they lie deep."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_coordinator.settlement.chain_events import (
    BLOCKS_AT_ONCE,
    HISTORY_MAX,
    REASON_UNBACKED,
    FollowedChain,
    VaultStake,
    explain_challenge,
    find_unassigned,
    is_deposit,
    list_backing_changes,
    list_missing_deposits,
    read_deposit,
)
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.ledger.entries import NodeStatus, Role
from prime_protocol.wire.ids import Digest, NodeId, RunId
from support.ledger_network import STAKE, World

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
    followed = FollowedChain(block=0)
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
        followed.apply(event)
        held = followed.stakes[NODE]
        seen.append((held.stake, held.unbonding, held.escrow))
    assert seen == [(0, 0, 0), (100, 0, 0), (30, 70, 0), (0, 40, 60), (60, 40, 0), (60, 0, 0), (0, 0, 60), (0, 0, 0)]
    assert followed.stakes[NODE].owner == OWNER


def test_blocks_are_read_when_they_lie_deep_enough_and_not_too_many_at_once() -> None:
    followed = FollowedChain(block=10)
    assert followed.next_span(head=13, confirmations=3) is None
    assert followed.next_span(head=15, confirmations=3) == range(11, 13)
    assert followed.next_span(head=10**6, confirmations=3) == range(11, 11 + BLOCKS_AT_ONCE)


def test_judges_of_open_slashes_are_remembered_and_anchors_within_bounds() -> None:
    followed, name = FollowedChain(block=0), bytes([7]) * 32
    followed.apply(Told("Court", "SlashProposed", {"submission": name, "judges": [OWNER.upper().replace("X", "x")]}))
    assert followed.judges == {"0x" + name.hex(): [OWNER]}
    followed.apply(Told("Court", "SlashExecuted", {"submission": name}))
    assert followed.judges == {}
    followed.apply(Told("Court", "Appealed", {"submission": name}))
    for size in range(HISTORY_MAX + 5):
        followed.apply(
            Told("LogAnchor", "Anchored", {"run": bytes(32), "size": size, "root": bytes(32), "previous": 0})
        )
    assert [row["size"] for row in followed.anchors] == list(range(5, HISTORY_MAX + 5))


def pool(name: str, **values: Any) -> Told:
    return Told("RewardPool", name, {"run": bytes([7]) * 32, "amount": 5, **values})


def test_a_deposit_is_the_owners_once_and_dust_is_none() -> None:
    assert is_deposit(vault("Deposited")) and not is_deposit(vault("Unbonded"))
    found = read_deposit(vault("Deposited", 1_999), ZEROS, 1_000, COURT)
    (made,) = list_missing_deposits([found], {}, set())
    assert (made.account, made.amount_nano, made.run) == (NodeId.parse(OWNER), 1, None)
    assert list_missing_deposits([found], {}, {ZEROS}) == []
    assert list_missing_deposits([read_deposit(vault("Deposited", 999), ZEROS, 1_000, COURT)], {}, set()) == []


def test_what_is_in_a_pool_is_its_runs_and_waits_for_a_run_that_is_not_known() -> None:
    told = (pool("Funded", funder=OWNER), pool("ForfeitReceived"), vault("Deposited", 5))
    assert all(is_deposit(event) for event in told) and not is_deposit(pool("Promised"))
    found = [read_deposit(event, ZEROS, 1, COURT) for event in told]
    assert find_unassigned(found, {}) == found[:2]
    assert [made.run for made in list_missing_deposits(found, {}, set())] == [None]
    runs = {found[0].run: RunId("demo")}
    assert find_unassigned(found, runs) == []
    made = [(each.run, each.account) for each in list_missing_deposits(found, runs, set())]
    assert made == [("demo", NodeId.parse(OWNER)), ("demo", COURT), (None, NodeId.parse(OWNER))]


def test_what_waits_for_its_run_is_remembered(tmp_path: Path) -> None:
    followed = FollowedChain(
        block=9, stakes={NODE: VaultStake(OWNER)}, unassigned=[read_deposit(pool("ForfeitReceived"), ZEROS, 1, COURT)]
    )
    ChainFiles(tmp_path).write_followed(followed)
    assert ChainFiles(tmp_path).read_followed(0) == followed


def test_a_node_that_is_not_backed_is_drained_and_taken_back_when_it_is() -> None:
    world = World()
    world.create_network()
    world.join("ann", Role.WORKER)
    node, key = world.id("ann"), str(world.id("ann"))
    backed = {key: VaultStake(key, stake=STAKE - 10, escrow=10)}
    assert list_backing_changes(world.state, backed, 1) == []
    assert [order.reason for order in list_backing_changes(world.state, {key: VaultStake(OWNER, stake=STAKE)}, 1)] == [
        REASON_UNBACKED
    ]
    (order,) = list_backing_changes(world.state, {}, 1)
    world.coordinate(order)
    assert world.state.nodes[node].status is NodeStatus.DRAINED
    assert list_backing_changes(world.state, {}, 1) == [], "once is enough"
    (order,) = list_backing_changes(world.state, backed, 1)
    world.coordinate(order)
    assert world.state.nodes[node].status is NodeStatus.ACTIVE


def pool_event(name: str, epoch: int, **more: Any) -> Told:
    return Told("RewardPool", name, {"run": b"r" * 32, "epoch": epoch, "root": bytes([epoch]) * 32, **more})


def promised(epoch: int) -> Told:
    return pool_event("Promised", epoch, total=epoch, headSize=10 * epoch, maturesAt=100)


def test_a_void_root_takes_those_after_it_along_and_its_number_is_used_again() -> None:
    followed = FollowedChain(block=0)
    for event in (
        promised(1),
        promised(2),
        promised(3),
        pool_event("Challenged", 2, owner=OWNER, votes=1),
        pool_event("Challenged", 2, owner=OWNER, votes=2),
        pool_event("RootVoided", 2, headSize=20, last=3),
        promised(2),
        Told("RewardPool", "Challenged", {"run": b"s" * 32, "epoch": 1, "root": bytes(32), "owner": OWNER, "votes": 9}),
    ):
        followed.apply(event)
    rows = [(row["epoch"], row["votes"], row["void"]) for row in followed.promises]
    assert rows == [(1, 0, False), (2, 2, True), (3, 0, True), (2, 0, False)]


def test_an_operator_reads_who_challenged_which_root_of_which_run() -> None:
    runs = {"0x" + "72" * 32: RunId("demo")}
    vote = explain_challenge(pool_event("Challenged", 2, owner=OWNER.upper().replace("X", "x"), votes=1), runs)
    assert "of demo, epoch 2" in vote and f"by {OWNER}, vote 1" in vote
    void = explain_challenge(pool_event("RootVoided", 2, headSize=20, last=3), {})
    assert "IS VOID" in void and "0x" + "72" * 32 in void and "entry 20" in void
    assert explain_challenge(promised(1), runs) == explain_challenge(vault("Bound"), runs) == ""
