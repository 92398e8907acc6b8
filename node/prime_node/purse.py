"""A wallet on the chain that the network settles on, opened for a few transactions. It brings web3: import it late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prime_node.config import NodeConfig
from prime_node.home import Home
from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest
from prime_protocol.signing import WalletKey
from prime_runtime.chain.caps import GasConfig
from prime_runtime.chain.client import Chain, Contract, Mined
from prime_runtime.chain.contracts import Contracts, find_contracts
from prime_runtime.chain.spending import spend
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import Clock

KEPT_BLOCKS = 12
"""How long a transaction stays in the book once it is in a block: until the other processes that use the book, and
may wait for it, have seen it there; one that a reorganisation takes out meanwhile is sent again.
"""


@dataclass(frozen=True, slots=True)
class SlashSeen:
    """A slash before the court, as far as an appeal goes by it."""

    status: int
    """ICourt.SlashStatus."""
    appeal_until_s: int
    bond: int
    """In units of the token."""


@dataclass(frozen=True, slots=True)
class Purse:
    """One account's."""

    chain: Chain
    wallet: Wallet
    at: Contracts

    async def pay(self, purpose: str, contract: Contract, units: int, function: str, *values: Any) -> Mined:
        """Let the contract take so much, and call the function that takes it."""
        return await spend(self.chain, self.wallet, self.at, purpose, contract, units, (function, *values))

    async def read_slash(self, submission: Digest) -> SlashSeen:
        """Status 0 where it is not before the court."""
        slash = await self.chain.read(self.at.court, "slashOf", submission)
        if slash["status"] == 0:
            return SlashSeen(0, 0, 0)
        terms = await self.chain.read(self.at.registry, "termsAt", bytes(slash["run"]), slash["anchoredAt"])
        return SlashSeen(int(slash["status"]), int(slash["appealUntil"]), int(terms["appealBond"]))

    async def appeal(self, submission: Digest, bond: int) -> int:
        """The bond goes to the court; the block in which it did."""
        return (await self.pay("the appeal", self.at.court, bond, "appeal", submission)).block


@asynccontextmanager
async def open_purse(config: NodeConfig, key: WalletKey, rpc: str, clock: Clock) -> AsyncIterator[Purse]:
    """What a process before this one has sent and not seen in a block is looked after first."""
    chain = Chain(rpc)
    try:
        at = await find_contracts(chain, config.signing_domain.contract)
        if at.domain != config.signing_domain:
            raise LocalError(f"{rpc} is of chain {at.chain_id}; the network is {config.domain}")
        book = Home(config.folder).chain / f"{key.node}.json"
        wallet = Wallet(chain, key, clock, gas=GasConfig(), confirmations=KEPT_BLOCKS, book=book)
        await wallet.tend(await chain.newest())
        yield Purse(chain, wallet, at)
    finally:
        await chain.close()
