"""The static files of the log: written head by head, filled as a whole, compared with the database in the background.

The database is the authority. A file is replaced atomically and the head is written last, so a reader never sees a head
whose files are missing. The layout is in prime_runtime.log_files.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from prime_coordinator.log.tree import LogTree, ReadLeaves
from prime_protocol.constants import SNAPSHOT_BYTES_MAX, TILE_HASHES, TILE_HEIGHT, TILE_LEVEL_MAX
from prime_protocol.errors import LocalError
from prime_protocol.log.merkle import compute_leaf_hash
from prime_protocol.log.tiles import (
    CHECKPOINT_PATH,
    EntryBundle,
    Tile,
    encode_bundle,
    list_new_bundles,
    list_new_tiles,
)
from prime_runtime.files import write_atomic
from prime_runtime.log_files import list_snapshots, read_bounded, snapshot_path

ENTRIES_PER_STEP = TILE_HASHES**2
"""Entries whose files are written before their hashes leave the memory."""

PARTIAL_NAME = re.compile("[1-9][0-9]{0,2}")

MirrorPart = Tile | EntryBundle


def list_new_parts(old_size: int, new_size: int) -> Iterator[MirrorPart]:
    """The bundles and tiles that a log gets while it grows."""
    yield from list_new_bundles(old_size, new_size)
    yield from list_new_tiles(old_size, new_size)


def extend_mirror(folder: Path, tree: LogTree, read: ReadLeaves, note: bytes, *, old_size: int, new_size: int) -> None:
    """Extend the files from old_size to new_size; `note` is the signed head of new_size."""
    assert tree.size >= new_size
    for part in list_new_parts(old_size, new_size):
        write_atomic(folder / part.path, _encode_part(part, tree, read))
    write_atomic(folder / CHECKPOINT_PATH, note)
    _drop_partials(folder, old_size, new_size)


def fill_mirror(folder: Path, tree: LogTree, read: ReadLeaves, size: int) -> int:
    """Write the files of a whole log, except the head, in bounded memory; returns how many were missing or different.

    `tree` is empty, and `folder` is where it reads its tiles.
    """
    changed, done = 0, tree.size
    while done < size:
        step = min(size, done + ENTRIES_PER_STEP)
        tree.extend(step)
        for part in list_new_parts(done, step):
            if part.width == TILE_HASHES:
                changed += _write_if_different(folder / part.path, _encode_part(part, tree, read))
        tree.forget(step)
        done = step
    return changed + rewrite_partials(folder, tree, read, size)


def write_log_copy(folder: Path, read: ReadLeaves, note: bytes, size: int) -> None:
    """Write a whole mirror of a log that is elsewhere; `note` is its signed head."""
    fill_mirror(folder, LogTree(folder, read), read, size)
    write_atomic(folder / CHECKPOINT_PATH, note)


def copy_snapshots(source: Path, target: Path, size_max: int) -> None:
    """Copy those of the newest snapshots that a head over this many entries covers."""
    for size in list_snapshots(source):
        if size <= size_max:
            write_atomic(target / snapshot_path(size), read_bounded(source / snapshot_path(size), SNAPSHOT_BYTES_MAX))


def rewrite_partials(folder: Path, tree: LogTree, read: ReadLeaves, size: int) -> int:
    """Write the newest files, which are not full, where they are missing or different; returns how many."""
    parts = _list_partials(size)
    return sum(_write_if_different(folder / part.path, _encode_part(part, tree, read)) for part in parts)


def repair_partials(folder: Path, tree: LogTree, read: ReadLeaves, size: int) -> int:
    """Make every partial file that the mirror still has good again; returns how many were missing or different.

    Readers with an older head may still ask for the smaller partial files of a tile that is not full, so these are
    compared and written again. Those of the tile before are removed: the full file replaces them. Older ones are gone,
    or the scrub removes them. The work is bounded: at most 255 files of each level.
    """
    repaired = rewrite_partials(folder, tree, read, size)
    first = size - size % TILE_HASHES
    leaves = read(first, size)

    def read_newest(start: int, stop: int) -> Sequence[bytes]:
        return leaves[start - first : stop - first]

    for newest in _list_partials(size):
        for path in sorted((folder / newest.path).parent.glob("*")):
            width = int(path.name) if PARTIAL_NAME.fullmatch(path.name) else TILE_HASHES
            if width < newest.width:
                part = replace(newest, width=width)
                repaired += _write_if_different(path, _encode_part(part, tree, read_newest))
            elif width > newest.width:
                path.unlink(missing_ok=True)  # no head covers it, or it is the rest of an interrupted write
    for level in range(TILE_LEVEL_MAX + 1):
        index = (size >> TILE_HEIGHT * level) // TILE_HASHES - 1
        if index >= 0:
            _drop_partials_of(folder, Tile(level, index, TILE_HASHES))
    if size >= TILE_HASHES:
        _drop_partials_of(folder, EntryBundle(size // TILE_HASHES - 1, TILE_HASHES))
    return repaired


def _list_partials(size: int) -> list[MirrorPart]:
    """The files of a tree of this size that are not full: one bundle and one tile of each level at most."""
    parts: list[MirrorPart] = [EntryBundle(size // TILE_HASHES, size % TILE_HASHES)] if size % TILE_HASHES else []
    for level in range(TILE_LEVEL_MAX + 1):
        index, width = divmod(size >> TILE_HEIGHT * level, TILE_HASHES)
        parts += [Tile(level, index, width)] if width else []
    return parts


def scrub_mirror(folder: Path, tree: LogTree, read: ReadLeaves, size: int) -> Iterator[int]:
    """Compare all full files with the database, and the database with the signed tree, piece by piece.

    Partial files that a full one replaced are removed, except those of the newest, see `_drop_partials`. Yields how
    many files were written again; LocalError if the database does not hold what was signed.
    """
    for index in range(size // TILE_HASHES):
        first = index * TILE_HASHES
        leaves = read(first, first + TILE_HASHES)
        tile, hashes = Tile(0, index, TILE_HASHES), b"".join(map(compute_leaf_hash, leaves))
        if hashes != tree.encode_tile(tile):
            raise LocalError(
                f"the log in the database is damaged: entries {first} to {first + TILE_HASHES - 1} are not those that"
                " were signed; restore a backup or a mirror into a new folder"
            )
        bundle = EntryBundle(index, TILE_HASHES)
        yield _write_if_different(folder / bundle.path, encode_bundle(leaves)) + _write_if_different(
            folder / tile.path, hashes
        )
        if first + 2 * TILE_HASHES <= size:
            _drop_partials_of(folder, bundle)
            _drop_partials_of(folder, tile)
    for tile in list_new_tiles(0, size):
        if tile.level and tile.width == TILE_HASHES:
            yield int(_write_if_different(folder / tile.path, tree.encode_tile(tile)))
            if (tile.index + 2) * TILE_HASHES <= size >> TILE_HEIGHT * tile.level:
                _drop_partials_of(folder, tile)


def _encode_part(part: MirrorPart, tree: LogTree, read: ReadLeaves) -> bytes:
    if isinstance(part, Tile):
        return tree.encode_tile(part)
    start = part.index * TILE_HASHES
    return encode_bundle(read(start, start + part.width))


def _write_if_different(path: Path, data: bytes) -> bool:
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return False
    except OSError:
        pass  # missing or unreadable: written below
    write_atomic(path, data)
    return True


def _drop_partials(folder: Path, old_size: int, new_size: int) -> None:
    """Delete partial files that a full one replaces, except the newest. Readers with an older head use the full one."""
    full: list[MirrorPart] = [
        *(EntryBundle(part.index - 1, TILE_HASHES) for part in list_new_bundles(old_size, new_size) if _is_later(part)),
        *(
            Tile(part.level, part.index - 1, TILE_HASHES)
            for part in list_new_tiles(old_size, new_size)
            if _is_later(part)
        ),
    ]
    for part in full:
        _drop_partials_of(folder, part)


def _drop_partials_of(folder: Path, full: MirrorPart) -> None:
    shutil.rmtree(folder / f"{full.path}.p", ignore_errors=True)


def _is_later(part: MirrorPart) -> bool:
    """Whether this file is full and not the first."""
    return part.width == TILE_HASHES and part.index > 0
