"""From what is on disk to a ledger: how a coordinator starts, whatever ended the one before.

Signatures were checked when the entries came in, and the last head on disk says that the entries under it are the same
bytes, so only those after it are checked again as a stranger would. The same head vouches for a snapshot of the state
under it. A log that lost entries is refused: to go on from it would tell two histories.

Check a whole log, offline, with no trust in the coordinator: signed head, every entry, every rule, every tile.

Pure: the files come in through functions.

The books of a checked log in words and as JSON. Pure.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_coordinator.log.store import LogStore
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


ENTRIES_PER_READ = 4_096
"""Entries read at once."""


async def recover_ledger(
    store: LogStore, mirror: Path, snapshot: Path, *, network: NetworkId, coordinator: NodeId, log_key: VerifierKey
) -> tuple[Ledger, MerkleTree]:
    """The ledger and the tree over all entries in the database; LocalError when they do not hold."""
    await store.wait_for_pending_writes()
    size = await store.size()
    if size == 0:
        raise LocalError(
            "the database holds no log: point `database` at the right one, or make a new folder from a backup:"
            " prime-coordinator restore BACKUP --folder NEW-FOLDER"
        )
    head = await _last_head(store, log_key)
    for promised, where in ((head, "the database"), (_mirrored_head(mirror, log_key), "the mirror")):
        if promised and promised.size > size:
            raise LocalError(
                f"{where} holds a signed head over {promised.size} entries, but only {size} are left: restore the"
                " database from a newer backup; to go on would fork the log"
            )
    tree = MerkleTree()
    for start in range(0, size, ENTRIES_PER_READ):
        tree.append_many(
            compute_leaf_hash(leaf) for leaf in await store.read(start, min(size, start + ENTRIES_PER_READ))
        )
    trusted = head.size if head else 0
    if head and compute_root(trusted, tree.get_node) != head.root:
        raise LocalError(
            f"the log in the database does not hold: its first {trusted} entries are not those it had signed"
        )
    ledger = Ledger(network)
    ledger.state = _load_snapshot(snapshot, tree, trusted) or ledger.state
    log.info("folding %d of %d entries", size - ledger.state.size, size)
    try:
        for start in range(ledger.state.size, size, ENTRIES_PER_READ):
            for index, leaf in enumerate(await store.read(start, min(size, start + ENTRIES_PER_READ)), start):
                ledger.restore(leaf) if index < trusted else ledger.apply(leaf)
    except RemoteError as error:
        raise LocalError(f"the log in the database does not hold at entry {ledger.state.size}: {error}") from None
    _check_identity(ledger, coordinator, log_key)
    return ledger, tree


def _load_snapshot(snapshot: Path, tree: MerkleTree, trusted: int) -> LedgerState | None:
    """The state that was kept, if it is that of this log under its last head."""
    state = read_snapshot(snapshot)
    if state is None:
        return None
    if 0 < state.size <= trusted and state.frontier.root() == compute_root(state.size, tree.get_node):
        return state
    log.warning("%s is not of this log and is not used", snapshot)
    return None


def _check_identity(ledger: Ledger, coordinator: NodeId, log_key: VerifierKey) -> None:
    state = ledger.state
    if state.coordinator != coordinator:
        raise LocalError(f"the log is of the coordinator {state.coordinator}, the key is of {coordinator}")
    if state.log_key != str(log_key):
        raise LocalError(f"the log names the key {state.log_key} for its heads, the folder holds {log_key}")


async def _last_head(store: LogStore, key: VerifierKey) -> TreeHead | None:
    stored = await store.last_head()
    return _open_head(stored.note, key, "the newest head in the database") if stored else None


def _mirrored_head(mirror: Path, key: VerifierKey) -> TreeHead | None:
    """What the mirror has shown to others; a mirror that is gone or damaged promises nothing."""
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
    """A log whose books hold."""

    head: TreeHead
    key: VerifierKey
    is_key_given: bool
    """False: the key came from the log itself, so only its consistency is shown, not whose log it is."""
    ledger: Ledger


def verify_log(
    signed_head: bytes,
    read_leaves: Callable[[int], Iterable[bytes]],
    read_tile: Callable[[Tile], bytes],
    given_key: VerifierKey | None,
) -> VerifiedLog:
    """Everything that can be checked from the files alone; RemoteError names the first thing that does not hold."""
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


def summarise_log(checked: VerifiedLog) -> dict[str, Any]:
    """What `log verify --json` prints."""
    state = checked.ledger.state
    books = state.funds
    return {
        "network": checked.ledger.network,
        "entries": checked.head.size,
        "root": str(checked.head.root),
        "key": str(checked.key),
        "key_given": checked.is_key_given,
        "coordinator": str(state.coordinator),
        "value_nano": {
            "deposited": books.deposited_nano,
            "withdrawn": books.withdrawn_nano,
            "burned": books.burned_nano,
            "held": books.total_nano(),
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


def describe_log(checked: VerifiedLog) -> list[str]:
    """What `log verify` prints for people."""
    report = summarise_log(checked)
    value = {name: f"{amount / NANO:,.9g}" for name, amount in report["value_nano"].items()}
    whose = (
        "the key you gave" if checked.is_key_given else "the key the log names itself; compare it with the operator's"
    )
    lines = [
        f"log    {checked.head.origin}: {report['entries']} entries, root {report['root']}",
        f"head   signed by {report['key']} ({whose})",
        "replay every signature, author, rule and tile holds",
        f"value  {value['deposited']} in, {value['withdrawn']} out, {value['burned']} burned, {value['held']} held",
    ]
    for name, run in report["runs"].items():
        lines.append(f"run    {name}: {run['status']}, step {run['latest_step']}, {run['open_leases']} leases open")
    for name, node in report["nodes"].items():
        settled = ", ".join(f"{count} {outcome}" for outcome, count in node["settled"].items() if count) or "no work"
        stake, balance = node["stake_nano"] / NANO, node["balance_nano"] / NANO
        lines.append(f"node   {name} {node['status']}: {settled}; stake {stake:,.9g}, owner's balance {balance:,.9g}")
    return lines
