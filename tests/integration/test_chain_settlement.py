"""EVM settlement on a real anvil, with a real log: deposits, anchors, payouts, slashes and appeals."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from prime_coordinator.settlement.actions import SlashPhase, make_chain_terms
from prime_node.config import NodeConfig
from prime_node.settlement.appeals import ChainAppeals
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role, RunFunded
from prime_protocol.ledger.payout_tree import PayoutTree
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.chain.contracts import run_key
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted
from prime_runtime.clock import SystemClock
from support.ledger_network import HOUR_MS, RUN, SLASH, STAKE, TOKEN
from support.processes.anvil import Holder, needs_anvil
from support.processes.evm_settlement import CONFIRMATIONS, EPOCH_S, TERMS, Rig, rig, started

pytestmark = needs_anvil
BOND = 10**9
REQUESTS_MAX = 5
LOOKS_MAX = 20
"""More than it takes: what was sent may have waited too long on a busy machine, and is then offered again."""


async def test_a_deposit_comes_into_the_log_once_and_the_log_is_anchored(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.join("ann", role=Role.WORKER)
        assert made.world.stake_of("ann") == STAKE
        made.world.create_run(appeal_bond_nano=0)
        await made.settle()
        size = await made.anchored()
        assert size > 0
        made.restart()
        await made.settle()
        assert made.world.state.funds.deposited_nano == STAKE
        assert await made.anchored() == size, "one anchor an epoch"
        made.world.note_head()
        await made.next_epoch()
        assert await made.anchored() == len(made.world.leaves)


async def test_what_is_in_the_vault_funds_no_run_and_what_is_in_a_pool_is_no_balance(tmp_path: Path) -> None:
    """Else the log could pay more than the pool on the chain holds, and nobody's pay could be promised any more."""
    async with rig(tmp_path) as made:
        await started(made)
        world = made.world
        assert world.state.funds.pools[RUN] == (await made.read("pool", "poolOf", run_key(RUN)))["held"]
        assert (world.balance("sponsor"), world.run.funded) == (0, {world.id("sponsor"): 1000 * TOKEN})
        await (await made.holder("eve")).deposit(STAKE)
        await made.settle()
        assert world.balance("eve") == STAKE
        with pytest.raises(RemoteError, match="prime-coordinator chain fund"):
            world.write("eve", RunFunded(amount_nano=STAKE))
        wallet = made.holders["eve"].wallet
        await wallet.send_and_wait("unbonding", made.contracts.vault, "unbond", wallet.node, STAKE)
        await made.settle()
        assert world.state.funds.pools[RUN] == 1000 * TOKEN


