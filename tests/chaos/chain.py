"""The chain that a network settles on, as a process that can be taken away and given back: anvil with our contracts."""

import secrets
import signal
from pathlib import Path

from prime_coordinator.settlement.files import ChainFiles
from prime_lab.devnet import chain as on_chain
from prime_lab.devnet import recipe
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.chain.contracts import NetworkContracts, find_contracts, run_key
from prime_runtime.keys import create_key_file, write_key_file
from support.processes.anvil import Anvil, Holder


class ChaosChain:
    """Anvil, the bank that nobody has, and what the operator and the nodes' owners type."""

    def __init__(self, address: str, folder: Path, home: Path, password_file: Path) -> None:
        folder.mkdir()
        self._anvil = Anvil(folder, address=address, block_s=1)
        self._home = home
        self._password_file = password_file
        self._bank = WalletKey.from_secret(secrets.token_bytes(32))
        self._bank_file = folder / "bank.key"
        self._contracts: NetworkContracts | None = None

    @property
    def rpc(self) -> str:
        return self._anvil.rpc

    async def open(self) -> None:
        """With an operator who can pay for gas."""
        await self._anvil.start()
        password = self._password_file.read_text().strip()
        self._home.mkdir(parents=True)
        operator = create_key_file(self._home / "key.json", password, secrets.token_bytes)
        write_key_file(self._bank_file, self._bank, password, secrets.token_bytes)
        for account in (operator.node, self._bank.node):
            await self._anvil.give(account)

    def deploy_words(self) -> list[str]:
        return on_chain.make_deploy_argv(self._home, self.rpc, self._password_file, self._bank.node)

    def init_words(self) -> list[str]:
        return on_chain.make_settlement_flags(self.rpc)

    def fund_words(self, run: str) -> list[str]:
        return on_chain.make_fund_argv(self._home, run, self._bank_file, self._password_file)

    def stake_words(self, folder: Path) -> list[str]:
        return on_chain.make_stake_argv(folder, self.rpc)

    async def give(self, nodes: list[NodeId]) -> None:
        """Gas and tokens."""
        bank = await Holder.open(self._anvil, await self._find(), self._bank)
        for node in nodes:
            await self._anvil.give(node)
            await bank.wallet.send_and_wait(
                "gift", bank.contracts.token, "transfer", node, on_chain.GIFT_COINS * recipe.COIN_NANO
            )

    async def anchored(self, run: str) -> int:
        """Entries of the log that the chain has seen a head over."""
        return int(await self._anvil.chain.read((await self._find()).anchor, "latestSize", run_key(run)))

    async def promised(self, run: str) -> int:
        """To workers, in all epochs."""
        return int((await self._anvil.chain.read((await self._find()).pool, "poolOf", run_key(run)))["promised"])

    async def _find(self) -> NetworkContracts:
        if self._contracts is None:
            court = NodeId.parse(ChainFiles(self._home).read_deployment()["Court"])
            self._contracts = await find_contracts(self._anvil.chain, court)
        return self._contracts

    # --- Away and back ----------------------------------------------------------------------------------------------

    def go_away(self, *, silently: bool) -> None:
        """Nobody listens any more, or somebody listens and says nothing."""
        if silently:
            self._anvil.send(signal.SIGSTOP)
        else:
            self._anvil.stop()

    async def come_back(self) -> None:
        self._anvil.send(signal.SIGCONT)
        if not self._anvil.is_alive:
            await self._anvil.start()

    async def close(self) -> None:
        await self._anvil.close()
