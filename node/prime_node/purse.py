"""A wallet on the chain that the network settles on, opened for a few transactions. It brings web3: import it late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prime_node.config import NodeConfig
from prime_node.home import Home
from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest, NodeId
from prime_protocol.signing import WalletKey
from prime_runtime.chain.caps import GasConfig
from prime_runtime.chain.client import Chain, Contract, Mined
from prime_runtime.chain.contracts import Contracts, find_contracts
from prime_runtime.chain.errors import ChainRefused
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import Clock
from prime_runtime.wording import show_amount

PAY_TRIES = 3
"""An approval is of the account and not of a command: two at once may use up each other's."""
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
    account: NodeId

    async def approve(self, spender: Contract, units: int) -> None:
        """Let a contract take so much; LocalError where the account holds less."""
        token, scale = self.at.token, self.at.scale
        held = int(await self.chain.read(token, "balanceOf", self.account))
        if held < units:
            raise LocalError(
                f"{self.account} holds {show_amount(held // scale)} tokens, {show_amount(units // scale)} are needed"
            )
        if int(await self.chain.read(token, "allowance", self.account, spender.address)) < units:
            await self.wallet.do("the approval", token, "approve", spender.address, units)

    async def pay(self, purpose: str, contract: Contract, units: int, function: str, *values: Any) -> Mined:
        """Let the contract take so much, and call the function that takes it."""
        for left in reversed(range(PAY_TRIES)):
            await self.approve(contract, units)
            try:
                return await self.wallet.do(purpose, contract, function, *values)
            except ChainRefused as error:
                if error.name != "ERC20InsufficientAllowance" or not left:
                    raise
        raise AssertionError("the last try returns or raises")

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
        yield Purse(chain, wallet, at, key.node)
    finally:
        await chain.close()
