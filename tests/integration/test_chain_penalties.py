"""Penalties of validators and bounties of finders on a real anvil, with a real log."""

import asyncio
from pathlib import Path

import pytest

from prime_coordinator.settlement.actions import SlashPhase
from prime_node.cli.chain import ChainStaking
from prime_node.config import NodeConfig
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.chain.abi import compute_penalty_name
from prime_runtime.chain.contracts import run_key
from prime_runtime.chain.transactions import ContractReverted
from support.ledger_network import DAY_MS, HOUR_MS, PENALTY, RUN, SLASH, STAKE, TERMS, TOKEN
from support.processes.anvil import needs_anvil
from support.processes.evm_settlement import CONFIRMATIONS, EPOCH_S, Rig, rig, started

pytestmark = needs_anvil
ACCEPT, FRAUDULENT = Outcome.ACCEPT, Outcome.FRAUDULENT
BOND = 10**9
WINDOW_S = 2 * 3600
LOOKS_MAX = 20
BARE = {"audit_probation": 0, "audit_floor": 1, "slots_per_step": 64}
"""Terms under which most files are not drawn."""


async def start(made: Rig) -> None:
    """A run whose slashed stake comes into its pool, with validators enough for two decisions."""
    pooled = {"validator_slash_nano": PENALTY, "slash_to": SlashDestination.POOL}
    await started(made, validators=8, **pooled)


def refute(made: Rig) -> tuple[str, Digest, Digest]:
    """A validator calls honest work fraudulent, and a clear majority refutes it: who, about what, and the penalty."""
    world = made.world
    name = world.submit(world.lease("ann"))
    liar = world.judge(name, FRAUDULENT, ACCEPT)[0]
    world.agree(name, ACCEPT)
    world.settle(name)
    assert world.score(liar, name) == PENALTY
    return liar, name, compute_penalty_name(name, world.id(liar))


async def vault_stake(made: Rig, name: str) -> int:
    return int((await made.read("vault", "positionOf", made.world.id(name)))["stake"])


def staking(made: Rig, name: str, said: list[str]) -> ChainStaking:
    """The commands of `prime-node` on the machine of a node; what they print goes into the list."""
    config = NodeConfig(folder=made.folder / name, rpc=made.chain.rpc, domain=str(made.contracts.domain))
    key = made.world.key(name)
    return ChainStaking(config, key, key, made.chain.rpc, said.append)


async def appeal(made: Rig, liar: str, submission: Digest) -> None:
    """`prime-node appeal`: what the court has of this submission is the penalty of the node itself."""
    said: list[str] = []
    await asyncio.to_thread(staking(made, liar, said).appeal, submission, "")
    assert said[0].startswith("paid a bond of 1"), said


