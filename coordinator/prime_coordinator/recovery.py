"""From what is on disk to a ledger: how a coordinator starts, whatever ended the one before.

Signatures were checked when the entries came in, and the last head on disk says that the entries under it are the same
bytes, so only those after it are checked again as a stranger would. The same head vouches for a snapshot of the state
under it. A log that lost entries is refused: to go on from it would tell two histories.
"""

import logging
from pathlib import Path

from prime_coordinator.store import LogStore
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import NetworkId, NodeId
from prime_protocol.ledger import Ledger
from prime_protocol.merkle import Tree, leaf_hash, root_of
from prime_protocol.note import VerifierKey
from prime_protocol.state import State
from prime_protocol.tiles import CHECKPOINT_PATH
from prime_protocol.treehead import TreeHead, open_tree_head
from prime_runtime.mirror import read_head
from prime_runtime.snapshots import read_snapshot

log = logging.getLogger(__name__)
CHUNK = 4_096
"""Entries read at once."""


async def recover(
    store: LogStore, mirror: Path, snapshot: Path, *, network: NetworkId, coordinator: NodeId, log_key: VerifierKey
) -> tuple[Ledger, Tree]:
    """The ledger and the tree over all entries in the database; LocalError when they do not hold."""
    await store.wait_for_others()
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
    tree = Tree()
    for start in range(0, size, CHUNK):
        tree.append_many(leaf_hash(leaf) for leaf in await store.read(start, min(size, start + CHUNK)))
    trusted = head.size if head else 0
    if head and root_of(trusted, tree.get_node) != head.root:
        raise LocalError(
            f"the log in the database does not hold: its first {trusted} entries are not those it had signed"
        )
    ledger = Ledger(network)
    ledger.state = _find_state(snapshot, tree, trusted) or ledger.state
    log.info("folding %d of %d entries", size - ledger.state.size, size)
    try:
        for start in range(ledger.state.size, size, CHUNK):
            for index, leaf in enumerate(await store.read(start, min(size, start + CHUNK)), start):
                ledger.restore(leaf) if index < trusted else ledger.apply(leaf)
    except RemoteError as error:
        raise LocalError(f"the log in the database does not hold at entry {ledger.state.size}: {error}") from None
    _check_names(ledger, coordinator, log_key)
    return ledger, tree


def _find_state(snapshot: Path, tree: Tree, trusted: int) -> State | None:
    """The state that was kept, if it is that of this log under its last head."""
    state = read_snapshot(snapshot)
    if state is None:
        return None
    if 0 < state.size <= trusted and state.frontier.root() == root_of(state.size, tree.get_node):
        return state
    log.warning("%s is not of this log and is not used", snapshot)
    return None


def _check_names(ledger: Ledger, coordinator: NodeId, log_key: VerifierKey) -> None:
    state = ledger.state
    if state.coordinator != coordinator:
        raise LocalError(f"the log is of the coordinator {state.coordinator}, the key is of {coordinator}")
    if state.log_key != str(log_key):
        raise LocalError(f"the log names the key {state.log_key} for its heads, the folder holds {log_key}")


async def _last_head(store: LogStore, key: VerifierKey) -> TreeHead | None:
    stored = await store.last_head()
    return _open(stored.note, key, "the newest head in the database") if stored else None


def _mirrored_head(mirror: Path, key: VerifierKey) -> TreeHead | None:
    """What the mirror has shown to others; a mirror that is gone or damaged promises nothing."""
    if not (mirror / CHECKPOINT_PATH).exists():
        return None
    return _open(read_head(mirror), key, f"the head in {mirror}")


def _open(note: bytes, key: VerifierKey, where: str) -> TreeHead:
    try:
        return open_tree_head(note, [key])
    except RemoteError as error:
        raise LocalError(f"{where} is not signed by this folder's log key: {error}") from None
