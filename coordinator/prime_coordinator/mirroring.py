"""Keeps the mirror folder at the newest signed head, file by file, and mends it at start.

The database is the truth. A file of the mirror is written whole, and the head last, so a reader never sees a head whose
files are missing. How the folder is laid out and read is in mirror.py.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from prime_protocol.constants import TILE_HASHES
from prime_protocol.merkle import Tree
from prime_protocol.tiles import (
    CHECKPOINT_PATH,
    Bundle,
    Tile,
    bundles_written,
    encode_bundle,
    encode_tile,
    tiles_written,
)
from prime_runtime.mirror import write_whole

ReadLeaves = Callable[[int, int], Sequence[bytes]]
"""Leaves from one index up to another."""


def extend_mirror(folder: Path, tree: Tree, read: ReadLeaves, note: bytes, *, old_size: int, new_size: int) -> None:
    """From the head of old_size to the signed head `note` of new_size."""
    assert tree.size >= new_size
    for path, data in _files(tree, read, old_size, new_size):
        write_whole(folder / path, data)
    write_whole(folder / CHECKPOINT_PATH, note)
    _drop_partials(folder, old_size, new_size)


def mend_mirror(folder: Path, tree: Tree, read: ReadLeaves, note: bytes, size: int) -> int:
    """Compare every file with the log and write those that differ; how many did."""
    mended = 0
    for path, data in _files(tree, read, 0, size):
        mended += _write_if_other(folder / path, data)
    return mended + _write_if_other(folder / CHECKPOINT_PATH, note)


def _files(tree: Tree, read: ReadLeaves, old_size: int, new_size: int) -> Iterator[tuple[str, bytes]]:
    for bundle in bundles_written(old_size, new_size):
        start = bundle.index * TILE_HASHES
        yield bundle.path, encode_bundle(read(start, start + bundle.width))
    for tile in tiles_written(old_size, new_size):
        yield tile.path, encode_tile(tile, tree.get_node)


def _write_if_other(path: Path, data: bytes) -> bool:
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return False
    except OSError:
        pass  # missing or unreadable: written anew below
    write_whole(path, data)
    return True


def _drop_partials(folder: Path, old_size: int, new_size: int) -> None:
    """Partial files of all but the newest full tile: who still reads by an older head finds the full one."""
    full: list[Tile | Bundle] = [
        *(Bundle(part.index - 1, TILE_HASHES) for part in bundles_written(old_size, new_size) if _is_later(part)),
        *(
            Tile(part.level, part.index - 1, TILE_HASHES)
            for part in tiles_written(old_size, new_size)
            if _is_later(part)
        ),
    ]
    for part in full:
        shutil.rmtree(folder / f"{part.path}.p", ignore_errors=True)


def _is_later(part: Tile | Bundle) -> bool:
    """Full, and not the first."""
    return part.width == TILE_HASHES and part.index > 0
