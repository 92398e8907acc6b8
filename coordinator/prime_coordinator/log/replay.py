"""Replays the log: a coordinator recovers its ledger from it, and anyone can verify a copy of it offline.

`recover_ledger` trusts what the last signed head covers: those signatures were verified when the entries came in, and
the head proves that the bytes are the same. Only the entries after it are verified again. The same head vouches for a
snapshot of the state. A log that lost entries is refused, because continuing from it would fork the log.

`verify_log` trusts nothing: signed head, every entry, every rule, every tile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_coordinator.log.store import LogStore
from prime_coordinator.log.writer import ENTRIES_PER_READ, build_tree
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.replay import Ledger, replay
from prime_protocol.ledger.state import LedgerState, RunState
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tiles import CHECKPOINT_PATH, Tile, encode_tile, list_new_tiles
from prime_protocol.log.tree_head import SignedNote, TreeHead, VerifierKey, open_tree_head, parse_origin
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_runtime.log_files import read_snapshot, read_tree_head

log = logging.getLogger(__name__)


async def recover_ledger(
    store: LogStore, mirror: Path, snapshot: Path, *, network: NetworkId, coordinator: NodeId, log_key: VerifierKey
) -> tuple[Ledger, MerkleTree]:
    """The ledger and the Merkle tree of all entries in the database; LocalError if the log is damaged."""
    await store.wait_for_pending_writes()
    size = await store.size()
    if size == 0:
        raise LocalError(
            "the database holds no log: set `database` to the right one, or make a new folder from a backup:"
            " prime-coordinator restore BACKUP --folder NEW-FOLDER"
        )
    head = await _last_head(store, log_key)
    for signed, where in ((head, "the database"), (_mirrored_head(mirror, log_key), "the mirror")):
        if signed and signed.size > size:
            raise LocalError(
                f"{where} holds a signed head over {signed.size} entries, but only {size} are left: restore the"
                " database from a newer backup; continuing would fork the log"
            )
    tree = await asyncio.to_thread(build_tree, store.read_blocking, size)
    trusted = head.size if head else 0
    if head and compute_root(trusted, tree.get_node) != head.root:
        raise LocalError(
            f"the log in the database is damaged: its first {trusted} entries are not those that were signed"
        )
    ledger = Ledger(network)
    ledger.state = _load_snapshot(snapshot, tree, trusted) or ledger.state
    log.info("replaying %d of %d entries", size - ledger.state.size, size)
    try:
        for start in range(ledger.state.size, size, ENTRIES_PER_READ):
            for index, leaf in enumerate(await store.read(start, min(size, start + ENTRIES_PER_READ)), start):
                ledger.restore(leaf) if index < trusted else ledger.apply(leaf)
    except RemoteError as error:
        raise LocalError(f"the log in the database is damaged at entry {ledger.state.size}: {error}") from None
    _check_identity(ledger, coordinator, log_key)
    return ledger, tree


def _load_snapshot(snapshot: Path, tree: MerkleTree, trusted: int) -> LedgerState | None:
    """The stored state, if the last head covers it and its root is that of this log."""
    state = read_snapshot(snapshot)
    if state is None:
        return None
    if 0 < state.size <= trusted and state.frontier.root() == compute_root(state.size, tree.get_node):
        return state
    log.warning("%s belongs to another log; it is ignored", snapshot)
    return None


def _check_identity(ledger: Ledger, coordinator: NodeId, log_key: VerifierKey) -> None:
    state = ledger.state
    if state.coordinator != coordinator:
        raise LocalError(f"the log belongs to the coordinator {state.coordinator}, the key to {coordinator}")
    if state.log_key != str(log_key):
        raise LocalError(f"the log names {state.log_key} as the key of its heads, the folder holds {log_key}")


async def _last_head(store: LogStore, key: VerifierKey) -> TreeHead | None:
    stored = await store.last_head()
    return _open_head(stored.note, key, "the newest head in the database") if stored else None


def _mirrored_head(mirror: Path, key: VerifierKey) -> TreeHead | None:
    """The head that the mirror has shown to others; None if there is no mirror."""
    if not (mirror / CHECKPOINT_PATH).exists():
        return None
    return _open_head(read_tree_head(mirror), key, f"the head in {mirror}")


def _open_head(note: bytes, key: VerifierKey, where: str) -> TreeHead:
    try:
        return open_tree_head(note, [key])
    except RemoteError as error:
        raise LocalError(f"{where} is not signed by this folder's log key: {error}") from None


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """A log that passed every check."""

    head: TreeHead
    key: VerifierKey
    is_key_given: bool
    """False: the key came from the log itself, which proves consistency but not whose log it is."""
    ledger: Ledger


def verify_log(
    signed_head: bytes,
    read_leaves: Callable[[int], Iterable[bytes]],
    read_tile: Callable[[Tile], bytes],
    given_key: VerifierKey | None,
) -> VerifiedLog:
    """Verify everything that the files alone can show; RemoteError names the first thing that is wrong."""
    claimed = TreeHead.parse(SignedNote.parse(signed_head).text)
    leaves = list(read_leaves(claimed.size))
    ledger = replay(parse_origin(claimed.origin), leaves)
    key = given_key or VerifierKey.parse(ledger.state.log_key)
    head = open_tree_head(signed_head, [key])
    if ledger.state.frontier.root() != head.root:
        raise RemoteError("tree_head.root", f"is {head.root}, the entries have {ledger.state.frontier.root()}")
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
    for tile in list_new_tiles(0, len(leaves)):
        if read_tile(tile) != encode_tile(tile, tree.get_node):
            raise RemoteError(tile.path, "does not hold the hashes of the entries")
    assert ledger.state.funds.is_conserved()
    return VerifiedLog(head, key, given_key is not None, ledger)


NANO = 10**9


def summarise_log(verified: VerifiedLog) -> dict[str, Any]:
    """What `log verify --json` prints."""
    state = verified.ledger.state
    funds = state.funds
    return {
        "network": verified.ledger.network,
        "entries": verified.head.size,
        "root": str(verified.head.root),
        "key": str(verified.key),
        "key_given": verified.is_key_given,
        "coordinator": str(state.coordinator),
        "ticker": state.ticker,
        "value_nano": {
            "deposited": funds.deposited_nano,
            "withdrawn": funds.withdrawn_nano,
            "burned": funds.burned_nano,
            "held": funds.total_nano(),
        },
        "nodes": {str(name): summarise_node(state, name) for name in sorted(state.nodes)},
        "runs": {name: summarise_run(run) for name, run in sorted(state.runs.items())},
    }


def summarise_node(state: LedgerState, name: Any) -> dict[str, Any]:
    node = state.nodes[name]
    return {
        "owner": str(state.owners[name]),
        "status": str(node.status),
        "roles": [str(role) for role in node.roles],
        "stake_nano": state.get_stake(name),
        "balance_nano": state.funds.balances[state.owners[name]],
        "settled": {str(outcome): node.settled[outcome] for outcome in Outcome},
        "units": node.units,
        "earned_nano": node.earned_nano,
        "faults": node.faults,
    }


def summarise_run(run: RunState) -> dict[str, Any]:
    return {
        "status": str(run.status),
        "latest_step": run.latest,
        "open_leases": len(run.leases),
        "open_slashes": len(run.slashes),
    }


def describe_log(verified: VerifiedLog) -> list[str]:
    """What `log verify` prints as text."""
    report, state = summarise_log(verified), verified.ledger.state
    value = {name: f"{amount / NANO:,.9g}" for name, amount in report["value_nano"].items()}
    source = (
        "the key you gave" if verified.is_key_given else "the key the log itself names; compare it with the operator's"
    )
    lines = [
        f"log    {verified.head.origin}: {report['entries']} entries, root {report['root']}",
        f"head   signed by {report['key']} ({source})",
        "replay every signature, author, rule and tile is valid",
        f"value  {value['deposited']} in, {value['withdrawn']} out, {value['burned']} burned, {value['held']} held"
        f" ({state.ticker})",
    ]
    for name, run in report["runs"].items():
        lines.append(f"run    {name}: {run['status']}, step {run['latest_step']}, {run['open_leases']} leases open")
    for name, node in report["nodes"].items():
        settled = ", ".join(f"{count} {outcome}" for outcome, count in node["settled"].items() if count) or "no work"
        stake, balance = node["stake_nano"] / NANO, node["balance_nano"] / NANO
        lines.append(f"node   {name} {node['status']}: {settled}; stake {stake:,.9g}, owner's balance {balance:,.9g}")
    return lines
