"""The log's Merkle tree: the newest hashes in memory, the older ones in the mirror's tiles.

A start reads one partial tile per level instead of hashing every entry, and the tree in memory does not grow with the
log. A tile that is read from disk counts only if its hashes lead to the hash that its parent tile has for it, up to the
tiles in memory, which the signed head covers. A damaged tile is computed again from the database.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from prime_protocol.constants import DIGEST_BYTES, TILE_HASHES, TILE_HEIGHT, TILE_LEVEL_MAX
from prime_protocol.errors import LocalError
from prime_protocol.log.merkle import NODE_PREFIX, compute_leaf_hash, compute_root
from prime_protocol.log.tiles import Tile
from prime_protocol.log.tree_head import TreeHead
from prime_protocol.wire.ids import Digest
from prime_runtime.log_files import read_tile

ReadLeaves = Callable[[int, int], Sequence[bytes]]
"""Leaves from one index up to another."""
ENTRIES_PER_READ = 4_096
TILE_BYTES = TILE_HASHES * DIGEST_BYTES
TILES_CACHED = 256
"""Full tiles of the mirror that stay in memory, 8 KiB each."""


class LogTree:
    """Every hash of the tree over the entries on disk."""

    def __init__(self, mirror: Path, read_leaves: ReadLeaves) -> None:
        self._mirror = mirror
        self._read_leaves = read_leaves
        self.size = 0
        self.mirrored = 0
        """The mirror has the tiles of the tree of this size."""
        self._tiles: list[dict[int, bytearray]] = [{} for _ in range(TILE_LEVEL_MAX + 1)]
        """By level and index: the tiles that are not full, or not in the mirror yet."""
        self._load_tile = lru_cache(maxsize=TILES_CACHED)(self._read_verified_tile)

    def append_many(self, leaf_hashes: Iterable[bytes]) -> None:
        for leaf in leaf_hashes:
            self._add(0, self.size, leaf)
            self.size += 1

    def _add(self, level: int, place: int, added: bytes) -> None:
        tile = self._tiles[level].setdefault(place // TILE_HASHES, bytearray())
        tile += added
        if len(tile) == TILE_BYTES and level < TILE_LEVEL_MAX:
            self._add(level + 1, place // TILE_HASHES, fold_hashes(bytes(tile)))

    def get_node(self, level: int, index: int) -> Digest:
        tile_level, height = divmod(level, TILE_HEIGHT)
        first = index << height
        tile = self._get_tile(tile_level, first // TILE_HASHES)
        start = first % TILE_HASHES * DIGEST_BYTES
        return Digest(fold_hashes(bytes(tile[start : start + (DIGEST_BYTES << height)])))

    def root(self) -> Digest:
        return compute_root(self.size, self.get_node)

    def forget(self, size: int) -> None:
        """The mirror has the tiles of the tree of this size: full ones need not stay in memory."""
        self.mirrored = size
        for level, tiles in enumerate(self._tiles):
            full = (size >> TILE_HEIGHT * level) // TILE_HASHES
            for index in [index for index in tiles if index < full]:
                del tiles[index]

    def encode_tile(self, tile: Tile) -> bytes:
        return bytes(self._get_tile(tile.level, tile.index)[: tile.width * DIGEST_BYTES])

    def _get_tile(self, level: int, index: int) -> bytes | bytearray:
        kept = self._tiles[level].get(index)
        return self._load_tile(level, index) if kept is None else kept

    def _read_verified_tile(self, level: int, index: int) -> bytes:
        expected = self.get_node((level + 1) * TILE_HEIGHT, index)
        try:
            found = read_tile(self._mirror, Tile(level, index, TILE_HASHES))
        except LocalError:
            found = b""
        if len(found) != TILE_BYTES or fold_hashes(found) != expected:
            found = self._compute_tile(level, index)
        if fold_hashes(found) != expected:
            first, entries = index * TILE_HASHES ** (level + 1), TILE_HASHES ** (level + 1)
            raise LocalError(
                f"the log in the database is damaged: entries {first} to {first + entries - 1} are not those that were"
                " signed; restore a backup or a mirror into a new folder"
            )
        return found

    def _compute_tile(self, level: int, index: int) -> bytes:
        """From the entries in the database."""
        first = index * TILE_HASHES
        if level == 0:
            return b"".join(compute_leaf_hash(leaf) for leaf in self._read_leaves(first, first + TILE_HASHES))
        return b"".join(fold_hashes(self._compute_tile(level - 1, first + place)) for place in range(TILE_HASHES))

    # --- Starting -----------------------------------------------------------------------------------------------------

    def load(self, head: TreeHead, *, mirrored: int | None = None) -> bool:
        """Take over the tree of a head from the mirror, which may have more entries; False if its tiles are damaged."""
        try:
            for level, tiles in enumerate(self._tiles):
                index, width = divmod(head.size >> TILE_HEIGHT * level, TILE_HASHES)
                if width:
                    there = ((mirrored or head.size) >> TILE_HEIGHT * level) - index * TILE_HASHES
                    found = self._read_checked(Tile(level, index, min(TILE_HASHES, there)))
                    tiles[index] = bytearray(found[: width * DIGEST_BYTES])
            self.size = self.mirrored = head.size
            if compute_root(head.size, self.get_node) == head.root:
                return True
        except LocalError:
            pass
        self.size, self.mirrored, self._tiles = 0, 0, [{} for _ in self._tiles]
        self._load_tile.cache_clear()
        return False

    def _read_checked(self, tile: Tile) -> bytes:
        found = read_tile(self._mirror, tile)
        if len(found) != tile.width * DIGEST_BYTES:
            raise LocalError(f"{tile.path} is damaged")
        return found

    def extend(self, size: int) -> None:
        """Hash the entries of the database up to this size that the tree does not have."""
        for start in range(self.size, size, ENTRIES_PER_READ):
            leaves = self._read_leaves(start, min(size, start + ENTRIES_PER_READ))
            self.append_many([compute_leaf_hash(leaf) for leaf in leaves])


def fold_hashes(row: bytes) -> bytes:
    """The root over hashes in a row, as many as a power of two."""
    while len(row) > DIGEST_BYTES:
        pairs = range(0, len(row), 2 * DIGEST_BYTES)
        row = b"".join([sha256(NODE_PREFIX + row[at : at + 2 * DIGEST_BYTES]).digest() for at in pairs])
    return row
