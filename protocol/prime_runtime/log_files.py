"""A log as a folder of static files, in the C2SP tlog-tiles layout: how it is read, and how one file is written whole.

The coordinator fills such a folder; anybody may copy and serve it. Reading trusts nothing: sizes are bounded before a
file is read, and what the files say is for the caller to check.

A mirror of a log over HTTP, as anybody may have it: signed head, tiles and bundles, as they lie in its folder.

The state after some entry, kept on disk so that a start need not fold the whole log again.

Nothing rests on it. One that is damaged, was made by other code or is not of this log is left alone, and the log is
folded from its beginning. Whether it is of this log is for its reader to find out.
"""

import io
import logging
import os
import pickle
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web

import prime_protocol
from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRY_BYTES_MAX, NOTE_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.state import LedgerState
from prime_protocol.log.tiles import (
    CHECKPOINT_PATH,
    LENGTH_BYTES,
    EntryBundle,
    Tile,
    decode_bundle,
    list_new_bundles,
    parse_tile_path,
)

log = logging.getLogger(__name__)


BUNDLE_BYTES_MAX = TILE_HASHES * (LENGTH_BYTES + LOG_ENTRY_BYTES_MAX)


def read_tree_head(folder: Path) -> bytes:
    """The signed tree head, as it lies there."""
    return read_bounded(folder / CHECKPOINT_PATH, NOTE_BYTES_MAX)


def read_leaves(folder: Path, size: int) -> Iterator[bytes]:
    """The first `size` entries, in order."""
    for bundle in list_new_bundles(0, size):
        yield from read_bundle(folder, bundle)


def read_bundle(folder: Path, bundle: EntryBundle) -> list[bytes]:
    """The entries of a bundle."""
    try:
        return decode_bundle(bundle, read_bounded(folder / bundle.path, BUNDLE_BYTES_MAX))
    except LocalError:
        if bundle.width == TILE_HASHES:
            raise
    return read_bundle(folder, EntryBundle(bundle.index, TILE_HASHES))[: bundle.width]


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


def write_atomic(path: Path, data: bytes, *, mode: int = 0o666) -> None:
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


CACHE_FOREVER = "public, max-age=31536000, immutable"
"""For what is named by its content or its place in an append-only log."""
TREE_HEAD_TYPE = "text/plain; charset=utf-8"


async def serve_tree_head(mirror: Path) -> web.StreamResponse:
    path = mirror / CHECKPOINT_PATH
    if not path.is_file():
        return web.Response(status=404, text="no head was signed yet\n")
    return web.FileResponse(path, headers={"Content-Type": TREE_HEAD_TYPE, "Cache-Control": "no-cache"})


async def serve_tile(mirror: Path, name: str) -> web.StreamResponse:
    """`name` is what follows `tile/`."""
    try:
        path = mirror / parse_tile_path(f"tile/{name}").path
    except RemoteError as error:
        return web.Response(status=404, text=f"{error}\n")
    if not path.is_file():
        return web.Response(status=404, text="there is no such tile yet\n")
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream", "Cache-Control": CACHE_FOREVER})


SNAPSHOT_MAGIC = b"prime-coordinator state 1\n"
SNAPSHOT_HEAD_BYTES = len(SNAPSHOT_MAGIC) + 2 * DIGEST_BYTES
SNAPSHOT_TYPES = {
    ("builtins", "frozenset"),
    ("builtins", "range"),
    ("builtins", "set"),
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("collections", "deque"),
}
"""What a state is made of beside our own types."""


def write_snapshot(path: Path, state: LedgerState) -> None:
    """Whole or not at all, in place of the one before."""
    body = pickle.dumps(state, protocol=5)
    write_atomic(path, SNAPSHOT_MAGIC + compute_code_digest() + sha256(body).digest() + body, mode=0o600)


def read_snapshot(path: Path) -> LedgerState | None:
    """The state that was kept; None where there is none that this code could have written."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("cannot read %s: %s", path, error.strerror)
        return None
    body = data[SNAPSHOT_HEAD_BYTES:]
    if data[:SNAPSHOT_HEAD_BYTES] != SNAPSHOT_MAGIC + compute_code_digest() + sha256(body).digest():
        log.info("%s is damaged or of another release, and is not used", path)
        return None
    try:
        state = _StateUnpickler(io.BytesIO(body)).load()
    except Exception as error:  # boundary: whatever a made-up file does to the reader, there is still the log
        log.warning("%s cannot be read: %r", path, error)
        return None
    return state if isinstance(state, LedgerState) else None


class _StateUnpickler(pickle.Unpickler):
    """Makes states and nothing else: a pickle can name any function, and would have it called."""

    def find_class(self, module: str, name: str) -> Any:
        is_ours = module.startswith("prime_protocol.") and "." not in name
        if is_ours or (module, name) in SNAPSHOT_TYPES:
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a state")


@cache
def compute_code_digest() -> bytes:
    """Of the rules: a state that others have made is not ours, even if it looks the same."""
    folder = Path(prime_protocol.__file__).parent
    code = sha256()
    for path in sorted(folder.rglob("*.py")):
        data = path.read_bytes()
        code.update(f"{path.relative_to(folder)} {len(data)}\n".encode() + data)
    return code.digest()
