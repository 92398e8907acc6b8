"""A network of processes that settles on anvil: the coordinator, people with node folders, and what they type."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_coordinator.cli.main import main as coordinate
from prime_coordinator.config import resolve_coordinator_config
from prime_coordinator.home import CoordinatorHome, load_key
from prime_node.cli.main import main as node_main
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.keystore import encrypt_key
from prime_protocol.wire.messages import UploadPurpose
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.chain.contracts import NetworkContracts, find_contracts, run_key
from prime_runtime.chain.transactions import ChainUnavailable
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock
from prime_runtime.files import write_private_file
from support.ledger_network import STAKE, TOKEN, make_registration
from support.processes.anvil import GAS, Anvil, Holder, anvil
from support.processes.coordinator import (
    NETWORK,
    RUN,
    CoordinatorProcess,
    Party,
    compute_weights_root,
    create_run,
    judge_round,
    key_of,
    party,
    terms,
    until_beacon,
    until_drawn,
)
from support.processes.coordinator_main import PASSWORD

BEAT_S = 0.2
UNBONDING_S = 200_000
FUND = 500 * TOKEN
JUDGES = ("val-1", "val-2", "val-3", "val-4")
PATIENCE_S = 240.0
"""For a machine on which much else runs; a quiet one needs seconds."""


@dataclass
class Network:
    """All of it."""

    folder: Path
    chain: Anvil
    process: CoordinatorProcess
    contracts: NetworkContracts
    stack: AsyncExitStack
    bank: Holder
    quorum: int
    people: dict[str, Party] = field(default_factory=dict)

    async def command(self, name: str, *words: str) -> int:
        """What somebody types on the machine of the node with this name."""
        folder = str(self.folder / name)
        return await asyncio.to_thread(node_main, [*words, "--folder", folder, "--rpc", self.chain.rpc])

    async def operate(self, *words: str) -> int:
        return await asyncio.to_thread(coordinate, [*words, "--folder", str(self.process.config.folder)])

    async def fund(self) -> None:
        """By the command, from the bank's wallet."""
        words = ["chain", "fund", RUN, str(FUND // TOKEN), "--key", str(self.folder / "bank.json")]
        assert await self.operate(*words, "--key-password-file", str(self.folder / "operator.password")) == 0

    async def join(self, name: str, role: Role) -> Party:
        """Register, be given gas and tokens, and stake with the command."""
        made = self.people[name] = await self.meet(name)
        await self.chain.give(made.node)
        await self.bank.wallet.send_and_wait("gift", self.contracts.token, "transfer", made.node, 2 * STAKE)
        await made.write(make_registration(made.key, role))
        write_folder(self.folder / name, made.key, self.process, self.contracts)
        assert await self.command(name, "stake", "add", str(STAKE // TOKEN)) == 0
        return made

    async def meet(self, name: str) -> Party:
        made = await self.stack.enter_async_context(party(self.process, name))
        made.domain = self.contracts.domain
        return made

    async def read(self, contract: str, function: str, *values: Any) -> Any:
        return await self.chain.chain.read(getattr(self.contracts, contract), function, *values)

    async def slash_status(self, name: Digest) -> int:
        return int((await self.read("court", "slashOf", name))["status"])

    async def pool(self) -> Any:
        return await self.read("pool", "poolOf", run_key(RUN))


def write_folder(folder: Path, key: WalletKey, process: CoordinatorProcess, contracts: NetworkContracts) -> None:
    """Of a node that has joined; its keystore is cheap to open."""
    folder.mkdir()
    write_private_file(folder / "password", PASSWORD + "\n")
    text = encrypt_key(key, PASSWORD, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2)
    write_private_file(folder / "key.json", text)
    facts = {"coordinator": process.server.url, "coordinator_id": str(process.node), "network": NETWORK, "run": RUN}
    (folder / "run.json").write_text(json.dumps(facts | {"log_key": "", "domain": str(contracts.domain)}))
    write_private_file(folder / "config.toml", f'coordinator = "{process.server.url}"\n')


async def until(what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
    """Patient, but not for ever; `what` is in the failure."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await is_so():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not in {PATIENCE_S} s: {what}") from None


async def keep_mining(chain: Anvil, is_up: asyncio.Event) -> None:
    """A block now and then, as on any chain, while it is up. It may be stopped just when one is asked for."""
    while True:
        await is_up.wait()
        with contextlib.suppress(ChainUnavailable):
            await chain.mine()
        await asyncio.sleep(BEAT_S)


async def found(folder: Path, chain: Anvil, bank: WalletKey, payout_delay_s: int, **changes: Any) -> CoordinatorProcess:
    """The operator's part, by its commands: contracts first, then the network, then a run."""
    home = folder / "coordinator"
    home.mkdir()
    password = folder / "operator.password"
    write_private_file(password, PASSWORD + "\n")
    key = key_of("operator")
    cheap = encrypt_key(key, PASSWORD, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2)
    write_private_file(CoordinatorHome(home).key, cheap)
    await chain.give(key.node)
    words = ["--folder", str(home), "--network", NETWORK, "--password-file", str(password)]
    deploy = [
        "chain",
        "deploy",
        *words,
        "--rpc",
        chain.rpc,
        "--test-token",
        "1000000",
        "--test-token-to",
        str(bank.node),
    ]
    assert await asyncio.to_thread(coordinate, [*deploy, "--unbonding-s", str(UNBONDING_S)]) == 0
    settlement = {"kind": "evm", "rpc": chain.rpc, "confirmations": 1, "poll-ms": 100, "epoch-ms": 1000}
    settlement |= {"slash-window-ms": 3_600_000, "payout-delay-ms": payout_delay_s * 1000, "gas-patience-ms": 3_000}
    flags = [word for name, value in settlement.items() for word in (f"--settlement-{name}", str(value))]
    flags += [
        "--unbonding-ms",
        "190000000",
        "--intervals-tick-ms",
        "100",
        "--intervals-head-ms",
        "100",
        "--listen-port",
        "0",
    ]
    assert (
        await asyncio.to_thread(
            coordinate,
            ["init", *words, *flags, "--randomness", "own", "--randomness-period-s", "1", "--draw-margin-ms", "300"],
        )
        == 0
    )
    config = resolve_coordinator_config(home, {}, {"PRIME_PASSWORD": PASSWORD}).config
    windows = {
        "appeal_ms": 600_000,
        "judgement_ms": 600_000,
        "long_stop_ms": 600_000,
        "verdict_ms": 600_000,
        "appeal_bond_nano": 0,
    }
    await create_run(config, load_key(config), terms(**{"audit_floor": 10_000, **windows, **changes}), fund_nano=0)
    return CoordinatorProcess(config)


@asynccontextmanager
async def network(
    folder: Path, *, payout_delay_s: int = 0, quorum: int = 1, **changes: Any
) -> AsyncIterator[tuple[Network, asyncio.Event]]:
    """Running, with a funded run; the event is set while the chain is up."""
    is_up = asyncio.Event()
    async with AsyncExitStack() as stack:
        chain = await stack.enter_async_context(anvil(folder))
        bank = key_of("bank")
        process = await found(folder, chain, bank, payout_delay_s, quorum=quorum, **changes)
        await process.start()
        stack.push_async_callback(process.kill)
        contracts = await find_contracts(chain.chain, process.config.settlement.court_address)
        await chain.give(bank.node)
        cheap = encrypt_key(bank, PASSWORD, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2)
        write_private_file(folder / "bank.json", cheap)
        holder = Holder(bank, Wallet(chain.chain, bank, SystemClock(), gas=GAS), contracts)
        is_up.set()
        mining = asyncio.create_task(keep_mining(chain, is_up))
        stack.callback(mining.cancel)
        made = Network(folder, chain, process, contracts, stack, holder, quorum)
        await until("the run on the chain", lambda: _is_known(made))
        await made.fund()
        yield made, is_up


async def _is_known(made: Network) -> bool:
    return int(await made.read("anchor", "latestSize", run_key(RUN))) > 0


async def work(made: Network, worker: Party, found: Outcome) -> Digest:
    """One submission of a worker, and what its judges find of it."""
    beacon = await until_beacon(worker)
    lease = await worker.lease()
    root = compute_weights_root(lease.checkpoint_step)
    data, entry = worker.answer(lease, beacon=beacon, root=root, wanted=terms(quorum=1))
    await worker.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
    await worker.write(entry)
    name = compute_receipt_id(entry.receipt)
    await judge(made, name, found)
    return name


async def judge(made: Network, name: Digest, found: Outcome) -> None:
    """In as many rounds as it takes to decide: accepts have to lead by 2·quorum − 1."""
    for _ in range(-(-(2 * made.quorum - 1) // made.quorum)):
        await judge_round(await until_drawn([made.people[each] for each in JUDGES], name), found)