async def test_a_funding_of_a_run_that_the_log_does_not_know_waits_until_it_does(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        world, registry = made.world, made.contracts.registry
        terms = make_chain_terms(world.terms(**TERMS), made.config, made.contracts.scale)
        values = (str(RUN), world.id("coordinator"), terms.words())
        operator = await Holder.open(made.chain, made.contracts, world.key("coordinator"))
        await operator.wallet.send_and_wait("by hand", registry, "createRun", *values)
        await made.fund("sponsor", TOKEN)
        assert world.state.funds.deposited_nano == world.balance("sponsor") == 0
        made.restart()
        world.create_run(**TERMS)
        await made.settle()
        assert world.run.funded == {world.id("sponsor"): TOKEN}
        await made.settle()
        assert world.state.funds.deposited_nano == TOKEN, "once"


async def test_slashed_stake_is_in_the_logs_pool_when_the_court_has_brought_it_there(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await started(made, slash_to=SlashDestination.POOL)
        world, funded = made.world, 1000 * TOKEN
        name = await convicted(made)
        world.wait(2 * HOUR_MS)
        world.execute(name)
        await made.next_epoch()
        assert world.state.funds.pools[RUN] == funded, "the chain's window is still open"
        await made.chain.pass_time(2 * 3600)
        await made.settle()
        assert (world.state.funds.pools[RUN], world.run.forfeited_nano) == (funded + SLASH, SLASH)
        assert (await made.read("pool", "poolOf", run_key(RUN)))["held"] == funded + SLASH
        assert world.state.funds.is_conserved()


async def test_what_the_log_paid_is_promised_on_the_chain_and_can_be_claimed_by_anyone_for_its_owner(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        world = made.world
        for slot, name in enumerate(("ann", "bob")):
            world.settled(name, Outcome.ACCEPT, slot)
        world.publish()
        world.pay_out(0)
        await made.next_epoch()
        await made.next_epoch()
        pool = await made.read("pool", "poolOf", run_key(RUN))
        assert pool["promised"] == sum(world.run.paid.values()) > 0
        before = await made.tokens(world.id("ann"))
        await claim(made, "ann", int(pool["epoch"]))
        await claim(made, "ann", int(pool["epoch"]))
        assert await made.tokens(world.id("ann")) == before + world.run.paid[world.id("ann")]


async def claim(made: Rig, name: str, epoch: int) -> None:
    """As a stranger would, from the file that the coordinator serves."""
    account = made.world.id(name)
    plain = json.loads(made.settlement._files.payout(RUN, epoch).read_bytes())
    tree = PayoutTree({NodeId.parse(key): nano for key, nano in plain["paid_nano"].items()})
    values = (run_key(RUN), epoch, account, tree.cumulative[account], tree.proof(account))
    await made.holders["bank"].wallet.send_and_wait("claim", made.contracts.pool, "claim", *values)


async def convicted(made: Rig, node: str = "ann", slot: int = 0) -> Digest:
    """Found fraudulent in the log, and the slash brought before the court."""
    name = made.world.convicted(node, slot)
    await made.next_epoch()
    assert await made.slash_status(name) == SlashPhase.OPEN
    assert (await made.read("vault", "positionOf", made.world.id(node)))["escrow"] == SLASH
    return name


async def bonded(made: Rig, name: Digest, node: str = "ann") -> None:
    wallet, at = made.holders[node].wallet, made.contracts
    await wallet.send_and_wait("approval", at.token, "approve", at.court.address, BOND)
    await wallet.send_and_wait("appeal", at.court, "appeal", name)


async def appealed(made: Rig, name: Digest, node: str = "ann") -> None:
    """On the chain with the bond, and in the log."""
    await bonded(made, name, node)
    made.world.appeal(node, name)
    await made.settle()
    assert await made.slash_status(name) == SlashPhase.APPEALED


async def test_a_slash_that_nobody_appeals_is_executed_after_its_window_and_not_before(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        name = await convicted(made)
        made.world.wait(2 * HOUR_MS)
        made.world.execute(name)
        await made.next_epoch()
        assert await made.slash_status(name) == SlashPhase.OPEN, "the chain's window is still open"
        assert made.settlement.is_appealable(name)
        await made.chain.pass_time(2 * 3600)
        await made.settle()
        assert await made.slash_status(name) == SlashPhase.EXECUTED
        assert not made.settlement.is_appealable(name)
        assert (await made.read("vault", "positionOf", made.world.id("ann")))["stake"] == STAKE - SLASH


async def test_a_slash_overturned_in_the_log_alone_is_given_back_on_the_chain_without_a_bond(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        name = await convicted(made)
        made.world.appeal("ann", name)
        made.world.agree(name, Outcome.ACCEPT)
        made.world.overturn(name)
        await made.next_epoch()
        assert await made.slash_status(name) == SlashPhase.REFUNDED
        position = await made.read("vault", "positionOf", made.world.id("ann"))
        assert (position["stake"], position["escrow"]) == (STAKE, 0)


async def test_an_appeal_before_the_court_alone_comes_into_the_log_and_is_judged_there(tmp_path: Path) -> None:
    """Else whoever tells the court and not the log would wait out the judgement, and be refunded."""
    async with rig(tmp_path) as made:
        await started(made)
        name = await convicted(made)
        made.world.wait(2 * HOUR_MS)  # too late for the log, whose window began before the court's
        await bonded(made, name)
        assert made.settlement.is_appealable(name), "the log must not end it"
        await made.settle()
        assert made.world.run.slashes[name].appealed_at_ms is not None
        made.world.agree(name, Outcome.FRAUDULENT)
        made.world.execute(name)
        await made.next_epoch()
        await made.next_epoch()
        assert await made.slash_status(name) == SlashPhase.EXECUTED


@pytest.mark.parametrize(
    ("found", "phase"), [(Outcome.FRAUDULENT, SlashPhase.EXECUTED), (Outcome.ACCEPT, SlashPhase.REFUNDED)]
)
async def test_an_appeal_is_decided_on_the_chain_as_in_the_log_by_other_judges(
    tmp_path: Path, found: Outcome, phase: SlashPhase
) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        before = await made.tokens(made.world.id("ann"))
        name = await convicted(made)
        await appealed(made, name)
        made.world.agree(name, found)
        made.world.execute(name) if found is Outcome.FRAUDULENT else made.world.overturn(name)
        await made.next_epoch()
        await made.next_epoch()
        assert await made.slash_status(name) == phase
        is_refunded = phase is SlashPhase.REFUNDED
        position = await made.read("vault", "positionOf", made.world.id("ann"))
        assert position["stake"] == (STAKE if is_refunded else STAKE - SLASH)
        assert position["escrow"] == 0
        assert await made.tokens(made.world.id("ann")) == before - (0 if is_refunded else BOND)


@pytest.mark.parametrize(("bond_max_nano", "phase"), [(BOND, SlashPhase.APPEALED), (BOND - 1, SlashPhase.OPEN)])
async def test_a_node_appeals_before_the_court_by_itself_as_far_as_its_owner_allows(
    tmp_path: Path, bond_max_nano: int, phase: SlashPhase
) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        config = NodeConfig(
            folder=tmp_path / "ann",
            rpc=made.chain.rpc,
            domain=str(made.contracts.domain),
            appeal_bond_max_nano=bond_max_nano,
        )
        appeals = ChainAppeals(config, made.world.key("ann"), SystemClock())
        before = await made.tokens(made.world.id("ann"))
        name = made.world.convicted("ann")
        appeals.request_appeal(name)
        await appeals.process_pending()
        assert await made.slash_status(name) == SlashPhase.NONE, "it is not before the court yet"
        await made.next_epoch()
        await appeals.process_pending()
        await appeals.process_pending()
        assert await made.slash_status(name) == phase
        spent = BOND if phase is SlashPhase.APPEALED else 0
        assert await made.tokens(made.world.id("ann")) == before - spent


async def test_an_appeal_that_nobody_judges_is_refunded_by_anyone(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        name = await convicted(made)
        await appealed(made, name)
        made.world.wait(made.world.run.terms.long_stop_ms)
        made.world.overturn(name)
        await made.next_epoch()
        assert await made.slash_status(name) == SlashPhase.APPEALED
        await made.chain.pass_time(8 * 3600 + 10 * EPOCH_S)
        await made.settle()
        assert await made.slash_status(name) == SlashPhase.REFUNDED


async def test_a_coordinator_killed_between_transactions_goes_on_where_it_was(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        world = made.world
        world.settled("bob", Outcome.ACCEPT, 1)
        name = world.convicted("ann", 2)
        world.publish()
        world.wait(2 * HOUR_MS)
        world.execute(name)
        world.pay_out(0)
        await made.chain.pass_time(EPOCH_S)
        for _ in range(12):
            made.restart()  # each look is a new process with nothing but its files
            await made.settle(looks=1)
        assert await made.slash_status(name) == SlashPhase.OPEN
        pool = await made.read("pool", "poolOf", run_key(RUN))
        assert (pool["promised"], pool["epoch"]) == (sum(world.run.paid.values()), 1)


async def test_a_transaction_that_was_written_down_but_not_sent_is_sent_by_the_next_process(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.join("ann", role=Role.WORKER)
        made.world.create_run(appeal_bond_nano=0)
        made.chain.stop()
        with pytest.raises(ChainUnavailable):
            await made.settle(looks=1)
        await made.chain.start()
        made.restart()
        await made.settle()
        assert await made.anchored() > 0


async def test_the_chain_restarts_and_settlement_catches_up(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        made.chain.stop()
        made.world.note_head()
        with pytest.raises(ChainUnavailable):
            await made.settle(looks=1)
        await made.chain.start()
        await made.next_epoch()
        assert await made.anchored() == len(made.world.leaves)


async def test_what_a_reorganisation_took_out_is_brought_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await started(made)
        name = made.world.convicted("ann")
        await made.chain.pass_time(EPOCH_S)
        await made.commit()
        await made.settlement.settle(made)  # anchored and proposed, in blocks that are not deep yet
        assert await made.slash_status(name) == SlashPhase.OPEN
        await made.chain.reorganise(CONFIRMATIONS + 1)
        assert await made.slash_status(name) == SlashPhase.NONE
        for _ in range(LOOKS_MAX):
            await made.settle(looks=1)
            if await made.slash_status(name) == SlashPhase.OPEN:
                break
        assert await made.slash_status(name) == SlashPhase.OPEN
        assert made.world.state.funds.is_conserved()


async def test_a_reorganisation_deeper_than_believed_is_read_again_and_books_nothing_twice(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.join("ann", role=Role.WORKER)
        booked = made.world.state.funds.deposited_nano
        await made.chain.reorganise(CONFIRMATIONS + 3)
        made.restart()
        await made.settle(looks=6)
        assert made.world.state.funds.deposited_nano == booked


async def test_a_node_whose_stake_left_the_vault_gets_no_work_until_it_is_back(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.join("ann", role=Role.WORKER)
        at, wallet, node = made.contracts, made.holders["ann"].wallet, made.world.id("ann")
        await made.settle()
        assert made.world.state.nodes[node].status is NodeStatus.ACTIVE
        await wallet.send_and_wait("unbonding", at.vault, "unbond", node, STAKE)
        await made.settle()
        assert made.world.state.nodes[node].status is NodeStatus.DRAINED
        await made.holders["ann"].deposit(STAKE)
        await made.settle()
        assert made.world.state.nodes[node].status is NodeStatus.ACTIVE


async def test_a_refusal_says_which_rule_of_which_contract(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        stranger = await made.holder("ann")
        with pytest.raises(ContractReverted, match=r"StakeTooSmall\(|NodeNotBound\(node=0x") as refused:
            await stranger.wallet.send_and_wait("unbonding", made.contracts.vault, "unbond", stranger.key.node, TOKEN)
        assert refused.value.name == "NodeNotBound"


async def test_a_look_is_a_handful_of_requests_whatever_the_number_of_slashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator looks every few seconds, on a node of the chain that may count what is asked of it."""
    asked: list[str] = []
    post = aiohttp.ClientSession.post

    def counted(session: aiohttp.ClientSession, url: str, **given: Any) -> Any:
        asked.append(url)
        return post(session, url, **given)

    async with rig(tmp_path) as made:
        await started(made)
        await made.settle()
        for open_slashes in range(3):
            if open_slashes:
                await convicted(made, ("ann", "bob")[open_slashes - 1], slot=open_slashes)
                await made.settle()
            await made.commit()
            with monkeypatch.context() as counting:
                counting.setattr(aiohttp.ClientSession, "post", counted)
                asked.clear()
                await made.settlement.settle(made)
            assert len(asked) <= REQUESTS_MAX, asked
