"""`prime-coordinator chain`: deploy contracts, show their state, fund runs, reclaim funds, anchor the log.

`reclaim` needs only the chain: the coordinator of the run may be gone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from prime_coordinator.cli.admin import read_address, read_run
from prime_coordinator.cli.context import OperatorClient, OperatorContext, find_url
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import CoordinatorHome, create_key, load_key, lock_home
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_runtime.chain.client import ChainClient
from prime_runtime.chain.contracts import find_contracts, run_key
from prime_runtime.chain.payments import Payer, Payment, approve_and_call, wait_until_logged
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted, GasConfig
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_amount, parse_amount
from prime_runtime.http.coordinator_api import open_json_client
from prime_runtime.keys import load_key_file, read_password_file

DEPLOY_CONFIRMATIONS = 2
FUNDING = "the funding"
CHALLENGES_SHOWN = 5


def deploy(context: OperatorContext) -> int:
    """Needs no coordinator: the contracts come before the network's first entry."""
    from prime_coordinator.settlement.deployment import Deployer, DeploymentPlan

    args, folder = context.args, context.folder.absolute()
    if CoordinatorHome(folder).config.exists():
        raise LocalError(
            f"there is a coordinator in {folder} already; contracts come before its network: choose another"
        )
    wanted = DeploymentPlan(
        network=read_network(args.network),
        unbonding_s=args.unbonding_s,
        token=read_address(args.token) if args.token else None,
        supply=parse_amount(args.test_token) if args.test_token else 0,
        supply_to=read_address(args.test_token_to) if args.test_token_to else None,
    )
    if (wanted.token is None) == (wanted.supply == 0):
        raise LocalError(
            "give --token ADDRESS of the token that stake and pay are in, or --test-token TOKENS to make one"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = context.with_password(CoordinatorConfig(folder=folder, password_file=args.password_file), confirm=True)
    files = ChainFiles(folder)

    async def work(chain: ChainClient) -> None:
        with lock_home(folder):
            key = load_key(config) if CoordinatorHome(folder).key.exists() else create_key(config)
            wallet = Wallet(
                chain,
                key,
                SystemClock(),
                gas=GasConfig(fee_gwei_max=args.fee_gwei_max),
                confirmations=DEPLOY_CONFIRMATIONS,
                path=files.transactions,
            )
            contracts = await Deployer(chain, wallet, files, wanted, context.screen.print_line).deploy()
        say = context.screen.print_line
        say(f"operator     {key.node}")
        say(f"vault        {contracts.vault.address}")
        say(f"reward pool  {contracts.pool.address}")
        say(
            f"now: prime-coordinator init --folder {folder} --network {wanted.network} --settlement-kind evm"
            f" --settlement-rpc {args.rpc}"
        )

    return run_with_chain(args.rpc, None, work)


def status(context: OperatorContext) -> int:
    """From the chain itself, and from the coordinator if it runs."""
    config = _evm_config(context)
    settlement, ticker = config.settlement, config.ticker

    async def work(chain: ChainClient) -> None:
        found = await asyncio.to_thread(_settlement_lines, context)
        try:
            contracts = await find_contracts(chain, settlement.court_address)
        except ChainUnavailable:
            context.screen.show(context.screen.key_value_table(found))
            raise
        head = await chain.newest()
        operator = str(await chain.read(contracts.registry, "operator"))
        lines = [
            *found,
            ("chain", f"{contracts.chain_id}, block {head.number}"),
            ("court", str(contracts.court.address)),
            ("vault", f"{contracts.vault.address}, holds {await _held(chain, contracts, contracts.vault)} {ticker}"),
            (
                "reward pool",
                f"{contracts.pool.address}, holds {await _held(chain, contracts, contracts.pool)} {ticker}",
            ),
            ("operator", f"{operator}, {await chain.balance_wei(read_address(operator.lower())) / 10**18:.4f} for gas"),
        ]
        for run in context.args.run or await _runs(context):
            lines += await _run_lines(chain, contracts, run)
        context.screen.show(context.screen.key_value_table(lines))

    bearer = settlement.rpc_bearer.reveal() if settlement.rpc_bearer else None
    return run_with_chain(settlement.rpc, bearer, work)


def fund(context: OperatorContext) -> int:
    """From any wallet into the run's pool on the chain. The coordinator credits it to the pool in the log."""
    args, config = context.args, _evm_config(context)
    run, amount_nano, url = read_run(args.run), parse_amount(args.amount), args.url or find_url(context)
    key = load_key_file(args.key, read_password_file(args.key_password_file))
    book = ChainFiles(config.folder).get_wallet_path(key.node)

    async def work(chain: ChainClient) -> None:
        at = await find_contracts(chain, config.settlement.court_address)
        operator = NodeId.parse(str(await chain.read(at.registry, "operator")).lower())
        if key.node == operator:
            raise LocalError("the running coordinator uses this key on the chain; fund from another wallet")
        clock = SystemClock()
        wallet = Wallet(
            chain,
            key,
            clock,
            gas=config.settlement.gas,
            confirmations=config.settlement.confirmations,
            path=book,
        )
        await wallet.update_pending(await chain.newest())
        units, key_of_run = amount_nano * at.scale, run_key(run)
        call = ("fund", key_of_run, units)
        payer = Payer(chain, wallet, at.pool, book.with_name(f"{key.node}-funding.json"))
        found = await payer.pay(
            Payment(FUNDING, "Funded", f"0x{key_of_run.hex()}", units),
            lambda: approve_and_call(chain, wallet, at, FUNDING, at.pool, units, call),
        )
        context.screen.print_line("it is in the pool on the chain; waiting for the log")
        async with open_json_client(url, args.authority) as client:
            index = await wait_until_logged(client, await payer.reference(at.chain_id, found), clock)
        payer.mark_logged()
        context.screen.print_line(f"{args.amount} {config.ticker} moved to the pool of run {run} (entry {index})")

    bearer = config.settlement.rpc_bearer.reveal() if config.settlement.rpc_bearer else None
    return run_with_chain(config.settlement.rpc, bearer, work)


def anchor(context: OperatorContext) -> int:
    """The running coordinator does it: two processes must not use its key at once."""
    _evm_config(context)
    client = OperatorClient(context)
    if not client.query("status", {})["runs"]:
        raise LocalError("heads are anchored per run, and there is no run yet: prime-coordinator run create")
    size = client.request_anchor().size
    problem = client.query("settlement", {})["problem"]
    when = f"when the chain is back ({problem})" if problem else "at the next poll of the chain"
    context.screen.print_line(f"the log's {size} entries are anchored {when}")
    return 0


# --- Small parts ------------------------------------------------------------------------------------------------------


def run_with_chain(rpc: str, bearer: str | None, work: Callable[[ChainClient], Awaitable[None]]) -> int:
    async def run() -> None:
        chain = ChainClient(rpc, bearer=bearer)
        try:
            await work(chain)
        finally:
            await chain.close()

    asyncio.run(run())
    return 0


def _evm_config(context: OperatorContext) -> CoordinatorConfig:
    config = context.load_config()
    if not config.settlement.is_evm:
        raise LocalError("this network's value is in its log alone: settlement.kind is embedded")
    return config


async def _held(chain: ChainClient, contracts: Any, holder: Any) -> str:
    units = int(await chain.read(contracts.token, "balanceOf", holder.address))
    return format_amount(units // contracts.scale)


def _settlement_lines(context: OperatorContext) -> list[tuple[str, str]]:
    """What the running coordinator reports."""
    try:
        found = OperatorClient(context).query("settlement", {})
    except LocalError:
        return [("coordinator", "is not running")]
    state = f"waits: {found['problem']}" if found["problem"] else f"has followed the chain to block {found['followed']}"
    waiting = [("pending", purpose) for purpose in found["pending"]]
    refused = [("refused", refused) for refused in found["refused"]]
    return [("coordinator", state), *waiting, *refused, *_challenge_lines(found["promises"])]


def _challenge_lines(promises: list[Any]) -> list[tuple[str, str]]:
    """Payout roots that validators speak against, newest first."""
    lines = []
    for row in promises:
        if row["votes"] or row["void"]:
            state = "VOID: it is never paid" if row["void"] else f"CHALLENGED by {row['votes']}"
            lines.append(("payout root", f"{row['root']}, epoch {row['epoch']} at entry {row['head_size']}: {state}"))
    return lines[:CHALLENGES_SHOWN]


async def _runs(context: OperatorContext) -> list[str]:
    try:
        status = await asyncio.to_thread(OperatorClient(context).query, "status", {})
    except LocalError:
        return []  # not running: only the chain is shown
    return [row["run"] for row in status["runs"]]


async def _run_lines(chain: ChainClient, contracts: Any, run: str) -> list[tuple[str, str]]:
    key, scale = run_key(run), contracts.scale
    try:
        await chain.read(contracts.registry, "runOf", key)
    except ContractReverted:
        return [(f"run {run}", "is not on the chain yet")]
    size = await chain.read(contracts.anchor, "latestSize", key)
    pool = await chain.read(contracts.pool, "poolOf", key)
    paid = f"epoch {pool['epoch']}, {format_amount(pool['promised'] // scale)} promised in all"
    rest = f"{format_amount(pool['claimed'] // scale)} claimed, {format_amount(pool['held'] // scale)} in the pool"
    frozen = await chain.read(contracts.anchor, "frozenAt", key)
    warning = ", FROZEN: a fork of the log was proven" if frozen else ""
    if pool["abandoned"]:
        warning += ", ABANDONED: no payout root came for so long that a funder took its money back; close the run"
    return [(f"run {run}", f"{size} entries anchored; {paid}, {rest}{warning}")]


def read_network(text: str) -> NetworkId:
    try:
        return NetworkId(text)
    except RemoteError as error:
        raise LocalError(f"{text!r} is not the name of a network: it {error.problem}") from None


RECLAIM_REFUSALS = {
    "RunNotOver": "the run is not over: funds come back once it was closed for one unbonding delay, its log was proven"
    " to have forked, or no payout root came for four unbonding delays",
    "NothingFunded": "this wallet has nothing in the run's pool, or has already reclaimed it",
    "RunUnknown": "the chain has no such run: check the name and --court",
}


def reclaim(context: OperatorContext) -> int:
    """The unpaid rest of the pool, in proportion to what each funder put in."""
    args = context.args
    run, court = read_run(args.run), read_address(args.court)
    key = load_key_file(args.key, read_password_file(args.key_password_file))

    async def work(chain: ChainClient) -> None:
        at = await find_contracts(chain, court)
        wallet = Wallet(chain, key, SystemClock(), gas=GasConfig(fee_gwei_max=args.fee_gwei_max))
        try:
            mined = await wallet.send_and_wait("the reclaim", at.pool, "reclaim", run_key(run))
        except ContractReverted as error:
            raise LocalError(RECLAIM_REFUSALS.get(error.name, str(error))) from None
        events = await chain.events([at.pool], mined.block, mined.block)
        found = [each for each in events if each.transaction == mined.transaction and each.name == "Reclaimed"]
        amount = int(found[0].values["amount"])
        context.screen.print_line(f"{format_amount(amount // at.scale)} of {run} are back in the wallet {key.node}")

    return run_with_chain(args.rpc, None, work)
