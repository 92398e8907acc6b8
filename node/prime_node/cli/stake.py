"""`prime-node stake`, `unstake`, `withdraw`, `claim` and `appeal`: the node's stake and balance.

On a network that settles on a chain, ChainStaking moves the value there; see chain.py.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prime_node.cli.context import NodeCliContext
from prime_node.config import NodeConfig
from prime_node.storage.keys import load_key
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Appealed, Released, Staked, Unbonded
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.messages import ENTRY_ENDPOINTS
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_amount, parse_amount
from prime_runtime.http.client import CallRefused, open_client
from prime_runtime.http.coordinator_api import NotFound, open_json_client
from prime_runtime.keys import load_key_file, read_password_file

if TYPE_CHECKING:
    from prime_node.cli.chain import ChainStaking


PENALTIES_SHOWN = 10
"""Newest scores of a node among which its penalties are shown."""
ENDPOINTS = {endpoint.request: endpoint for endpoint in ENTRY_ENDPOINTS}


def show(context: NodeCliContext) -> int:
    config = load_joined_config(context)
    node = load_key(with_node_password(context, config)).node
    facts = asyncio.run(fetch_stake(config, node))
    if context.args.json:
        context.screen.print_json(facts)
        return 0
    lines = [
        ("node", facts["node"]),
        ("owner", "itself" if facts["owner"] == facts["node"] else facts["owner"]),
        ("stake", format_amount(facts["stake_nano"])),
        ("minimum", f"{format_amount(facts['stake_min_nano'])} for {config.run_id}"),
        ("unbonding", format_amount(facts["unbonding_nano"])),
        ("balance", f"{format_amount(facts['balance_nano'])} of the owner"),
        ("eligibility", f"{facts['eligibility']}" + (f": {facts['remedy']}" if not facts["is_eligible"] else "")),
    ]
    lines += [("penalty", describe_penalty(each)) for each in facts["penalties"]]
    context.screen.show(context.screen.key_value_table(lines))
    missing = facts["stake_min_nano"] - facts["stake_nano"]
    if missing > 0:
        context.screen.print_line("\n" + explain_missing_stake(missing, facts))
    return 0


def explain_missing_stake(missing_nano: int, facts: Mapping[str, Any]) -> str:
    """What to do, and where the value comes from in this network if the balance is too small."""
    amount = format_amount(missing_nano)
    add = f"prime-node stake add {amount}"
    lacking_nano = missing_nano - facts["balance_nano"]
    if lacking_nano <= 0:
        return f"the stake is {amount} below the minimum: {add}"
    ticker, owner = facts["ticker"], facts["owner"]
    text = f"the stake is {amount} {ticker} below the minimum, and the owner's balance is {format_amount(lacking_nano)}"
    if facts["is_on_chain"]:
        return f"{text} short: send {ticker} tokens on the chain to {owner}, then {add}"
    if facts["faucet_nano"]:
        given = format_amount(facts["faucet_nano"])
        return f"{text} short. This network's faucet gives each new node {given} once; ask its operator for more"
    return (
        f"{text} short. In this network the operator records payments: ask for one to {owner}"
        f" (prime-coordinator deposit {owner} {format_amount(lacking_nano)} --reference TEXT), then {add}"
    )


def describe_penalty(penalty: Mapping[str, Any]) -> str:
    lost = format_amount(penalty["penalty_nano"])
    return f"{lost} over a refuted verdict on {penalty['submission']} (entry {penalty['index']} of the log)"


def add(context: NodeCliContext) -> int:
    amount_nano = parse_amount(context.args.amount)
    if settles_on_chain(context):
        return open_chain_staking(context).add(amount_nano)
    return write_owner_entry(
        context, lambda node: Staked(node=node, amount_nano=amount_nano), f"staked {context.args.amount}"
    )


def remove(context: NodeCliContext) -> int:
    amount_nano = parse_amount(context.args.amount)
    if settles_on_chain(context):
        return open_chain_staking(context).remove(amount_nano)
    what = f"unbonding {context.args.amount}; when the delay is over: prime-node stake release"
    return write_owner_entry(context, lambda node: Unbonded(node=node, amount_nano=amount_nano), what)


def release(context: NodeCliContext) -> int:
    if settles_on_chain(context):
        return open_chain_staking(context).withdraw()
    return write_owner_entry(context, lambda node: Released(node=node), "matured stake is in the balance")


def claim(context: NodeCliContext) -> int:
    if not settles_on_chain(context):
        raise LocalError("this network uses no chain; its payments are in the balance already: see prime-node stake")
    staking = open_chain_staking(context)
    return staking.claim_bounty() if context.args.bounty else staking.claim()


def appeal(context: NodeCliContext) -> int:
    try:
        submission = Digest.parse(context.args.submission)
    except RemoteError as error:
        raise LocalError(f"{context.args.submission!r} is not the id of a submission: it {error.problem}") from None
    if settles_on_chain(context):
        return open_chain_staking(context).appeal(submission, context.args.reason)
    config = load_joined_config(context)
    entry = Appealed(submission=submission, reason=context.args.reason)
    return write_owner_entry(
        context, lambda node: entry, "the slash is appealed; other validators will check it", run=config.run_id
    )


def settles_on_chain(context: NodeCliContext) -> bool:
    return load_joined_config(context).signing_domain != EMBEDDED_DOMAIN


def open_chain_staking(context: NodeCliContext) -> "ChainStaking":
    """The commands' implementation on a chain; web3 is imported only here."""
    from prime_node.cli.chain import ChainStaking

    config = load_joined_config(context)
    node_key = load_key(with_node_password(context, config))
    owner = node_key if context.args.key is None else load_owner_key(context)
    return ChainStaking(config, node_key, owner, context.args.rpc_url or config.rpc, context.screen.print_line)


