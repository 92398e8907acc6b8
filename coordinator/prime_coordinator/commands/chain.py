"""`prime-coordinator chain`: make the contracts of a network, look at them, and bring the log there at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from prime_coordinator.commands.context import Context
from prime_coordinator.commands.line import Line, find_url
from prime_coordinator.commands.orders import read_address, read_run
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import Home, create_key, load_key, locked
from prime_coordinator.settlement.chain_files import ChainFiles
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import NetworkId, NodeId
from prime_runtime import key_file
from prime_runtime.chain.caps import GasConfig
from prime_runtime.chain.client import Chain
from prime_runtime.chain.contracts import find_contracts, run_key
from prime_runtime.chain.errors import ChainAway, ChainRefused
from prime_runtime.chain.payments import Payer, Payment, until_booked
from prime_runtime.chain.spending import spend
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock
from prime_runtime.json_client import open_json_client
from prime_runtime.password import read_first_line
from prime_runtime.wording import read_amount, show_amount

DEPLOY_CONFIRMATIONS = 2
FUNDING = "the funding"


def deploy(context: Context) -> int:
    """Also where there is no coordinator yet: the contracts come before the network's first entry."""
    from prime_coordinator.settlement.deployment import Deployer, Wanted

    args, folder = context.args, context.folder.absolute()
    if Home(folder).config.exists():
        raise LocalError(
            f"there is a coordinator in {folder} already; contracts come before its network: choose another"
        )
    wanted = Wanted(
        network=read_network(args.network),
        unbonding_s=args.unbonding_s,
        token=read_address(args.token) if args.token else None,
        supply=read_amount(args.test_token) if args.test_token else 0,
        supply_to=read_address(args.test_token_to) if args.test_token_to else None,
    )
    if (wanted.token is None) == (wanted.supply == 0):
        raise LocalError(
            "give --token ADDRESS of the token that stake and pay are in, or --test-token TOKENS to make one"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = context.with_password(CoordinatorConfig(folder=folder, password_file=args.password_file), confirm=True)
    files = ChainFiles(folder)

    async def work(chain: Chain) -> None:
        with locked(folder):
            key = load_key(config) if Home(folder).key.exists() else create_key(config)
            wallet = Wallet(
                chain,
                key,
                SystemClock(),
                gas=GasConfig(fee_gwei_max=args.fee_gwei_max),
                confirmations=DEPLOY_CONFIRMATIONS,
                book=files.transactions,
            )
            contracts = await Deployer(chain, wallet, files, wanted, context.screen.say).deploy()
        say = context.screen.say
        say(f"operator     {key.node}")
        say(f"vault        {contracts.vault.address}")
        say(f"reward pool  {contracts.pool.address}")
        say(
            f"now: prime-coordinator init --folder {folder} --network {wanted.network} --settlement-kind evm"
            f" --settlement-rpc {args.rpc}"
        )

    return with_chain(args.rpc, None, work)


def status(context: Context) -> int:
    """From the chain itself, and from the coordinator where it runs."""
    config = _evm_config(context)
    settlement = config.settlement

    async def work(chain: Chain) -> None:
        told = await asyncio.to_thread(_settlement_lines, context)
        try:
            contracts = await find_contracts(chain, settlement.court_address)
        except ChainAway:
            context.screen.show(context.screen.facts(told))
            raise
        head = await chain.newest()
        operator = str(await chain.read(contracts.registry, "operator"))
        lines = [
            *told,
            ("chain", f"{contracts.chain_id}, block {head.number}"),
            ("court", str(contracts.court.address)),
            ("vault", f"{contracts.vault.address}, holds {await _held(chain, contracts, contracts.vault.address)}"),
            ("reward pool", f"{contracts.pool.address}, holds {await _held(chain, contracts, contracts.pool.address)}"),
            ("operator", f"{operator}, {await chain.balance_wei(read_address(operator.lower())) / 10**18:.4f} for gas"),
        ]
        for run in context.args.run or await _runs(context):
            lines += await _run_lines(chain, contracts, run)
        context.screen.show(context.screen.facts(lines))

    bearer = settlement.rpc_bearer.reveal() if settlement.rpc_bearer else None
    return with_chain(settlement.rpc, bearer, work)


def fund(context: Context) -> int:
    """From any wallet: into the run's pool on the chain. The coordinator books it into the pool in the log."""
    args, config = context.args, _evm_config(context)
    run, amount_nano, url = read_run(args.run), read_amount(args.amount), args.url or find_url(context)
    key = key_file.load(args.key, read_first_line(args.key_password_file))
    book = ChainFiles(config.folder).purse(key.node)

    async def work(chain: Chain) -> None:
        at = await find_contracts(chain, config.settlement.court_address)
        operator = NodeId.parse(str(await chain.read(at.registry, "operator")).lower())
        if key.node == operator:
            raise LocalError("the running coordinator uses its own key on the chain; fund from another wallet")
        clock = SystemClock()
        wallet = Wallet(
            chain,
            key,
            clock,
            gas=config.settlement.gas,
            confirmations=config.settlement.confirmations,
            book=book,
        )
        await wallet.tend(await chain.newest())
        units, key_of_run = amount_nano * at.scale, run_key(run)
        call = ("fund", key_of_run, units)
        payer = Payer(chain, wallet, at.pool, book.with_name(f"{key.node}-funding.json"))
        told = await payer.pay(
            Payment(FUNDING, "Funded", f"0x{key_of_run.hex()}", units),
            lambda: spend(chain, wallet, at, FUNDING, at.pool, units, call),
        )
        context.screen.say("it is in the pool on the chain; waiting until the log knows")
        async with open_json_client(url, args.authority) as client:
            index = await until_booked(client, await payer.reference(at.chain_id, told), clock)
        payer.end()
        context.screen.say(f"{args.amount} tokens are in the pool of run {run} (entry {index})")

    bearer = config.settlement.rpc_bearer.reveal() if config.settlement.rpc_bearer else None
    return with_chain(config.settlement.rpc, bearer, work)


def anchor(context: Context) -> int:
    """The running coordinator does it: two must not use its key at once."""
    _evm_config(context)
    line = Line(context)
    if not line.ask("runs", {})["rows"]:
        raise LocalError("heads are anchored for each run, and there is none yet: prime-coordinator run create")
    size = line.hasten().size
    problem = line.ask("settlement", {})["problem"]
    when = f"when the chain is back ({problem})" if problem else "at the next look at the chain"
    context.screen.say(f"the log's {size} entries are anchored {when}")
    return 0


# --- Small parts ------------------------------------------------------------------------------------------------------


def with_chain(rpc: str, bearer: str | None, work: Callable[[Chain], Awaitable[None]]) -> int:
    async def run() -> None:
        chain = Chain(rpc, bearer=bearer)
        try:
            await work(chain)
        finally:
            await chain.close()

    asyncio.run(run())
    return 0


def _evm_config(context: Context) -> CoordinatorConfig:
    config = context.load_config()
    if not config.settlement.is_evm:
        raise LocalError("this network's value lives in its log alone: settlement.kind is embedded")
    return config


async def _held(chain: Chain, contracts: Any, account: Any) -> str:
    units = int(await chain.read(contracts.token, "balanceOf", account))
    return f"{show_amount(units // contracts.scale)} tokens"


def _settlement_lines(context: Context) -> list[tuple[str, str]]:
    """What the running coordinator says of itself."""
    try:
        told = Line(context).ask("settlement", {})
    except LocalError:
        return [("coordinator", "is not running")]
    state = f"waits: {told['problem']}" if told["problem"] else f"has followed the chain to block {told['followed']}"
    waiting = [("on its way", purpose) for purpose in told["on_their_way"]]
    return [("coordinator", state), *waiting, *(("put off", refused) for refused in told["put_off"])]


async def _runs(context: Context) -> list[str]:
    try:
        rows = await asyncio.to_thread(Line(context).ask, "runs", {})
    except LocalError:
        return []  # it is not running: the chain alone is shown
    return [row["run"] for row in rows["rows"]]


async def _run_lines(chain: Chain, contracts: Any, run: str) -> list[tuple[str, str]]:
    key, scale = run_key(run), contracts.scale
    try:
        await chain.read(contracts.registry, "runOf", key)
    except ChainRefused:
        return [(f"run {run}", "is not on the chain yet")]
    size = await chain.read(contracts.anchor, "latestSize", key)
    pool = await chain.read(contracts.pool, "poolOf", key)
    paid = f"epoch {pool['epoch']}, {show_amount(pool['promised'] // scale)} promised in all"
    rest = f"{show_amount(pool['claimed'] // scale)} claimed, {show_amount(pool['held'] // scale)} in the pool"
    frozen = await chain.read(contracts.anchor, "frozenAt", key)
    warning = ", FROZEN: the log told two histories" if frozen else ""
    if pool["abandoned"]:
        warning += ", ABANDONED: no payout root came for so long that a funder took its money back; close the run"
    return [(f"run {run}", f"{size} entries anchored; {paid}, {rest}{warning}")]


def read_network(text: str) -> NetworkId:
    try:
        return NetworkId(text)
    except RemoteError as error:
        raise LocalError(f"{text!r} is not the name of a network: it {error.problem}") from None