async def test_a_refuted_validator_loses_its_stake_on_the_chain_as_in_the_log(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await start(made)
        world = made.world
        liar, _, penalty = refute(made)
        assert world.stake_of(liar) == STAKE - PENALTY
        await made.next_epoch()
        assert await made.slash_status(penalty) == SlashPhase.OPEN
        assert await vault_stake(made, liar) == STAKE - PENALTY
        await made.chain.pass_time(WINDOW_S)
        await made.settle()
        assert await made.slash_status(penalty) == SlashPhase.EXECUTED
        assert world.state.funds.pools[RUN] == 1000 * TOKEN + PENALTY
        assert (await made.read("pool", "poolOf", run_key(RUN)))["held"] == 1000 * TOKEN + PENALTY
        assert world.state.funds.is_conserved()
        await made.settle()
        assert await vault_stake(made, liar) == STAKE - PENALTY, "once"


async def test_an_appeal_against_a_penalty_fails_where_a_quorum_signed_the_opposite(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await start(made)
        liar, name, penalty = refute(made)
        await made.next_epoch()
        await appeal(made, liar, name)
        await made.settle()
        assert await made.slash_status(penalty) == SlashPhase.EXECUTED
        assert await vault_stake(made, liar) == STAKE - PENALTY
        assert made.world.state.funds.pools[RUN] == 1000 * TOKEN + PENALTY + BOND


@pytest.mark.parametrize(
    ("is_appealed", "phase"), [(False, SlashPhase.EXECUTED), (True, SlashPhase.REFUNDED)], ids=["silent", "appealed"]
)
async def test_what_an_inspector_alone_refuted_costs_stake_unless_the_court_hears_an_appeal(
    tmp_path: Path, is_appealed: bool, phase: SlashPhase
) -> None:
    """Inspectors are the operator's: alone it takes no stake from a validator that objects."""
    async with rig(tmp_path) as made:
        await start(made)
        world = made.world
        world.register("inspector", Role.RELAY)
        name = world.settled("ann", ACCEPT)
        unread, *_ = world.readers(name)
        world.inspect(name, unread)
        assert world.stake_of(unread) == STAKE, "the entry that the court reads takes it"
        assert world.score(unread, name) == PENALTY
        penalty = compute_penalty_name(name, world.id(unread))
        await made.next_epoch()
        if is_appealed:
            await appeal(made, unread, name)
        await made.chain.pass_time(8 * 3600 + 10 * EPOCH_S if is_appealed else WINDOW_S)
        await made.settle()
        assert await made.slash_status(penalty) == phase
        assert await vault_stake(made, unread) == (STAKE if is_appealed else STAKE - PENALTY)


async def test_a_penalty_outlives_kills_and_a_reorganisation_and_is_taken_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await start(made)
        liar, _, penalty = refute(made)
        await made.chain.pass_time(EPOCH_S)
        await made.commit()
        await made.settlement.settle(made)  # anchored and proposed, in blocks that are not deep yet
        assert await made.slash_status(penalty) == SlashPhase.OPEN
        await made.chain.reorganise(CONFIRMATIONS + 1)
        for _ in range(LOOKS_MAX):
            made.restart()  # each look is a new process with nothing but its files
            await made.settle(looks=1)
            if await made.slash_status(penalty) == SlashPhase.OPEN:
                break
        await made.chain.pass_time(WINDOW_S)
        for _ in range(3):
            made.restart()
            await made.settle(looks=1)
        assert await made.slash_status(penalty) == SlashPhase.EXECUTED
        assert await vault_stake(made, liar) == STAKE - PENALTY
        assert made.world.state.funds.pools[RUN] == 1000 * TOKEN + PENALTY


async def test_the_finder_of_a_forged_file_claims_a_bounty_out_of_the_slash(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        world = made.world
        pooled = {"vesting_ms": DAY_MS, "slash_to": SlashDestination.POOL}
        await started(made, validators=8, **pooled, **BARE)
        await (await made.holder("eve")).deposit(STAKE)
        await made.settle()
        forged = world.not_drawn("ann")
        world.file_finding("eve", forged)
        world.agree(forged, FRAUDULENT)
        world.uphold(forged)
        world.propose(forged)
        await made.next_epoch()
        assert await made.slash_status(forged) == SlashPhase.OPEN
        world.wait(2 * HOUR_MS)
        world.execute(forged)
        await made.next_epoch()
        await made.chain.pass_time(WINDOW_S)
        await made.settle()
        assert await made.slash_status(forged) == SlashPhase.EXECUTED
        bounty = SLASH * TERMS.bounty_share // BASIS_POINTS
        eve: NodeId = world.id("eve")
        assert await made.read("court", "bountyOf", eve) == bounty
        before = await made.tokens(eve)
        said: list[str] = []
        with pytest.raises(LocalError, match="no bounty"):
            await asyncio.to_thread(staking(made, "ann", said).claim_bounty)
        await asyncio.to_thread(staking(made, "eve", said).claim_bounty)
        assert said == [f"claimed a bounty of {bounty // TOKEN} to the wallet {eve}"]
        assert await made.tokens(eve) == before + bounty
        with pytest.raises(ContractReverted, match="NothingToClaim"):
            await made.holders["bank"].wallet.send_and_wait("claim", made.contracts.court, "claimBounty", eve)
        assert world.state.funds.pools[RUN] == 1000 * TOKEN + SLASH - bounty
        assert world.state.funds.is_conserved()
        assert await made.read("court", "bounties") == 0
