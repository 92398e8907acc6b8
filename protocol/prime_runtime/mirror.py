"""A log as a folder of static files, in the C2SP tlog-tiles layout: how it is read, and how one file is written whole.

The coordinator fills such a folder; anybody may copy and serve it. Reading trusts nothing: sizes are bounded before a
file is read, and what the files say is for the caller to check.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRY_BYTES_MAX, NOTE_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError
from prime_protocol.tiles import (
    CHECKPOINT_PATH,
    LENGTH_BYTES,
    Bundle,
    Tile,
    bundles_written,
    decode_bundle,
)

BUNDLE_BYTES_MAX = TILE_HASHES * (LENGTH_BYTES + LOG_ENTRY_BYTES_MAX)


def read_head(folder: Path) -> bytes:
    """The signed tree head, as it lies there."""
    return read_bounded(folder / CHECKPOINT_PATH, NOTE_BYTES_MAX)


def read_leaves(folder: Path, size: int) -> Iterator[bytes]:
    """The first `size` entries, in order."""
    for bundle in bundles_written(0, size):
        yield from read_bundle(folder, bundle)


def read_bundle(folder: Path, bundle: Bundle) -> list[bytes]:
    """The entries of a bundle."""
    try:
        return decode_bundle(bundle, read_bounded(folder / bundle.path, BUNDLE_BYTES_MAX))
    except LocalError:
        if bundle.width == TILE_HASHES:
            raise
    return read_bundle(folder, Bundle(bundle.index, TILE_HASHES))[: bundle.width]


def read_tile(folder: Path, tile: Tile) -> bytes:
    """A tile's bytes; its length and hashes are the caller's to check."""
    try:
        return read_bounded(folder / tile.path, TILE_HASHES * DIGEST_BYTES)
    except LocalError:
        if tile.width == TILE_HASHES:
            raise
    # A partial tile goes when its full one is there, which begins with the same hashes. So do bundles.
    return read_tile(folder, Tile(tile.level, tile.index, TILE_HASHES))[: tile.width * DIGEST_BYTES]


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """A file that may be a stranger's."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}; is this a complete copy of a log?") from None
    if len(data) > bytes_max:
        raise LocalError(f"{path} is larger than {bytes_max} bytes: not a file of a log")
    return data


def write_whole(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """All of the file or nothing, even if the power goes; the umask takes from the mode, as always."""
    draft = path.with_name(path.name + ".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}; make room or choose another folder") from None
