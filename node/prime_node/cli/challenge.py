"""`prime-node challenge`: compares pending payout roots with a replay of the log, and votes against a wrong one.

Needs web3; imported only by the command.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prime_node.cli.context import NodeCliContext
from prime_node.cli.stake import load_joined_config, load_owner_key, settles_on_chain, with_node_password
from prime_node.config import NodeConfig
from prime_node.settlement.chain_session import ChainSession, open_chain_session
from prime_node.settlement.challenges import (
    CoordinatorLog,
    LogCopy,
    MirrorFolder,
    check_anchor,
    check_roots,
    fetch_payout_tree,
    find_head_root,
    read_pending_roots,
    vote,
    wait_for_entries,
)
from prime_node.settlement.payout_check import PostedRoot, explain_root
from prime_node.storage.keys import load_key
from prime_protocol.errors import LocalError
from prime_protocol.ledger.payout_tree import PayoutTree
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import open_client

EXIT_WRONG = 3


def challenge(context: NodeCliContext) -> int:
    if not settles_on_chain(context):
        raise LocalError("this network uses no chain: its payouts are entries of the log, which every replay checks")
    config = load_joined_config(context)
    rpc = context.args.rpc_url or config.rpc
    if not rpc:
        raise LocalError("give the chain's RPC URL with --rpc, or set rpc")
    node_key = load_key(with_node_password(context, config))
    owner = node_key if context.args.key is None else load_owner_key(context)
    return asyncio.run(_check_and_vote(context, config, node_key.node, owner, rpc))


async def _check_and_vote(context: NodeCliContext, config: NodeConfig, node: NodeId, owner: WalletKey, rpc: str) -> int:
    args, say = context.args, context.screen.print_line
    async with open_chain_session(config, owner, rpc, SystemClock()) as session:
        posted = await read_pending_roots(session, config.run_id)
        if not posted:
            say(f"no payout root of {config.run_id} can be challenged: none is pending")
            return 0
        if args.unverified:
            wrong = posted[0], await find_head_root(session, config.run_id, posted[0].head_size)
        else:
            found = await _find_wrong(context, config, session, posted, owner)
            if found is None:
                return 0
            wrong = found
        if args.dry_run:
            say("not voted: --dry-run")
            return EXIT_WRONG
        votes, is_void = await vote(session, config.run_id, node, *wrong)
        terms = await session.read_terms(config.run_id)
        end = "it is void, with all roots after it" if is_void else f"{terms['quorum']} make it void"
        say(f"voted against the root of epoch {wrong[0].epoch}: {votes} owners so far; {end}")
    return 0


async def _find_wrong(
    context: NodeCliContext, config: NodeConfig, session: ChainSession, posted: list[PostedRoot], key: WalletKey
) -> tuple[PostedRoot, Digest] | None:
    """The oldest root that the log does not give, and the head it names."""
    scale, say = session.contracts.scale, context.screen.print_line
    async with open_log(config, context.args.mirror, key) as source:
        with context.screen.spinner(f"replaying {posted[-1].head_size:,} entries"):
            await wait_for_entries(source, posted[-1].head_size, SystemClock())
            checked = await check_roots(
                source,
                posted,
                config.run_id,
                network=config.network_id,
                coordinator=config.server.node,
                scale=scale,
            )
    await check_anchor(session, config.run_id, checked[-1].posted.head_size, checked[-1].head_root)
    for each in checked:
        table = None if each.is_right else await _fetch_table(config, each.posted.epoch, scale)
        for line in explain_root(each, table, scale=scale):
            say(line)
    return next(((each.posted, each.head_root) for each in checked if not each.is_right), None)


async def _fetch_table(config: NodeConfig, epoch: int, scale: int) -> PayoutTree | None:
    """For the explanation only: the accused may serve none."""
    try:
        return await fetch_payout_tree(config, epoch, scale)
    except LocalError:
        return None


@asynccontextmanager
async def open_log(config: NodeConfig, mirror: Path | None, key: WalletKey) -> AsyncIterator[LogCopy]:
    if mirror is not None:
        yield MirrorFolder(mirror)
        return
    async with open_client(
        key=key, network=config.network_id, clock=SystemClock(), limits=config.client, authority=config.authority
    ) as client:
        yield CoordinatorLog(client, config.server)
