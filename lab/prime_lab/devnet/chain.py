"""A devnet that settles on its own chain: a real anvil, the contracts on it, and play money for all parties.

Whatever an operator or a contributor would type is run as that command. Only the bank that hands out play money has no
command; it is in this file.
"""

import asyncio
import secrets
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prime_coordinator.quickstart.plan import make_flags
from prime_coordinator.settlement.files import ChainFiles
from prime_lab.devnet import recipe
from prime_lab.devnet.plan import (
    NETWORK,
    RUN,
    DevnetPlan,
    DevnetProcess,
    DevnetRole,
    get_coordinator_folder,
    get_password_file,
)
from prime_lab.devnet.summary import NamedEvent, count_open_slashes, describe_events, list_missing_events
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId, checksum_address
from prime_protocol.wire.signing import WalletKey
from prime_runtime.child_processes import RunningProcess
from prime_runtime.clock import SystemClock
from prime_runtime.keys import create_key_file, write_key_file

if TYPE_CHECKING:
    from prime_runtime.chain.client import ChainClient
    from prime_runtime.chain.contracts import NetworkContracts
    from prime_runtime.chain.wallet import Wallet


ANVIL = "anvil"
SUPPLY_COINS, POOL_COINS, GIFT_COINS = 10_000_000, 100_000, 1_000
GAS_WEI = 10**18
STAKED_ROLES = (DevnetRole.VALIDATOR, DevnetRole.WORKER, DevnetRole.CHEATER, DevnetRole.FALSE_WITNESS)
SETTLEMENT = {
    "settlement.kind": "evm",
    "settlement.confirmations": 1,
    "settlement.poll_ms": 500,
    "settlement.epoch_ms": 5_000,
    "settlement.payout_delay_ms": 0,
    "settlement.slash_window_ms": 3_600_000,
}
RETRY_S, RETRIES = 0.25, 240
COURT_S = 120
"""Time limit for the court: its windows, an epoch for the anchor, a few blocks."""
RunCommand = Callable[..., Awaitable[str]]


def find_anvil() -> Path:
    """In a checkout's contracts folder, else on the PATH."""
    here = Path(__file__).parents[3] / "contracts" / "node_modules" / ".bin" / ANVIL
    found = str(here) if here.exists() else shutil.which(ANVIL)
    if found is None:
        raise LocalError(
            "settling on a chain needs anvil: run `npm ci --ignore-scripts` in contracts/, or put Foundry's on the PATH"
        )
    return Path(found)


def make_deploy_argv(home: Path, rpc: str, password: Path, bank: NodeId) -> list[str]:
    """The contracts, with play money for the bank."""
    settings = {"folder": home, "network": NETWORK, "rpc": rpc, "password_file": password}
    money = ("--test-token", str(SUPPLY_COINS), "--test-token-to", str(bank))
    return ["prime-coordinator", "chain", "deploy", *make_flags(settings), *money]


def make_settlement_flags(rpc: str) -> list[str]:
    """For `prime-coordinator init`."""
    return list(make_flags({**SETTLEMENT, "settlement.rpc": rpc}))


def make_fund_argv(home: Path, run: str, key: Path, password: Path) -> list[str]:
    """Into the run's pool, from the wallet of that keystore."""
    given = ("--key", str(key), "--key-password-file", str(password))
    return ["prime-coordinator", "chain", "fund", run, str(POOL_COINS), "--folder", str(home), *given]


