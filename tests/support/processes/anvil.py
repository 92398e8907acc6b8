"""A real chain for tests: anvil, its clock and its history in the tests' hands, and a network that settles on it.

Without anvil (npm ci --ignore-scripts in contracts/) the tests that need it are skipped.
"""

import asyncio
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from prime_protocol.wire.ids import NodeId, checksum_address
from prime_protocol.wire.signing import WalletKey
from prime_runtime.chain.client import ChainClient
from prime_runtime.chain.contracts import NetworkContracts
from prime_runtime.chain.transactions import ChainUnavailable, GasConfig
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock

ROOT = Path(__file__).parents[3]
ANVIL = ROOT / "contracts/node_modules/.bin/anvil"
needs_anvil = pytest.mark.skipif(not ANVIL.exists(), reason="needs anvil: npm ci --ignore-scripts in contracts/")
ETHER = 10**18
STOP_S = 60
GAS = GasConfig(patience_ms=2_000)


class Anvil:
    """The process. `block_s`: a block comes every so many seconds, else with every transaction."""

    def __init__(self, folder: Path, *, address: str = "127.0.0.1", block_s: int | None = None) -> None:
        with socket.socket() as probe:
            probe.bind((address, 0))
            self._port = probe.getsockname()[1]
        self._address = address
        self._blocks = ["--block-time", str(block_s)] if block_s else []
        self._state = folder / "anvil.json"
        self._process: subprocess.Popen[bytes] | None = None
        self.chain = ChainClient(self.rpc)

    @property
    def rpc(self) -> str:
        return f"http://{self._address}:{self._port}"

    async def start(self) -> None:
        words = ["--host", self._address, "--port", str(self._port), "--silent", "--state", str(self._state)]
        self._process = subprocess.Popen([str(ANVIL), *words, *self._blocks, "--slots-in-an-epoch", "1"])
        while True:
            try:
                await self.chain.chain_id()
                return
            except ChainUnavailable:
                assert self._process.poll() is None, "anvil ended"
                await asyncio.sleep(0.05)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_alive:
            self._process.send_signal(number)

    def stop(self) -> None:
        """It writes its state and leaves."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_S)

    async def close(self) -> None:
        if self._process is not None and self.is_alive:
            self._process.kill()
            self._process.wait(STOP_S)
        await self.chain.close()

    async def mine(self, blocks: int = 1) -> None:
        await self.chain.ask("anvil_mine", hex(blocks))

    async def pass_time(self, seconds: int) -> None:
        await self.chain.ask("evm_increaseTime", seconds)
        await self.mine()

    async def reorganise(self, depth: int) -> None:
        """Other blocks, empty ones, in place of the last `depth`."""
        await self.chain.ask("anvil_reorg", depth, [])

    async def give(self, account: NodeId, wei: int = ETHER) -> None:
        await self.chain.ask("anvil_setBalance", checksum_address(account), hex(wei))


@asynccontextmanager
async def anvil(folder: Path) -> AsyncIterator[Anvil]:
    made = Anvil(folder)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


@dataclass
class Holder:
    """Somebody with an account on the chain."""

    key: WalletKey
    wallet: Wallet
    contracts: NetworkContracts

    @classmethod
    async def open(cls, chain: Anvil, contracts: NetworkContracts, key: WalletKey) -> "Holder":
        await chain.give(key.node)
        return cls(key, Wallet(chain.chain, key, SystemClock(), gas=GAS), contracts)

    async def deposit(self, amount: int) -> None:
        at = self.contracts
        await self.wallet.send_and_wait("approval", at.token, "approve", at.vault.address, amount)
        await self.wallet.send_and_wait("deposit", at.vault, "deposit", self.key.node, amount)
