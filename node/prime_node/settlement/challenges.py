"""Replays the log up to the heads that pending payout roots name, and votes against wrong roots on the chain.

The coordinator is the accused: it only serves the entries, which count because the replay ends in the anchored head.
Votes are transactions of each owner, counted by the contract, so the coordinator cannot hold them back.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from prime_node.config import NodeConfig
from prime_node.settlement.chain_session import ChainSession
from prime_node.settlement.payout_check import CheckedRoot, PostedRoot, check_root
from prime_protocol.constants import NOTE_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.payout_tree import PayoutTree
from prime_protocol.ledger.replay import Ledger
from prime_protocol.log.tiles import CHECKPOINT_PATH, EntryBundle, decode_bundle, list_new_bundles
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_runtime.chain.contracts import run_key
from prime_runtime.chain.transactions import ContractReverted
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.coordinator_api import NotFound, open_json_client
from prime_runtime.log_files import BUNDLE_BYTES_MAX, read_leaves, read_tree_head

CHALLENGE = "the challenge"
COPY_POLL_MS = 500
COPY_WAIT_MS = 20_000
"""How long a copy of the log may lag behind an anchored head: the coordinator anchors it before its mirror has it."""
BLOCKS_AT_ONCE = 2_000
"""Blocks per request; public JSON-RPC nodes refuse more."""


class LogCopy(Protocol):
    """A copy of the log. Nothing it says is trusted: every entry is checked, and the last head is the chain's."""

    async def read_size(self) -> int: ...

    def read(self, size: int) -> AsyncIterator[bytes]:
        """Entries 0 to `size`, the size that the copy has."""
        ...


class MirrorFolder:
    """A mirror on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read_size(self) -> int:
        return parse_size(read_tree_head(self._folder))

    async def read(self, size: int) -> AsyncIterator[bytes]:
        for leaf in read_leaves(self._folder, size):
            yield leaf


class CoordinatorLog:
    """What the coordinator serves."""

    def __init__(self, client: HttpClient, server: ServerAddress) -> None:
        self._client = client
        self._server = server

    async def read_size(self) -> int:
        return parse_size(await self._get(CHECKPOINT_PATH, NOTE_BYTES_MAX))

    async def read(self, size: int) -> AsyncIterator[bytes]:
        for bundle in list_new_bundles(0, size):
            for leaf in await self._read_bundle(bundle):
                yield leaf

    async def _read_bundle(self, bundle: EntryBundle) -> list[bytes]:
        try:
            return decode_bundle(bundle, await self._get(bundle.path, BUNDLE_BYTES_MAX))
        except NotFound:
            if bundle.width == TILE_HASHES:
                raise
        # It has become full since the head was read.
        return (await self._read_bundle(EntryBundle(bundle.index, TILE_HASHES)))[: bundle.width]

    async def _get(self, path: str, bytes_max: int) -> bytes:
        raw = await self._client.get(self._server, f"/log/{path}", bytes_max=bytes_max)
        if raw is None:
            raise NotFound(f"{self._server.url} does not serve {path} of the log: use --mirror with another copy")
        return raw


def parse_size(note: bytes) -> int:
    return TreeHead.parse(SignedNote.parse(note).text).size


async def read_pending_roots(session: ChainSession, run: RunId) -> list[PostedRoot]:
    """The roots that can still be challenged, oldest first."""
    chain, pool, key = session.chain, session.contracts.pool, run_key(run)
    now_s, found = (await chain.newest()).time_s, list[PostedRoot]()
    for epoch in range(int((await chain.read(pool, "poolOf", key))["epoch"]), 0, -1):
        seen = await chain.read(pool, "promiseOf", key, epoch)
        if seen["maturesAt"] <= now_s:
            break
        found.append(PostedRoot(epoch, Digest(bytes(seen["root"])), seen["total"], seen["headSize"], seen["maturesAt"]))
    return found[::-1]


async def wait_for_entries(source: LogCopy, size: int, clock: Clock) -> None:
    """Return when the copy has that many entries, or after COPY_WAIT_MS: then `check_roots` says what to do."""
    end_ms = clock.monotonic_ms() + COPY_WAIT_MS
    while await source.read_size() < size and clock.monotonic_ms() < end_ms:
        await clock.sleep_ms(COPY_POLL_MS)


async def check_roots(
    source: LogCopy,
    posted: Sequence[PostedRoot],
    run: RunId,
    *,
    network: NetworkId,
    coordinator: NodeId,
    scale: int,
) -> list[CheckedRoot]:
    """Each root beside the log's, from one replay. LocalError if the copy is too short, or breaks a rule of the log."""
    size, last = await source.read_size(), posted[-1].head_size
    if size < last:
        raise LocalError(
            f"this copy of the log has {size} entries, the newest payout root names {last}: use a newer copy. A root"
            " that cannot be checked should not mature: prime-node challenge --unverified"
        )
    ledger, checked = Ledger(network), list[CheckedRoot]()
    async for leaf in source.read(size):
        try:
            ledger.apply(leaf)
        except RemoteError as error:
            raise LocalError(
                f"entry {ledger.state.size} of this log breaks a rule: {error}. Update this program if it is older than"
                " the coordinator; otherwise no payout root of this log is right: prime-node challenge --unverified"
            ) from None
        if ledger.state.coordinator != coordinator:
            raise LocalError(f"this log is of the coordinator {ledger.state.coordinator}, not of {coordinator}")
        # Several roots may name one head.
        while len(checked) < len(posted) and posted[len(checked)].head_size == ledger.state.size:
            checked.append(check_root(ledger.state, run, posted[len(checked)], scale=scale))
        if len(checked) == len(posted):
            break
    return checked