def make_stake_argv(folder: Path, rpc: str) -> list[str]:
    """What a node's owner types."""
    return ["prime-node", "stake", "add", str(recipe.STAKE // recipe.COIN_NANO), "--folder", str(folder), "--rpc", rpc]


class ChainProcess(DevnetProcess):
    """A program that is not ours."""

    @property
    def command(self) -> list[str]:
        return list(self.words)


@dataclass(slots=True)
class DevnetChain:
    """The chain's side of one devnet."""

    plan: DevnetPlan
    do: RunCommand
    """Runs a short command: a name for its log, then its words."""
    rpc: str = ""
    bank: WalletKey = field(default_factory=lambda: WalletKey.from_secret(secrets.token_bytes(32)))

    async def start(self, start: Callable[[DevnetProcess], Awaitable[None]]) -> None:
        """Anvil and the contracts, before there is a network."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.rpc = f"http://127.0.0.1:{port}"
        folder = self.plan.folder / "chain"
        words = (str(find_anvil()), "--host", "127.0.0.1", "--port", str(port), "--block-time", "1", "--silent")
        state = ("--state", str(self.plan.folder / "chain.json"), "--state-interval", "5")
        await start(ChainProcess(name="chain", part=DevnetRole.COORDINATOR, words=(*words, *state), folder=folder))
        home = get_coordinator_folder(self.plan)
        home.mkdir(mode=0o700, parents=True)
        password = get_password_file(self.plan).read_text().strip()
        key = await asyncio.to_thread(create_key_file, home / "key.json", password, secrets.token_bytes)
        for account in (key.node, self.bank.node):
            await self._give_gas(account)
        await self.do("chain-deploy", *make_deploy_argv(home, self.rpc, get_password_file(self.plan), self.bank.node))

    def init_words(self) -> list[str]:
        return make_settlement_flags(self.rpc)

    async def fund(self) -> None:
        """The bank pays into the run's pool."""
        path = self.plan.folder / "bank.key"
        password = get_password_file(self.plan)
        await asyncio.to_thread(write_key_file, path, self.bank, password.read_text().strip(), secrets.token_bytes)
        await self.do("chain-fund", *make_fund_argv(get_coordinator_folder(self.plan), RUN, path, password))

    async def give(self, nodes: list[NodeId]) -> None:
        """Gas and tokens for every party that has joined."""
        async with self._banking() as (_, wallet, at):
            for node in nodes:
                await self._give_gas(node)
                await wallet.send_and_wait("gift", at.token, "transfer", node, GIFT_COINS * recipe.COIN_NANO)

    async def stake(self, party: DevnetProcess) -> None:
        """What a node's owner types."""
        await self.do(f"{party.name}-stake", *make_stake_argv(party.folder, self.rpc))

    def equip(self, party: DevnetProcess) -> DevnetProcess:
        """A node that works, and that may appeal to the court by itself."""
        if party.part not in STAKED_ROLES:
            return party
        words = ("--rpc", self.rpc, "--appeal-bond-max-nano", str(recipe.BOND))
        return replace(party, words=(*party.words, *words))

    async def tell(self, running: list[RunningProcess[DevnetProcess]]) -> tuple[list[str], list[str]]:
        """At the end: what the contracts saw; the workers claim what they earned, and one of them leaves. Then what of
        all that is missing.
        """
        told = await self._read_events()
        lines = describe_events(told)
        workers = [each.party for each in running if each.party.part is DevnetRole.WORKER]
        for party in workers:
            lines.append(f"{party.name}: {await self._own(party, 'claim')}")
        leaver, amount = workers[0], str(recipe.STAKE // recipe.COIN_NANO)
        lines.append(f"{leaver.name}: {await self._own(leaver, 'unstake', amount)}")
        await self._pass_unbonding()
        lines.append(f"{leaver.name}, two weeks of the chain's clock later: {await self._own(leaver, 'withdraw')}")
        status = ("chain", "status", "--folder", str(get_coordinator_folder(self.plan)))
        lines += (await self.do("chain-status", "prime-coordinator", *status)).splitlines()
        return lines, list(list_missing_events(told, cheaters=self.plan.cheaters))

    async def _own(self, party: DevnetProcess, command: str, *values: str) -> str:
        """A command of a node's owner; the line that says what moved."""
        words = (command, *values, "--folder", str(party.folder), "--rpc", self.rpc)
        text = await self.do(f"{party.name}-{command}", "prime-node", *words)
        return next((line for line in text.splitlines() if "tokens" in line), text.strip())

    async def _read_events(self) -> list[NamedEvent]:
        """All events of the contracts, once the court has finished its open cases."""
        async with self._banking() as (chain, _, at):
            for _ in range(COURT_S):
                newest = await chain.newest()
                events = await chain.events(at.watched, 0, newest.number)
                told = [(event.name, event.values) for event in events]
                if not count_open_slashes(told):
                    break
                await asyncio.sleep(1)
            return told

    async def _pass_unbonding(self) -> None:
        """Moves anvil's clock forward, because a demonstration cannot wait two weeks."""
        async with self._banking() as (chain, _, at):
            delay_s = int(await chain.read(at.registry, "unbondingDelay"))
            await chain.ask("evm_increaseTime", delay_s)
            await chain.ask("evm_mine")

    @asynccontextmanager
    async def _banking(self) -> AsyncIterator[tuple["ChainClient", "Wallet", "NetworkContracts"]]:
        """The bank's account, for a few transactions."""
        from prime_runtime.chain.client import ChainClient
        from prime_runtime.chain.contracts import find_contracts
        from prime_runtime.chain.transactions import GasConfig
        from prime_runtime.chain.wallet import Wallet

        made = ChainFiles(get_coordinator_folder(self.plan)).read_deployment()
        chain = ChainClient(self.rpc)
        try:
            contracts = await find_contracts(chain, NodeId.parse(made["Court"]))
            yield chain, Wallet(chain, self.bank, SystemClock(), gas=GasConfig()), contracts
        finally:
            await chain.close()

    async def _give_gas(self, account: NodeId) -> None:
        from prime_runtime.chain.client import ChainClient
        from prime_runtime.chain.transactions import ChainUnavailable

        chain = ChainClient(self.rpc)
        try:
            for left in reversed(range(RETRIES)):
                try:
                    await chain.ask("anvil_setBalance", checksum_address(account), hex(GAS_WEI))
                    return
                except ChainUnavailable:
                    if not left:
                        raise
                    await asyncio.sleep(RETRY_S)
        finally:
            await chain.close()
