"""`prime-node stake`: what stands behind the node, what its run asks for, and moving value to and fro."""

import asyncio
import random
from typing import Any

from prime_node.commands.context import Context
from prime_node.config import NodeConfig
from prime_node.node_key import load_key
from prime_protocol.entries import Released, Staked, Unbonded
from prime_protocol.errors import LocalError
from prime_protocol.ids import NodeId
from prime_protocol.messages import ENTRY_ENDPOINTS
from prime_protocol.signing import WalletKey
from prime_runtime import key_file
from prime_runtime.clock import SystemClock
from prime_runtime.http_client import open_client
from prime_runtime.http_errors import Refused
from prime_runtime.json_client import NotKnown, open_json_client
from prime_runtime.password import read_first_line
from prime_runtime.wording import read_amount, show_amount

ENDPOINTS = {endpoint.request: endpoint for endpoint in ENTRY_ENDPOINTS}


def show(context: Context) -> int:
    config = _joined(context)
    node = load_key(_with_node_password(context, config)).node
    facts = asyncio.run(_ask(config, node))
    if context.args.json:
        context.screen.print_json(facts)
        return 0
    lines = [
        ("node", facts["node"]),
        ("owner", "itself" if facts["owner"] == facts["node"] else facts["owner"]),
        ("stake", show_amount(facts["stake_nano"])),
        ("needed", f"{show_amount(facts['stake_min_nano'])} for {config.run}"),
        ("on its way back", show_amount(facts["unbonding_nano"])),
        ("balance", f"{show_amount(facts['balance_nano'])} of the owner"),
        ("standing", f"{facts['standing']}" + (f": {facts['way_out']}" if not facts["works"] else "")),
    ]
    context.screen.show(context.screen.facts(lines))
    missing = facts["stake_min_nano"] - facts["stake_nano"]
    if missing > 0:
        context.screen.say(f"\n{show_amount(missing)} are missing: prime-node stake add {show_amount(missing)}")
    return 0


def add(context: Context) -> int:
    amount_nano = read_amount(context.args.amount)
    return _write(
        context, lambda node: Staked(node=node, amount_nano=amount_nano), f"{context.args.amount} tokens are staked"
    )


def remove(context: Context) -> int:
    amount_nano = read_amount(context.args.amount)
    what = f"{context.args.amount} tokens are on their way back; when the delay is over: prime-node stake release"
    return _write(context, lambda node: Unbonded(node=node, amount_nano=amount_nano), what)


def release(context: Context) -> int:
    return _write(context, lambda node: Released(node=node), "what had matured is in the balance")


def _joined(context: Context) -> NodeConfig:
    config = context.load_config(with_password_flag=False)
    if not config.is_complete:
        raise LocalError("this node has not joined a network yet: prime-node start --coordinator URL")
    return config


def _with_node_password(context: Context, config: NodeConfig) -> NodeConfig:
    """--password-file is about --key where that is given."""
    own = context.load_config() if context.args.key is None else config
    return context.with_password(own)


def _write(context: Context, make: Any, what: str) -> int:
    """Have the owner's entry written to the log."""
    config = _joined(context)
    node_key = load_key(_with_node_password(context, config))
    owner = node_key if context.args.key is None else _open_owner(context)
    try:
        index = asyncio.run(_send(config, owner, make(node_key.node)))
    except Refused as error:
        problem = f"{error.refusal.field} {error.refusal.problem}".strip()
        raise LocalError(f"refused: {problem}. See: prime-node stake") from None
    context.screen.say(f"{what} (entry {index} of the log)")
    return 0


def _open_owner(context: Context) -> WalletKey:
    file, path = context.args.key_password_file, context.args.key
    password = read_first_line(file) if file else context.ask_password(f"password of {path}", False)
    if password is None:
        raise LocalError("no terminal to ask for the password; use --password-file")
    return key_file.load(path, password)


async def _send(config: NodeConfig, key: WalletKey, entry: Any) -> int:
    async with open_client(
        key=key,
        network=config.network_id,
        clock=SystemClock(),
        dice=random.Random(),
        limits=config.client,
        authority=config.authority,
    ) as client:
        answer = await client.call(config.server, ENDPOINTS[type(entry)], entry)
        return int(answer.message.index)


async def _ask(config: NodeConfig, node: NodeId) -> dict[str, Any]:
    async with open_json_client(config.coordinator, config.authority) as client:
        try:
            detail = await client.get(f"/nodes/{node}")
            run = await client.get(f"/runs/{config.run}")
        except NotKnown as error:
            raise LocalError(f"the coordinator does not know it yet: {error}. Start the node first") from None
    try:
        summary = detail["summary"]
        standing = next(row for row in detail["standings"] if row["run"] == config.run)
        return {
            "node": str(node),
            "owner": str(summary["owner"]),
            "stake_nano": int(summary["stake_nano"]),
            "stake_min_nano": int(run["terms"]["stake_min_nano"]),
            "unbonding_nano": int(detail["unbonding_nano"]),
            "balance_nano": int(detail["owner_balance_nano"]),
            "standing": str(standing["standing"]),
            "works": standing["works"] is True,
            "way_out": str(standing["way_out"]),
        }
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise LocalError(f"the coordinator's answer is not as it should be: {error!r}") from None
