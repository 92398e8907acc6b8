"""A wallet on the chain that the network settles on, opened for a few transactions. It imports web3: import it late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prime_node.config import NodeConfig
from prime_node.storage.node_folder import NodeFolder
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.chain.client import ChainClient, Contract, MinedTransaction
from prime_runtime.chain.contracts import NetworkContracts, find_contracts, run_key
from prime_runtime.chain.payments import approve_and_call
from prime_runtime.chain.transactions import GasConfig
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import Clock

CONFIRMATION_BLOCKS = 12
"""How long a mined transaction stays in the pending file. Other processes that use the file may still wait for it, and
one that a reorganisation removes is sent again.
"""


@dataclass(frozen=True, slots=True)
class CourtSlash:
    """A slash at the court, as far as an appeal depends on it."""

    status: int
    """ICourt.SlashStatus."""
    appeal_until_s: int
    bond: int
    """In the smallest unit of the settlement token."""


@dataclass(frozen=True, slots=True)
class ChainSession:
    """One account on the chain."""

    chain: ChainClient
    wallet: Wallet
    contracts: NetworkContracts

    async def pay(self, purpose: str, contract: Contract, units: int, function: str, *values: Any) -> MinedTransaction:
        """Approves the amount for the contract, then calls the function that takes it."""
        return await approve_and_call(
            self.chain, self.wallet, self.contracts, purpose, contract, units, (function, *values)
        )

    async def read_slash(self, submission: Digest) -> CourtSlash:
        """Status 0: the court does not have it."""
        slash = await self.chain.read(self.contracts.court, "slashOf", submission)
        if slash["status"] == 0:
            return CourtSlash(0, 0, 0)
        terms = await self.chain.read(self.contracts.registry, "termsAt", bytes(slash["run"]), slash["anchoredAt"])
        return CourtSlash(int(slash["status"]), int(slash["appealUntil"]), int(terms["appealBond"]))

    async def read_terms(self, run: RunId) -> Any:
        """The terms of a run that are in force."""
        now_s = (await self.chain.newest()).time_s
        return await self.chain.read(self.contracts.registry, "termsAt", run_key(run), now_s)

    async def appeal(self, submission: Digest, bond: int) -> int:
        """Pays the bond to the court. Returns the block."""
        return (await self.pay("the appeal", self.contracts.court, bond, "appeal", submission)).block


@asynccontextmanager
async def open_chain_session(config: NodeConfig, key: WalletKey, rpc: str, clock: Clock) -> AsyncIterator[ChainSession]:
    """First settles what an earlier process sent and did not see in a block."""
    chain = ChainClient(rpc)
    try:
        at = await find_contracts(chain, config.signing_domain.contract)
        if at.domain != config.signing_domain:
            raise LocalError(f"{rpc} is of chain {at.chain_id}; the network is {config.domain}")
        book = NodeFolder(config.folder).chain / f"{key.node}.json"
        wallet = Wallet(chain, key, clock, gas=GasConfig(), confirmations=CONFIRMATION_BLOCKS, path=book)
        await wallet.update_pending(await chain.newest())
        yield ChainSession(chain, wallet, at)
    finally:
        await chain.close()
