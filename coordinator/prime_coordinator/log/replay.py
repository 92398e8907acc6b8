"""Recovers the coordinator's ledger at a start: the newest good snapshot, and the entries after it.

What the last signed head covers is trusted: those signatures were verified when the entries came in, and the head
proves that the bytes are the same. Only the entries after it are verified again. A log that lost entries is refused,
because continuing from it would fork the log.

The Merkle tree is read from the mirror, and its newest tiles are checked against the signed head. Older entries in the
database are compared with it later, while the coordinator runs (`LogWriter.scrub`).
"""

import asyncio
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prime_coordinator.log.key_list import read_key_chain
from prime_coordinator.log.mirror import fill_mirror
from prime_coordinator.log.snapshots import load_newest_snapshot, read_noted_snapshots
from prime_coordinator.log.store import LogStore
from prime_coordinator.log.tree import ENTRIES_PER_READ, LogTree
from prime_protocol.constants import TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.keys.chain import KeyChain
from prime_protocol.ledger.replay import Ledger
from prime_protocol.log.merkle import compute_root
from prime_protocol.log.tiles import CHECKPOINT_PATH, EntryBundle
from prime_protocol.log.tree_head import TreeHead, VerifierKey
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_runtime.log_files import read_tree_head

log = logging.getLogger(__name__)


async def recover_ledger(
    store: LogStore, mirror: Path, *, network: NetworkId, coordinator: NodeId, log_key: VerifierKey
) -> tuple[Ledger, LogTree]:
    """The ledger and the Merkle tree of all entries in the database; LocalError if the log is damaged."""
    await store.wait_for_pending_writes()
    size = await store.size()
    if size == 0:
        raise LocalError(
            "the database holds no log: set `database` to the right one, or make a new folder from a backup:"
            " prime-coordinator restore BACKUP --folder NEW-FOLDER"
        )
    keys = await read_key_chain(store, network)
    _check_identity(keys, coordinator, log_key)
    stored, mirrored = await _last_head(store, keys), _mirrored_head(mirror, keys)
    for signed, where in ((stored, "the database"), (mirrored, "the mirror")):
        if signed and signed.size > size:
            raise LocalError(
                f"{where} holds a signed head over {signed.size} entries, but only {size} are left: restore the"
                " database from a newer backup; continuing would fork the log"
            )
    if mirrored is None and _has_entries_after(mirror, size):
        raise LocalError(
            f"the mirror holds more than the {size} entries of the database: restore the database from a newer backup;"
            " continuing would fork the log"
        )
    tree = LogTree(mirror, store.read_blocking)
    await asyncio.to_thread(_recover_tree, tree, store, mirror, mirrored or stored, size)
    for signed in (stored, mirrored):
        if signed and compute_root(signed.size, tree.get_node) != signed.root:
            raise LocalError(
                f"the log in the database is damaged: its first {signed.size} entries are not those that were signed"
            )
    with _collector_paused():
        ledger = await _replay(store, mirror, tree, network, trusted=stored.size if stored else 0)
    if KeyChain.of_state(network, ledger.state) != keys:
        raise LocalError("the index of the database is damaged: it does not list every rotation of the log's keys")
    return ledger, tree


def _recover_tree(tree: LogTree, store: LogStore, mirror: Path, head: TreeHead | None, size: int) -> None:
    if head is not None and tree.load(head):
        tree.extend(size)
        return
    if head is not None:
        log.warning("the newest files of the mirror are damaged; it is written again from the database")
    fill_mirror(mirror, tree, store.read_blocking, size)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Build the state without the cyclic garbage collector.

    The state is hundreds of thousands of small objects without cycles. The collector would walk them again and again
    while they are made, which takes a fifth of the time of a start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _replay(store: LogStore, mirror: Path, tree: LogTree, network: NetworkId, *, trusted: int) -> Ledger:
    ledger = Ledger(network)
    noted = await read_noted_snapshots(store)
    state = load_newest_snapshot(mirror, network, noted, size_max=trusted)
    if state is not None and state.frontier.root() != compute_root(state.size, tree.get_node):
        log.warning("the snapshot of %d entries belongs to another log; it is ignored", state.size)
        state = None
    ledger.state = state or ledger.state
    log.info("replaying %d of %d entries", tree.size - ledger.state.size, tree.size)
    try:
        for start in range(ledger.state.size, tree.size, ENTRIES_PER_READ):
            leaves = await store.read(start, min(tree.size, start + ENTRIES_PER_READ))
            for index, leaf in enumerate(leaves, start):
                ledger.restore(leaf) if index < trusted else ledger.apply(leaf)
    except RemoteError as error:
        raise LocalError(f"the log in the database is damaged at entry {ledger.state.size}: {error}") from None
    if ledger.state.frontier.root() != tree.root():
        raise LocalError("the log in the database is damaged: its newest entries are not those that were signed")
    return ledger


def _check_identity(keys: KeyChain, coordinator: NodeId, log_key: VerifierKey) -> None:
    if keys.coordinator != coordinator:
        raise LocalError(f"the log belongs to the coordinator {keys.coordinator}, the key to {coordinator}")
    if keys.log_key != log_key:
        raise LocalError(f"the log names {keys.log_key} as the key of its heads, the folder holds {log_key}")


async def _last_head(store: LogStore, keys: KeyChain) -> TreeHead | None:
    stored = await store.last_head()
    return _open_head(stored.note, keys, "the newest head in the database") if stored else None


def _mirrored_head(mirror: Path, keys: KeyChain) -> TreeHead | None:
    """The head that the mirror has shown to others; None if there is none, or it is damaged.

    The mirror is derived from the database, so a damaged head is not a reason to stop: a head is signed again.
    """
    if not (mirror / CHECKPOINT_PATH).exists():
        return None
    try:
        return keys.open_head(read_tree_head(mirror))
    except (LocalError, RemoteError) as error:
        log.warning("the head in %s is damaged, and is signed again: %s", mirror, error)
        return None


def _has_entries_after(mirror: Path, size: int) -> bool:
    """Whether the mirror has an entry bundle that the database cannot have made.

    An entry is in the database before it is in the mirror. So this finds a database that lost entries even when the
    mirror's head is gone. It looks at two folders, however long the log is.
    """
    index, width = divmod(size, TILE_HASHES)
    newest, later = EntryBundle(index, TILE_HASHES), EntryBundle(index + 1, TILE_HASHES)
    if any((mirror / bundle.path).exists() for bundle in (newest, later)):
        return True
    widths = [int(path.name) for path in (mirror / f"{newest.path}.p").glob("*") if path.name.isdigit()]
    return max(widths, default=0) > width


def _open_head(note: bytes, keys: KeyChain, where: str) -> TreeHead:
    try:
        return keys.open_head(note)
    except RemoteError as error:
        raise LocalError(f"{where} is not signed by this folder's log key: {error}") from None
