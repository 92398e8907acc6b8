"""The log as a folder of static files (c2sp.org/tlog-tiles): how tiles and bundles are named, filled and chosen.

Nothing here fetches or stores. A hash read from a tile is a claim until a proof made from it leads to a signed root.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prime_protocol.constants import (
    DIGEST_BYTES,
    LOG_ENTRIES_MAX,
    LOG_ENTRY_BYTES_MAX,
    TILE_HASHES,
    TILE_HEIGHT,
    TILE_LEVEL_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.log.merkle import (
    GetNode,
    TreeNode,
    compute_node_hash,
    compute_root,
    consistency_nodes,
    inclusion_nodes,
    peak_nodes,
)
from prime_protocol.wire.ids import Digest

CHECKPOINT_PATH = "checkpoint"
"""Where the signed tree head is, beside the `tile` folder."""
KEYS_PATH = "keys"
"""Where the entries are that name the log's keys: see keys/chain.py."""

LENGTH_BYTES = 2
TILE_PATH = re.compile(r"tile/(entries|[0-9])/((?:x[0-9]{3}/){0,5}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """`width` hashes in a row, each over 256^level entries; the first is hash number 256 * index of that level."""

    level: int
    index: int
    width: int

    def __post_init__(self) -> None:
        if not 0 <= self.level <= TILE_LEVEL_MAX:
            raise RemoteError("tile.level", f"is {self.level}, the limit is {TILE_LEVEL_MAX}")
        _check_range(self.index, self.width, LOG_ENTRIES_MAX >> TILE_HEIGHT * self.level)

    @property
    def path(self) -> str:
        return f"tile/{self.level}/{_format_index(self.index, self.width)}"


@dataclass(frozen=True, slots=True, order=True)
class EntryBundle:
    """`width` entries in a row, from entry number 256 * index: the entries under the level 0 tile of that index."""

    index: int
    width: int

    def __post_init__(self) -> None:
        _check_range(self.index, self.width, LOG_ENTRIES_MAX)

    @property
    def path(self) -> str:
        return f"tile/entries/{_format_index(self.index, self.width)}"


def parse_tile_path(path: str) -> Tile | EntryBundle:
    """Accept exactly the paths that `path` prints."""
    match = TILE_PATH.fullmatch(path)
    if not match:
        raise RemoteError("tile.path", "must be tile/<level or entries>/<index>[.p/<width>]")
    level, digits, partial = match.groups()
    index = int(re.sub("[x/]", "", digits))
    width = int(partial) if partial else TILE_HASHES
    parsed = EntryBundle(index, width) if level == "entries" else Tile(int(level), index, width)
    if parsed.path != path:
        raise RemoteError("tile.path", f"is not the path of {parsed}")
    return parsed


def _format_index(index: int, width: int) -> str:
    """Index in groups of three digits, so that no folder holds more than 1000 names; the width only if partial."""
    groups = [f"{index % 1000:03}"]
    while index := index // 1000:
        groups.append(f"x{index % 1000:03}")
    suffix = f".p/{width}" if width < TILE_HASHES else ""
    return "/".join(reversed(groups)) + suffix


def _check_range(index: int, width: int, hashes_max: int) -> None:
    if not 1 <= width <= TILE_HASHES:
        raise RemoteError("tile.width", f"is {width}, expected 1 to {TILE_HASHES}")
    if not 0 <= index <= (hashes_max - width) // TILE_HASHES:
        raise RemoteError("tile.index", f"is {index}, past the largest log")


# --- Which tiles there are, and which are needed ---


def list_new_tiles(old_size: int, new_size: int) -> Iterator[Tile]:
    """The tiles of the tree of new_size that the tree of old_size does not have: what growing has to write."""
    for level in range(TILE_LEVEL_MAX + 1):
        for index, width in _list_partial_rows(old_size >> TILE_HEIGHT * level, new_size >> TILE_HEIGHT * level):
            yield Tile(level, index, width)


def list_new_bundles(old_size: int, new_size: int) -> Iterator[EntryBundle]:
    """As tiles_written, for entries."""
    for index, width in _list_partial_rows(old_size, new_size):
        yield EntryBundle(index, width)


def _list_partial_rows(old_count: int, new_count: int) -> Iterator[tuple[int, int]]:
    for start in range(old_count - old_count % TILE_HASHES, new_count, TILE_HASHES):
        width = min(TILE_HASHES, new_count - start)
        if start + width > old_count:
            yield start // TILE_HASHES, width


def get_tile_of_node(node: TreeNode, size: int) -> Tile:
    """The tile, in a tree of this size, whose hashes the node is made of."""
    level, height = divmod(node[0], TILE_HEIGHT)
    index = (node[1] << height) // TILE_HASHES
    return Tile(level, index, min(TILE_HASHES, (size >> TILE_HEIGHT * level) - index * TILE_HASHES))


def list_consistency_tiles(old_size: int, new_size: int) -> list[Tile]:
    """What to fetch, of the tree of new_size, to prove it consistent with old_size, and to compute both roots."""
    nodes = [*peak_nodes(old_size), *peak_nodes(new_size), *_flatten(consistency_nodes(old_size, new_size))]
    return _tiles(nodes, new_size)


def list_inclusion_tiles(index: int, size: int) -> list[Tile]:
    """What to fetch, of the tree of `size`, to prove that it contains leaf `index`."""
    return _tiles(_flatten(inclusion_nodes(index, size)), size)


def _flatten(parts: Iterable[Iterable[TreeNode]]) -> Iterator[TreeNode]:
    return (node for nodes in parts for node in nodes)


def _tiles(nodes: Iterable[TreeNode], size: int) -> list[Tile]:
    return sorted({get_tile_of_node(node, size) for node in nodes})


# --- What is in them ---


def encode_tile(tile: Tile, get_node: GetNode) -> bytes:
    first = tile.index * TILE_HASHES
    return b"".join(get_node(tile.level * TILE_HEIGHT, first + offset) for offset in range(tile.width))


def check_tile(tile: Tile, raw: bytes) -> None:
    if len(raw) != tile.width * DIGEST_BYTES:
        raise RemoteError(tile.path, f"is {len(raw)} bytes, expected {tile.width * DIGEST_BYTES}")


def make_node_reader(size: int, get_tile: Callable[[Tile], bytes]) -> GetNode:
    """Nodes of the tree of this size, computed from its tiles. `get_tile` is asked once per node; let it cache."""

    def get_node(level: int, index: int) -> bytes:
        tile = get_tile_of_node((level, index), size)
        raw = get_tile(tile)
        check_tile(tile, raw)
        height = level % TILE_HEIGHT
        start = ((index << height) - tile.index * TILE_HASHES) * DIGEST_BYTES
        row = [raw[at : at + DIGEST_BYTES] for at in range(start, start + (DIGEST_BYTES << height), DIGEST_BYTES)]
        while len(row) > 1:
            row = [compute_node_hash(left, right) for left, right in zip(row[::2], row[1::2], strict=True)]
        return row[0]

    return get_node


def compute_prefix_root(prefix_size: int, *, size: int, root: Digest, get_tile: Callable[[Tile], bytes]) -> Digest:
    """Root over the first entries of the tree (size, root). RemoteError: the tiles are not those of that tree."""
    get_node = make_node_reader(size, get_tile)
    found = compute_root(size, get_node)
    if found != root:
        raise RemoteError("tile", f"leads to root {found}, expected {root}")
    return compute_root(prefix_size, get_node)


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    """Each entry after its length, a 16-bit big-endian number."""
    assert 1 <= len(entries) <= TILE_HASHES
    for entry in entries:
        assert len(entry) <= LOG_ENTRY_BYTES_MAX
    return b"".join(len(entry).to_bytes(LENGTH_BYTES, "big") + entry for entry in entries)


def decode_bundle(bundle: EntryBundle, raw: bytes) -> list[bytes]:
    """Exactly as many entries as the bundle is wide, and nothing after them."""
    entries, at = [], 0
    for number in range(bundle.width):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(raw[at:start], "big")
        if at > len(raw):
            raise RemoteError(f"{bundle.path}[{number}]", "is cut short")
        entries.append(raw[start:at])
    if at != len(raw):
        raise RemoteError(bundle.path, f"has {len(raw) - at} bytes after its last entry")
    return entries
