"""A log on disk: reading a mirror folder (C2SP tlog-tiles layout), serving it over HTTP, and state snapshots.

The coordinator fills a mirror folder; anyone may copy and serve it. Readers bound the size of a file before they read
it, and the caller verifies the content.

A snapshot is the ledger state after some entry, so that a start need not replay the whole log. It is only a cache: a
damaged one is ignored and the log is replayed. The caller checks that it belongs to its log.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRY_BYTES_MAX, NOTE_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.snapshots.snapshot import compute_snapshot_digest, decode_snapshot, encode_snapshot
from prime_protocol.ledger.state import LedgerState
from prime_protocol.log.tiles import (
    CHECKPOINT_PATH,
    KEYS_PATH,
    LENGTH_BYTES,
    EntryBundle,
    Tile,
    decode_bundle,
    list_new_bundles,
    parse_tile_path,
)
from prime_protocol.wire.ids import NetworkId
from prime_runtime.files import write_atomic

log = logging.getLogger(__name__)

SNAPSHOT_FOLDER = "snapshot"
SNAPSHOT_NAME = re.compile("[1-9][0-9]{0,18}")
BUNDLE_BYTES_MAX = TILE_HASHES * (LENGTH_BYTES + LOG_ENTRY_BYTES_MAX)


def read_tree_head(folder: Path) -> bytes:
    """The signed tree head, not verified."""
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
    """The bytes of a tile; the caller checks length and hashes."""
    try:
        return read_bounded(folder / tile.path, TILE_HASHES * DIGEST_BYTES)
    except LocalError:
        if tile.width == TILE_HASHES:
            raise
    # A partial tile is removed once the full tile exists, which begins with the same hashes. So are bundles.
    return read_tile(folder, Tile(tile.level, tile.index, TILE_HASHES))[: tile.width * DIGEST_BYTES]


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """Read an untrusted file."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}; is the copy of the log complete?") from None
    if len(data) > bytes_max:
        raise LocalError(f"{path} is larger than {bytes_max} bytes: not a file of a log")
    return data


# --- Serving a mirror -------------------------------------------------------------------------------------------------

CACHE_FOREVER = "public, max-age=31536000, immutable"
"""For resources named by their content or by their position in an append-only log."""
TREE_HEAD_TYPE = "text/plain; charset=utf-8"


async def serve_tree_head(mirror: Path) -> web.StreamResponse:
    path = mirror / CHECKPOINT_PATH
    if not path.is_file():
        return web.Response(status=404, text="no tree head has been signed yet\n")
    return web.FileResponse(path, headers={"Content-Type": TREE_HEAD_TYPE, "Cache-Control": "no-cache"})


async def serve_keys(mirror: Path) -> web.StreamResponse:
    path = mirror / KEYS_PATH
    if not path.is_file():
        return web.Response(status=404, text="this copy of the log has no list of its keys\n")
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream", "Cache-Control": "no-cache"})


async def serve_tile(mirror: Path, name: str) -> web.StreamResponse:
    """`name` is the part of the path after `tile/`."""
    try:
        path = mirror / parse_tile_path(f"tile/{name}").path
    except RemoteError as error:
        return web.Response(status=404, text=f"{error}\n")
    if not path.is_file():
        return web.Response(status=404, text="this tile does not exist yet\n")
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream", "Cache-Control": CACHE_FOREVER})


# --- Snapshots of the state -------------------------------------------------------------------------------------------


def snapshot_path(name: int | str) -> str:
    """Where a mirror has the snapshot after that many entries."""
    return f"{SNAPSHOT_FOLDER}/{name}"


def list_snapshots(mirror: Path) -> list[int]:
    """Sizes of the snapshots in a mirror, newest first."""
    names = [path.name for path in (mirror / SNAPSHOT_FOLDER).glob("*")]
    return sorted((int(name) for name in names if SNAPSHOT_NAME.fullmatch(name)), reverse=True)


async def serve_snapshot(mirror: Path, name: str) -> web.StreamResponse:
    """The log notes its digest, see `SnapshotNoted`."""
    path = mirror / snapshot_path(name)
    if not SNAPSHOT_NAME.fullmatch(name) or not path.is_file():
        return web.Response(status=404, text="there is no such snapshot; only the newest are kept\n")
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream", "Cache-Control": CACHE_FOREVER})


def write_local_snapshot(path: Path, network: NetworkId, state: LedgerState) -> None:
    """Replace a snapshot that only this program reads, and that no log notes; its digest comes first."""
    data = encode_snapshot(network, state)
    write_atomic(path, compute_snapshot_digest(data) + data, mode=0o600)


def read_local_snapshot(path: Path, network: NetworkId) -> LedgerState | None:
    """The state in it; None if there is none, or it is damaged or of another format."""
    try:
        data = path.read_bytes()
        if data[:DIGEST_BYTES] != compute_snapshot_digest(data[DIGEST_BYTES:]):
            raise RemoteError("snapshot", "is damaged")
        return decode_snapshot(network, data[DIGEST_BYTES:], is_canonical=True)
    except FileNotFoundError:
        return None
    except (OSError, RemoteError) as error:
        log.warning("%s is ignored: %s", path, error)
        return None
