"""A payment that the log has to hear of is made once, wherever its command was stopped before."""

from dataclasses import replace
from pathlib import Path

import pytest

from prime_coordinator.settlement.deployment import Deployer, DeploymentPlan
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NetworkId
from prime_runtime.chain.client import MinedTransaction
from prime_runtime.chain.contracts import NetworkContracts
from prime_runtime.chain.payments import Payer, Payment
from prime_runtime.chain.transactions import GasConfig
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock
from support.processes.anvil import Anvil, anvil, needs_anvil
from support.processes.coordinator import key_of

pytestmark = needs_anvil
KEY = key_of("payer")
UNITS = 100
WANTED = Payment("the deposit", "Deposited", str(KEY.node), UNITS)


class PowerCut(Exception):
    """The command ends here."""


class Desk:
    """One run of the command: nothing of the one before is left but its files."""

    def __init__(self, chain: Anvil, at: NetworkContracts, folder: Path) -> None:
        self.at = at
        self.wallet = Wallet(
            chain.chain, KEY, SystemClock(), gas=GasConfig(), confirmations=12, path=folder / "book.json"
        )
        self.payer = Payer(chain.chain, self.wallet, at.vault, folder / "deposit.json")

    async def deposit(self) -> MinedTransaction:
        await self.wallet.send_and_wait("the approval", self.at.token, "approve", self.at.vault.address, UNITS)
        return await self.wallet.send_and_wait("the deposit", self.at.vault, "deposit", KEY.node, UNITS)

    async def deposit_unseen(self) -> MinedTransaction:
        """Sent, and the power goes before it is seen in a block."""
        await self.wallet.send_and_wait("the approval", self.at.token, "approve", self.at.vault.address, UNITS)
        await self.wallet.send("the deposit", self.at.vault, "deposit", (KEY.node, UNITS))
        raise PowerCut

    async def deposit_nothing(self) -> MinedTransaction:
        raise PowerCut


async def deployed(chain: Anvil, folder: Path) -> NetworkContracts:
    await chain.give(KEY.node)
    wallet, files = Wallet(chain.chain, KEY, SystemClock(), gas=GasConfig()), ChainFiles(folder)
    wanted = DeploymentPlan(NetworkId("testnet"), 1_000_000, None, 10**6)
    return await Deployer(chain.chain, wallet, files, wanted, lambda line: None).deploy()


async def test_the_same_command_again_goes_on_with_a_payment_that_was_begun(tmp_path: Path) -> None:
    async with anvil(tmp_path) as chain:
        at = await deployed(chain, tmp_path)

        async def staked() -> int:
            return int((await chain.chain.read(at.vault, "positionOf", KEY.node))["stake"])

        first = Desk(chain, at, tmp_path)
        with pytest.raises(PowerCut):
            await first.payer.pay(WANTED, first.deposit_nothing)
        second = Desk(chain, at, tmp_path)
        with pytest.raises(PowerCut):
            await second.payer.pay(WANTED, second.deposit_unseen)
        for _ in range(2):
            again = Desk(chain, at, tmp_path)
            told = await again.payer.pay(WANTED, again.deposit)
            assert (told.values["amount"], await staked()) == (UNITS, UNITS), "it was made once"
        with pytest.raises(LocalError, match="was started and not finished"):
            await again.payer.pay(replace(WANTED, units=UNITS + 1), again.deposit)
        again.payer.mark_logged()
        await again.payer.pay(WANTED, again.deposit)
        assert await staked() == 2 * UNITS, "the log knows of the first: this is another"


async def test_what_was_begun_is_known_until_it_is_crossed_out_and_what_the_chain_never_had_is_forgotten(
    tmp_path: Path,
) -> None:
    async with anvil(tmp_path) as chain:
        at = await deployed(chain, tmp_path)
        first = Desk(chain, at, tmp_path)
        assert await first.payer.resume() is None
        with pytest.raises(PowerCut):
            await first.payer.pay(WANTED, first.deposit_nothing)
        assert await Desk(chain, at, tmp_path).payer.resume() is None
        assert await Desk(chain, at, tmp_path).payer.resume() is None
        second = Desk(chain, at, tmp_path)
        with pytest.raises(PowerCut):
            await second.payer.pay(replace(WANTED, since_entry=7), second.deposit_unseen)
        for _ in range(2):
            again = Desk(chain, at, tmp_path)
            begun = await again.payer.resume()
            assert begun is not None
            assert (begun.units, begun.since_entry) == (UNITS, 7)
        again.payer.mark_logged()
        assert await Desk(chain, at, tmp_path).payer.resume() is None
