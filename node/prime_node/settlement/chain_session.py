"""A wallet on the chain that the network settles on, opened for a few transactions. It brings web3: import it late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prime_node.config import NodeConfig
from prime_node.storage.node_folder import NodeFolder
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import WalletKey
from prime_runtime.chain.client import ChainClient, Contract, MinedTransaction
from prime_runtime.chain.contracts import NetworkContracts, find_contracts
from prime_runtime.chain.payments import approve_and_call
from prime_runtime.chain.transactions import GasConfig
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import Clock

CONFIRMATION_BLOCKS = 12
"""How long a transaction stays in the book once it is in a block: until the other processes that use the book, and
may wait for it, have seen it there; one that a reorganisation takes out meanwhile is sent again.
"""


@dataclass(frozen=True, slots=True)
class CourtSlash:
    """A slash before the court, as far as an appeal goes by it."""

    status: int
    """ICourt.SlashStatus."""
    appeal_until_s: int
    bond: int
    """In units of the token."""


@dataclass(frozen=True, slots=True)
class ChainSession:
    """One account's."""

    chain: ChainClient
    wallet: Wallet
    contracts: NetworkContracts

    async def pay(self, purpose: str, contract: Contract, units: int, function: str, *values: Any) -> MinedTransaction:
        """Let the contract take so much, and call the function that takes it."""
        return await approve_and_call(
            self.chain, self.wallet, self.contracts, purpose, contract, units, (function, *values)
        )

    async def read_slash(self, submission: Digest) -> CourtSlash:
        """Status 0 where it is not before the court."""
        slash = await self.chain.read(self.contracts.court, "slashOf", submission)
        if slash["status"] == 0:
            return CourtSlash(0, 0, 0)
        terms = await self.chain.read(self.contracts.registry, "termsAt", bytes(slash["run"]), slash["anchoredAt"])
        return CourtSlash(int(slash["status"]), int(slash["appealUntil"]), int(terms["appealBond"]))

    async def appeal(self, submission: Digest, bond: int) -> int:
        """The bond goes to the court; the block in which it did."""
        return (await self.pay("the appeal", self.contracts.court, bond, "appeal", submission)).block


@asynccontextmanager
async def open_chain_session(config: NodeConfig, key: WalletKey, rpc: str, clock: Clock) -> AsyncIterator[ChainSession]:
    """What a process before this one has sent and not seen in a block is looked after first."""
    chain = ChainClient(rpc)
    try:
        at = await find_contracts(chain, config.signing_domain.contract)
        if at.domain != config.signing_domain:
            raise LocalError(f"{rpc} is of chain {at.chain_id}; the network is {config.domain}")
        book = NodeFolder(config.folder).chain / f"{key.node}.json"
        wallet = Wallet(chain, key, clock, gas=GasConfig(), confirmations=CONFIRMATION_BLOCKS, book=book)
        await wallet.update_pending(await chain.newest())
        yield ChainSession(chain, wallet, at)
    finally:
        await chain.close()
