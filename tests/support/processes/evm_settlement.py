"""A whole log and a whole chain in one process: a World that writes real entries, and EVM settlement on a real anvil.

The log's clock is the World's and the chain's is anvil's; both move only when a test says so.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from prime_coordinator.core import Core
from prime_coordinator.log.store import open_log_store
from prime_coordinator.settlement.config import SettlementConfig, SettlementKind
from prime_coordinator.settlement.deployment import Deployer, DeploymentPlan
from prime_coordinator.settlement.evm import EvmSettlement
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.ledger.entries import Role
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.log.merkle import (
    MerkleProof,
    MerkleTree,
    build_consistency_proof,
    build_inclusion_proof,
    compute_leaf_hash,
)
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.chain.contracts import NetworkContracts, run_key
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock
from support.ledger_network import NETWORK, RUN, STAKE, TOKEN, World
from support.processes.anvil import GAS, Anvil, Holder, anvil

R = TypeVar("R", bound="Rig")
SUPPLY = 10**6 * TOKEN
EPOCH_S, WINDOW_S = 5, 100
UNBONDING_S = 1_000_000
CONFIRMATIONS = 2
TERMS: dict[str, Any] = {"appeal_bond_nano": 0, "quorum": 2}


class Writer:
    """The log's tree, as far as it is on disk."""

    def __init__(self) -> None:
        self.tree = MerkleTree()

    @property
    def size(self) -> int:
        return self.tree.size

    def inclusion_proof(self, index: int, size: int) -> MerkleProof:
        return build_inclusion_proof(index, size, self.tree.get_node)

    def consistency_proof(self, old_size: int, new_size: int) -> MerkleProof:
        return build_consistency_proof(old_size, new_size, self.tree.get_node)


class Rig:
    """The coordinator's books over a World, and its settlement."""

    def __init__(self, folder: Path, chain: Anvil, world: World, contracts: NetworkContracts, start_block: int) -> None:
        self.folder, self.chain, self.world, self.contracts = folder, chain, world, contracts
        self.config = SettlementConfig(
            kind=SettlementKind.EVM,
            rpc=chain.rpc,
            court=str(contracts.court.address),
            start_block=start_block,
            confirmations=CONFIRMATIONS,
            epoch_ms=EPOCH_S * 1000,
            slash_window_ms=WINDOW_S * 1000,
            payout_delay_ms=0,
            gas=GAS,
        )
        self.log = open_log_store(f"sqlite:///{folder / 'log.db'}")
        self.writer: Any = Writer()
        self.core = Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms)
        self._opened: list[EvmSettlement] = []
        self.settlement = self.restart()
        self.holders: dict[str, Holder] = {}

    # --- Books ------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        fresh = self.world.leaves[self.writer.size :]
        if fresh:
            await self.log.append(self.writer.size, fresh, [compute_entry_keys(leaf) for leaf in fresh])
            self.writer.tree.append_many([compute_leaf_hash(leaf) for leaf in fresh])

    # --- Doing ------------------------------------------------------------------------------------------------------

    def restart(self) -> EvmSettlement:
        """As a new process would: only the files are left."""
        self.settlement = EvmSettlement(self.config, self.world.key("coordinator"), self.folder, SystemClock())
        self._opened.append(self.settlement)
        return self.settlement

    async def settle(self, *, looks: int = 3) -> None:
        """A few looks at the chain, with time for what was sent to lie deep enough."""
        for _ in range(looks):
            await self.commit()
            await self.settlement.settle(self)
            for order in await self.settlement.collect(self.world.state):
                self.world.coordinate(order)
            for _, appeal in self.settlement.appeals(self.world.state):
                self.world.coordinate(appeal)
            await self.chain.mine(CONFIRMATIONS + 1)

    async def next_epoch(self) -> None:
        await self.chain.pass_time(EPOCH_S)
        await self.settle()

    async def holder(self, name: str, tokens: int = 4 * STAKE) -> Holder:
        if name not in self.holders:
            made = self.holders[name] = await Holder.open(self.chain, self.contracts, self.world.key(name))
            bank = self.holders.get("bank") or made
            await bank.wallet.send_and_wait("gift", self.contracts.token, "transfer", made.key.node, tokens)
        return self.holders[name]

    async def join(self, *names: str, role: Role) -> None:
        """Register, and stake over the chain."""
        for name in names:
            self.world.register(name, role)
            await (await self.holder(name)).deposit(STAKE)
        await self.settle()
        for name in names:
            self.world.stake(name, name)

    async def fund(self, name: str, amount_nano: int) -> None:
        """The run's pool on the chain, and the log hears of it."""
        holder, at = await self.holder(name, amount_nano), self.contracts
        await holder.wallet.send_and_wait("approval", at.token, "approve", at.pool.address, amount_nano)
        await holder.wallet.send_and_wait("fund", at.pool, "fund", run_key(RUN), amount_nano)
        await self.settle()

    async def read(self, contract: str, function: str, *values: Any) -> Any:
        return await self.chain.chain.read(getattr(self.contracts, contract), function, *values)

    async def tokens(self, account: NodeId) -> int:
        return int(await self.read("token", "balanceOf", account))

    async def slash_status(self, name: Digest) -> int:
        return int((await self.read("court", "slashOf", name))["status"])

    async def anchored(self) -> int:
        return int(await self.read("anchor", "latestSize", run_key(RUN)))

    async def close(self) -> None:
        for settlement in self._opened:
            await settlement.close()
        self.log.close()


@asynccontextmanager
async def rig(folder: Path, kind: type[R] = Rig) -> AsyncIterator[R]:  # type: ignore[assignment]
    """Contracts, a network on them, and a bank with all the tokens."""
    async with anvil(folder) as chain:
        world = World()
        key = world.key("coordinator")
        await chain.give(key.node)
        files = ChainFiles(folder)
        wallet = Wallet(chain.chain, key, SystemClock(), gas=GAS, path=files.transactions)
        wanted = DeploymentPlan(NETWORK, UNBONDING_S, None, SUPPLY, world.id("bank"))
        contracts = await Deployer(chain.chain, wallet, files, wanted, lambda line: None).deploy()
        world.create_network(domain=contracts.domain)
        made = kind(folder, chain, world, contracts, files.read_deployment()["start_block"])
        made.holders["bank"] = await Holder.open(chain, contracts, world.key("bank"))
        try:
            yield made
        finally:
            await made.close()


async def started(made: Rig, *, workers: tuple[str, ...] = ("ann", "bob"), validators: int = 6, **terms: Any) -> None:
    """A run on the chain, funded there, with everybody staked there, ready to lease."""
    await made.join(*workers, role=Role.WORKER)
    await made.join(*[f"val-{number}" for number in range(validators)], role=Role.VALIDATOR)
    made.world.create_run(**TERMS | terms)
    await made.settle()
    await made.fund("sponsor", 1000 * TOKEN)
    made.world.publish()
