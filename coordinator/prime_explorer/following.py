"""Follows a mirror of a log: each new head is checked against every entry and tile, then folded into the index.

Checked is what `prime-coordinator log verify` checks. What the index holds was signed by the log and keeps the rules;
what does not hold is said in the index's `problem`, and the index stays where it was.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from prime_explorer.constants import BATCH_ENTRIES, SNAPSHOT_ENTRIES
from prime_explorer.folding import Folding
from prime_explorer.index import Index
from prime_protocol.catalogue import read_letter
from prime_protocol.codec import decode
from prime_protocol.constants import DIGEST_BYTES, TILE_HASHES
from prime_protocol.entries import NetworkCreated
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger import Ledger
from prime_protocol.merkle import Frontier, Tree, leaf_hash, root_of
from prime_protocol.note import Note, VerifierKey
from prime_protocol.tiles import Tile, bundles_written, check_tile, encode_tile, tiles_written
from prime_protocol.treehead import TreeHead, network_of, open_tree_head
from prime_runtime.mirror import read_bundle, read_head, read_tile
from prime_runtime.snapshots import read_snapshot, write_snapshot

log = logging.getLogger(__name__)
IsWanted = Callable[[], bool]
FORKED = "this copy is damaged, or the log has forked"


class Follower:
    """An index, brought from head to head."""

    def __init__(self, mirror: Path, index: Index, *, snapshot: Path, key: VerifierKey | None) -> None:
        self._mirror = mirror
        self._index = index
        self._snapshot = snapshot
        self._given_key = key
        self._tree = Tree()
        """Over the entries that a checked head has signed; the index may still be on its way there."""
        self._tiles_size = 0
        """Tiles of the tree of this size were compared with it."""
        self._folding: Folding | None = None
        self._note = b""
        self._snapshot_size = 0

    def advance(self, now_ms: int, is_wanted: IsWanted = lambda: True) -> bool:
        """To the newest head, or as far as it `is_wanted`; False where nothing is new.

        RemoteError says what does not hold, and so does the index from then on.
        """
        note = read_head(self._mirror)
        if note == self._note:
            return False
        try:
            head = TreeHead.parse(Note.parse(note).text)
            folding = self._folding = self._folding or self._resume(head)
            self._check(head, note)
            self._fold(folding, head.size, is_wanted)
        except RemoteError as error:
            self._index.put([], problem=str(error))
            raise
        if folding.state.size == head.size:
            self._index.put_head(head, note, now_ms)
            self._note = note
        return True

    def close(self) -> None:
        if self._folding is not None and self._folding.state.size > self._snapshot_size:
            write_snapshot(self._snapshot, self._folding.state)
        self._index.close()

    # --- Checking -----------------------------------------------------------------------------------------------------

    def _check(self, head: TreeHead, note: bytes) -> None:
        """The head is signed and continues what is known, and the files hold what it says."""
        size = self._tree.size
        if head.size < size:
            raise RemoteError("tree_head.size", f"is {head.size}, but {size} entries were signed before: {FORKED}")
        key = self._given_key or VerifierKey.parse(self._read_log_key(head))
        open_tree_head(note, [key])
        hashes = b"".join(leaf_hash(leaf) for leaf in self._read_leaves(size, head.size))
        root = Frontier.of(size, self._tree.get_node).append_many(_split(hashes)).root()
        if root != head.root:
            raise RemoteError("tree_head.root", f"is {head.root}, the entries have {root}: {FORKED}")
        self._tree.append_many([hashes])
        for tile in tiles_written(self._tiles_size, head.size):
            if read_tile(self._mirror, tile) != encode_tile(tile, self._tree.get_node):
                raise RemoteError(tile.path, "does not hold the hashes of the entries")
        self._tiles_size = head.size
        self._index.put([], log_key=str(key), is_key_given=self._given_key is not None, signed_size=head.size)

    def _read_log_key(self, head: TreeHead) -> str:
        """As the first entry names it."""
        first = next(self._read_leaves(0, head.size), None)
        if first is None:
            raise RemoteError("tree_head.size", "is 0: there is nothing in this log yet")
        return decode(NetworkCreated, read_letter(first)[1].body).log_key

    def _read_leaves(self, start: int, stop: int) -> Iterator[bytes]:
        for bundle in bundles_written(start, stop):
            yield from read_bundle(self._mirror, bundle)[max(0, start - bundle.index * TILE_HASHES) :]

    # --- Folding ------------------------------------------------------------------------------------------------------

    def _fold(self, folding: Folding, size: int, is_wanted: IsWanted) -> None:
        leaves = self._read_leaves(folding.state.size, size)
        while is_wanted() and (batch := list(islice(leaves, BATCH_ENTRIES))):
            try:
                for leaf in batch:
                    folding.take(leaf)
            except RemoteError as error:
                raise RemoteError(f"entry {folding.state.size}: {error.field}", error.problem) from None
            finally:
                self._save(folding)
            if folding.state.size - self._snapshot_size >= SNAPSHOT_ENTRIES:
                self._snapshot_size = folding.state.size
                write_snapshot(self._snapshot, folding.state)

    def _save(self, folding: Folding) -> None:
        state, books = folding.state, folding.state.books
        self._index.put(
            folding.drain(),
            size=state.size,
            root=bytes(state.frontier.root()),
            at_ms=state.at_ms,
            nodes=len(state.nodes),
            deposited_nano=books.deposited_nano,
            withdrawn_nano=books.withdrawn_nano,
            burned_nano=books.burned_nano,
            staked_nano=books.stakes.total(),
            chain_id=state.domain.chain_id,
            coordinator=state.coordinator,
        )

    # --- Beginning again ----------------------------------------------------------------------------------------------

    def _resume(self, head: TreeHead) -> Folding:
        """The books after the entries that the index holds: from a snapshot as far as there is one, then folded."""
        ledger, size = Ledger(network_of(head.origin)), self._index.size
        if self._index.get("network") not in (None, ledger.network):
            raise LocalError(f"{self._index.path} is the index of {self._index.get('network')}: choose another folder")
        if size:
            self._tree = self._read_tree(head, size)
            self._tiles_size = size
            state = read_snapshot(self._snapshot)
            if state and state.size <= size and state.frontier.root() == root_of(state.size, self._tree.get_node):
                ledger.state = state
            log.info("folding %d of %d entries again", size - ledger.state.size, size)
            for leaf in self._read_leaves(ledger.state.size, size):
                ledger.restore(leaf)
        self._snapshot_size = ledger.state.size
        self._index.put([], network=ledger.network, origin=head.origin)
        return Folding(ledger)

    def _read_tree(self, head: TreeHead, size: int) -> Tree:
        """Over the entries that the index holds, from the hashes in the mirror."""
        if head.size < size:
            raise RemoteError("tree_head.size", f"is {head.size}, but {size} entries were signed before: {FORKED}")
        tree = Tree()
        for tile in (tile for tile in tiles_written(0, size) if tile.level == 0):
            width = min(TILE_HASHES, head.size - tile.index * TILE_HASHES)
            raw = read_tile(self._mirror, Tile(0, tile.index, width))
            check_tile(Tile(0, tile.index, width), raw)
            tree.append_many([raw[: tile.width * DIGEST_BYTES]])
        if bytes(tree.root()) != self._index.get("root"):
            raise RemoteError("tile/0", f"holds other hashes than before: {FORKED}")
        return tree


def _split(hashes: bytes) -> Iterator[bytes]:
    return (hashes[at : at + DIGEST_BYTES] for at in range(0, len(hashes), DIGEST_BYTES))