async def check_anchor(session: ChainSession, run: RunId, size: int, root: Digest) -> None:
    """LocalError: the chain has another log than the one that was replayed."""
    try:
        await session.chain.read(session.contracts.anchor, "headAt", run_key(run), size, root)
    except ContractReverted as error:
        if error.name != "HeadUnknown":
            raise
        raise LocalError(
            f"the replayed log has the root {root} at {size} entries, and the chain has anchored another: this copy is"
            " not the anchored log, or the coordinator shows two. Compare with another copy: --mirror"
        ) from None


async def find_head_root(session: ChainSession, run: RunId, size: int) -> Digest:
    """The root of an anchored head, from its event."""
    key, head = run_key(run), await session.chain.newest()
    for last in range(head.number, -1, -BLOCKS_AT_ONCE):
        for event in await session.chain.events([session.contracts.anchor], max(0, last - BLOCKS_AT_ONCE + 1), last):
            if event.name == "Anchored" and bytes(event.values["run"]) == key and event.values["size"] == size:
                return Digest(bytes(event.values["root"]))
    raise LocalError(f"the chain has no head of {run} over {size} entries")


async def vote(
    session: ChainSession, run: RunId, node: NodeId, posted: PostedRoot, head_root: Digest
) -> tuple[int, bool]:
    """Vote against a root. Votes so far, and whether it is void."""
    at, key = session.contracts, run_key(run)
    await session.wallet.send_and_wait(CHALLENGE, at.pool, "challenge", key, posted.epoch, posted.root, head_root, node)
    statement = await session.chain.read(at.pool, "statementOf", key, posted.head_size, posted.root)
    votes = int(await session.chain.read(at.pool, "votesAgainst", statement))
    current = await session.chain.read(at.pool, "promiseOf", key, posted.epoch)
    return votes, bytes(current["root"]) != bytes(posted.root) or current["headSize"] != posted.head_size


async def fetch_payout_tree(config: NodeConfig, epoch: int, scale: int) -> PayoutTree:
    """The coordinator's table of an epoch. It is trusted only where its tree has the root that the chain has."""
    async with open_json_client(config.coordinator, config.authority) as client:
        answer = await client.get(f"/payouts/{config.run_id}/{epoch}")
    try:
        paid = {NodeId.parse(row["account"]): int(row["paid_nano"]) * scale for row in answer["paid"]}
    except (KeyError, TypeError, ValueError, RemoteError) as error:
        raise LocalError(f"the coordinator's answer is malformed: {error!r}") from None
    if not paid:
        raise LocalError(f"the coordinator's table of epoch {epoch} is empty")
    return PayoutTree(paid)