def load_joined_config(context: NodeCliContext) -> NodeConfig:
    config = context.load_config(with_password_flag=False)
    if not config.is_complete:
        raise LocalError("this node has not joined a network yet: prime-node start --coordinator URL")
    return config


def with_node_password(context: NodeCliContext, config: NodeConfig) -> NodeConfig:
    """With --key, --password-file is for that key and not for the node's."""
    own = context.load_config() if context.args.key is None else config
    return context.with_password(own)


def write_owner_entry(context: NodeCliContext, make: Any, what: str, run: RunId | None = None) -> int:
    """Send an entry signed by the owner to the log."""
    config = load_joined_config(context)
    node_key = load_key(with_node_password(context, config))
    owner = node_key if context.args.key is None else load_owner_key(context)
    try:
        index = asyncio.run(send_entry(config, owner, make(node_key.node), run))
    except CallRefused as error:
        problem = f"{error.refusal.field} {error.refusal.problem}".strip()
        raise LocalError(f"refused: {problem}. See: prime-node stake") from None
    context.screen.print_line(f"{what} (entry {index} of the log)")
    return 0


def load_owner_key(context: NodeCliContext) -> WalletKey:
    file, path = context.args.key_password_file, context.args.key
    password = read_password_file(file) if file else context.ask_password(f"password of {path}", False)
    if password is None:
        raise LocalError("no terminal to ask for the password; use --password-file")
    return load_key_file(path, password)


async def send_entry(config: NodeConfig, key: WalletKey, entry: Any, run: RunId | None = None) -> int:
    """The entry's index in the log; Refused where a rule is against it."""
    async with open_client(
        key=key,
        network=config.network_id,
        clock=SystemClock(),
        limits=config.client,
        authority=config.authority,
    ) as client:
        answer = await client.call(config.server, ENDPOINTS[type(entry)], entry, run=run)
        return int(answer.message.index)


async def fetch_stake(config: NodeConfig, node: NodeId) -> dict[str, Any]:
    async with open_json_client(config.coordinator, config.authority) as client:
        try:
            await client.wait_for_index()
            status, settlement = await client.get("/status"), await client.get("/settlement")
            detail = await client.get(f"/nodes/{node}")
            run = await client.get(f"/runs/{config.run_id}")
            scores = await client.get("/log", kind="ValidatorScored", about=str(node), limit=str(PENALTIES_SHOWN))
            scored = {row["idx"]: await client.get(f"/log/{row['idx']}") for row in scores["entries"]["rows"]}
        except NotFound as error:
            raise LocalError(f"the coordinator does not know it yet: {error}. Start the node first") from None
    try:
        summary = detail["summary"]
        eligibility = next(row for row in detail["work"]["eligibility"] if row["run"] == config.run_id)
        return {
            "ticker": str(status["ticker"]),
            "faucet_nano": int(status["faucet_nano"]),
            "is_on_chain": settlement["kind"] == "evm",
            "node": str(node),
            "owner": str(summary["owner"]),
            "stake_nano": int(summary["stake_nano"]),
            "stake_min_nano": int(run["terms"]["stake_min_nano"]),
            "unbonding_nano": int(detail["unbonding_nano"]),
            "balance_nano": int(detail["owner_balance_nano"]),
            "eligibility": str(eligibility["eligibility"]),
            "is_eligible": eligibility["is_eligible"] is True,
            "remedy": str(eligibility["remedy"]),
            "penalties": [
                {
                    "index": int(index),
                    "submission": str(entry["body"]["submission"]),
                    "penalty_nano": int(entry["body"]["penalty_nano"]),
                }
                for index, entry in scored.items()
                if entry["body"]["penalty_nano"]
            ],
        }
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise LocalError(f"the coordinator's answer is malformed: {error!r}") from None
