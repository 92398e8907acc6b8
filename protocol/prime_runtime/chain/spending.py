"""Tokens that a contract takes from a wallet: it is allowed to, and then asked to. For stake, funding and bonds."""

from typing import Any

from prime_protocol.errors import LocalError
from prime_runtime.chain.client import Chain, Contract, Mined
from prime_runtime.chain.contracts import Contracts
from prime_runtime.chain.errors import ChainRefused
from prime_runtime.chain.wallet import Wallet
from prime_runtime.wording import show_amount

TRIES = 3
"""An approval is of the account and not of a command: two at once may use up each other's."""


async def spend(
    chain: Chain, wallet: Wallet, at: Contracts, purpose: str, contract: Contract, units: int, call: tuple[Any, ...]
) -> Mined:
    """Let the contract take so much, and call the function that takes it: its name and its values."""
    for left in reversed(range(TRIES)):
        await _approve(chain, wallet, at, contract, units)
        try:
            return await wallet.do(purpose, contract, *call)
        except ChainRefused as error:
            if error.name != "ERC20InsufficientAllowance" or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _approve(chain: Chain, wallet: Wallet, at: Contracts, spender: Contract, units: int) -> None:
    """LocalError where the account holds less."""
    held = int(await chain.read(at.token, "balanceOf", wallet.node))
    if held < units:
        raise LocalError(
            f"{wallet.node} holds {show_amount(held // at.scale)} tokens, {show_amount(units // at.scale)} are needed"
        )
    if int(await chain.read(at.token, "allowance", wallet.node, spender.address)) < units:
        await wallet.do("the approval", at.token, "approve", spender.address, units)
