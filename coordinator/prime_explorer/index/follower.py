"""Keeps an index up to date with a log, in a process of its own: `python -m prime_explorer.index.follower`.

The follower verifies each new tree head against every entry and tile, exactly like `prime-coordinator log verify`, and
then folds the entries into the index. If verification fails, the index records the `problem` and stays where it was.
Folding occupies the processor, so it runs in its own process: the process that serves pages must answer meanwhile. It
reads the mirror, writes the index, and ends when its standard input closes. A remote mirror is first copied from its
URL, file by file.
"""

import argparse
import json
import logging
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path

from prime_explorer.config import (
    FETCH_BATCH_FILES,
    FETCH_THREADS,
    FETCH_TIMEOUT_S,
    FOLD_BATCH_ENTRIES,
    MIRROR_POLL_MS,
    REMOTE_POLL_MS,
    SNAPSHOT_ENTRIES,
)
from prime_explorer.index.fold import LogFold
from prime_explorer.index.formats import IndexFiles
from prime_explorer.index.store import IndexWriter
from prime_protocol.constants import DIGEST_BYTES, KEY_FILE_BYTES_MAX, NOTE_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.keys.chain import KeyChain
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.versions.plan import UnknownRules
from prime_protocol.log.merkle import Frontier, MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tiles import (
    CHECKPOINT_PATH,
    KEYS_PATH,
    EntryBundle,
    Tile,
    check_tile,
    encode_tile,
    list_new_bundles,
    list_new_tiles,
)
from prime_protocol.log.tree_head import SignedNote, TreeHead, VerifierKey, parse_origin
from prime_runtime.clock import SystemClock
from prime_runtime.files import write_atomic
from prime_runtime.log_files import (
    BUNDLE_BYTES_MAX,
    read_bundle,
    read_local_snapshot,
    read_tile,
    read_tree_head,
    write_local_snapshot,
)
from prime_runtime.logs import LogConfig, configure_logging

log = logging.getLogger(__name__)


class MirrorFetcher:
    """Copies a remote mirror into a folder. The follower verifies what it fetched."""

    def __init__(self, source: str, mirror: Path) -> None:
        self._source = source.rstrip("/")
        self._mirror = mirror
        self._downloaded: list[Path] = []
        self._old_note = b""

    def fetch(self, is_wanted: Callable[[], bool]) -> None:
        """Fetch what the newest head adds. The head is written last, so the copy is complete at any time."""
        note = self._get(CHECKPOINT_PATH, NOTE_BYTES_MAX)
        old = self._read_local_head()
        if note == old:
            return
        self._downloaded, self._old_note = [], old
        size = TreeHead.parse(SignedNote.parse(note).text).size
        old_size = TreeHead.parse(SignedNote.parse(old).text).size if old else 0
        if size < old_size:
            raise RemoteError("tree_head.size", f"is {size}, but {old_size} entries were signed before")
        parts: Iterator[Tile | EntryBundle] = chain(list_new_bundles(old_size, size), list_new_tiles(old_size, size))
        with ThreadPoolExecutor(FETCH_THREADS) as threads:
            # In batches: the size is only a claim, and may be far larger than the log.
            while is_wanted() and (some := list(islice(parts, FETCH_BATCH_FILES))):
                list(threads.map(self._download, some))
        if is_wanted():
            self._fetch_keys()
            write_atomic(self._mirror / CHECKPOINT_PATH, note)

    def _fetch_keys(self) -> None:
        """For readers of the copy. This program takes the keys from the entries."""
        try:
            write_atomic(self._mirror / KEYS_PATH, self._get(KEYS_PATH, KEY_FILE_BYTES_MAX))
        except LocalError as error:
            log.info("the copy of the log has no list of its keys: %s", error)

    def discard_last(self) -> None:
        """Verification of the last fetch failed: remove its files, so that the next call fetches them again."""
        for path in self._downloaded:
            path.unlink(missing_ok=True)
        if self._old_note:
            write_atomic(self._mirror / CHECKPOINT_PATH, self._old_note)
        else:
            (self._mirror / CHECKPOINT_PATH).unlink(missing_ok=True)

    def _read_local_head(self) -> bytes:
        try:
            return read_tree_head(self._mirror)
        except LocalError:
            return b""

    def _download(self, part: Tile | EntryBundle) -> None:
        path = self._mirror / part.path
        self._downloaded.append(path)
        if path.is_file():
            return  # an interrupted fetch already has it
        most = BUNDLE_BYTES_MAX if isinstance(part, EntryBundle) else TILE_HASHES * DIGEST_BYTES
        write_atomic(path, self._get(part.path, most))

    def _get(self, path: str, bytes_max: int) -> bytes:
        url = f"{self._source}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as answer:
                data: bytes = answer.read(bytes_max + 1)
        except (urllib.error.URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise LocalError(
                f"cannot get {url}: {reason}; is this the URL of a log, such as http://host/log?"
            ) from None
        if len(data) > bytes_max:
            raise RemoteError(path, f"is larger than {bytes_max} bytes")
        return data


ShouldContinue = Callable[[], bool]
FORKED = "this copy is damaged, or the log has forked"


class LogFollower:
    """Advances an index from tree head to tree head."""

    def __init__(self, mirror: Path, index: IndexWriter, *, snapshot: Path, key: VerifierKey | None) -> None:
        self._mirror = mirror
        self._index = index
        self._snapshot = snapshot
        self._given_key = key
        self._tree = MerkleTree()
        """The tree over the entries of the newest verified head. The index may still be behind it."""
        self._tiles_size = 0
        """Tiles up to this tree size are verified."""
        self._keys: KeyChain | None = None
        """Of the entries of the tree."""
        self._folding: LogFold | None = None
        self._note = b""
        self._snapshot_size = 0

    def advance(self, now_ms: int, is_wanted: ShouldContinue = lambda: True) -> bool:
        """Advance to the newest head, or until `is_wanted` returns False; return False if there is nothing new.

        RemoteError says which check failed. The index then shows it as its `problem`.
        """
        note = read_tree_head(self._mirror)
        if note == self._note:
            return False
        try:
            head = TreeHead.parse(SignedNote.parse(note).text)
            folding = self._folding = self._folding or self._resume(head)
            self._check(head, note)
            self._fold(folding, head.size, is_wanted)
        except RemoteError as error:
            self._index.write([], problem=str(error))
            raise
        if folding.state.size == head.size:
            self._index.write_head(head, note, now_ms)
            self._note = note
        return True

    @property
    def has_caught_up(self) -> bool:
        """The index has every entry of the newest head."""
        return bool(self._note)

    def close(self) -> None:
        # A folder that was deleted meanwhile is not made again: the coordinator that it was of may be restored there.
        is_new = self._folding is not None and self._folding.state.size > self._snapshot_size
        if self._folding is not None and is_new and self._snapshot.parent.is_dir():
            write_local_snapshot(self._snapshot, self._folding.ledger.network, self._folding.state)
        self._index.close()

    # --- Verifying ----------------------------------------------------------------------------------------------------

    def _check(self, head: TreeHead, note: bytes) -> None:
        """Verify that the head is signed, extends the known tree, and matches every entry and tile."""
        size = self._tree.size
        if head.size < size:
            raise RemoteError("tree_head.size", f"is {head.size}, but {size} entries were signed before: {FORKED}")
        keys, found, network = self._keys, [], parse_origin(head.origin)
        for index, leaf in enumerate(self._read_leaves(size, head.size), size):
            keys = keys.extend_if_rotation(index, leaf) if keys else KeyChain.begin(leaf, network)
            found.append(compute_leaf_hash(leaf))
        if keys is None:
            raise RemoteError("tree_head.size", "is 0: the log is empty")
        if self._given_key is not None and not keys.has_log_key(self._given_key):
            raise RemoteError("note.signatures", f"are of a log that never had the key {self._given_key}")
        keys.open_head(note)
        hashes = b"".join(found)
        root = Frontier.of(size, self._tree.get_node).append_many(_split_hashes(hashes)).root()
        if root != head.root:
            raise RemoteError("tree_head.root", f"is {head.root}, the entries have {root}: {FORKED}")
        self._tree.append_many([hashes])
        self._keys = keys
        for tile in list_new_tiles(self._tiles_size, head.size):
            if read_tile(self._mirror, tile) != encode_tile(tile, self._tree.get_node):
                raise RemoteError(tile.path, "does not hold the hashes of the entries")
        self._tiles_size = head.size
        self._index.write(
            [], log_key=str(keys.log_key), is_key_given=self._given_key is not None, signed_size=head.size
        )

    def _read_leaves(self, start: int, stop: int) -> Iterator[bytes]:
        for bundle in list_new_bundles(start, stop):
            yield from read_bundle(self._mirror, bundle)[max(0, start - bundle.index * TILE_HASHES) :]

    # --- Folding ------------------------------------------------------------------------------------------------------

    def _fold(self, folding: LogFold, size: int, is_wanted: ShouldContinue) -> None:
        leaves = self._read_leaves(folding.state.size, size)
        while is_wanted() and (batch := list(islice(leaves, FOLD_BATCH_ENTRIES))):
            try:
                for leaf in batch:
                    folding.apply_leaf(leaf)
            except RemoteError as error:
                raise RemoteError(f"entry {folding.state.size}: {error.field}", error.problem) from None
            finally:
                self._save(folding)
            if folding.state.size - self._snapshot_size >= SNAPSHOT_ENTRIES:
                self._snapshot_size = folding.state.size
                write_local_snapshot(self._snapshot, folding.ledger.network, folding.state)

    def _save(self, folding: LogFold) -> None:
        state, books = folding.state, folding.state.funds
        self._index.write(
            folding.take_writes(),
            size=state.size,
            root=bytes(state.frontier.root()),
            at_ms=state.at_ms,
            nodes=len(state.nodes),
            deposited_nano=books.deposited_nano,
            withdrawn_nano=books.withdrawn_nano,
            burned_nano=books.burned_nano,
            staked_nano=books.stakes.total(),
            chain_id=state.domain.chain_id,
            randomness=state.randomness.describe(),
            coordinator=state.coordinator,
            key_rotations=json.dumps([asdict(each) for each in state.key_rotations]),
            ticker=state.ticker,
            rules=json.dumps(asdict(state.rules)),
        )

    # --- Resuming -----------------------------------------------------------------------------------------------------

    def _resume(self, head: TreeHead) -> LogFold:
        """Restore the ledger state at the index's size: from a snapshot if there is one, then by replaying entries."""
        ledger, size = Ledger(parse_origin(head.origin)), self._index.size
        if self._index.get("network") not in (None, ledger.network):
            raise LocalError(f"{self._index.path} is the index of {self._index.get('network')}; choose another folder")
        if size:
            self._tree = self._read_tree(head, size)
            self._tiles_size = size
            state = read_local_snapshot(self._snapshot, ledger.network)
            if state and state.size <= size and state.frontier.root() == compute_root(state.size, self._tree.get_node):
                ledger.state = state
            log.info("replaying %d of %d entries", size - ledger.state.size, size)
            for leaf in self._read_leaves(ledger.state.size, size):
                ledger.restore(leaf)
            self._keys = KeyChain.of_state(ledger.network, ledger.state)
        self._snapshot_size = ledger.state.size
        self._index.write([], network=ledger.network, origin=head.origin)
        return LogFold(ledger)

    def _read_tree(self, head: TreeHead, size: int) -> MerkleTree:
        """The tree over the indexed entries, from the hashes in the mirror."""
        if head.size < size:
            raise RemoteError("tree_head.size", f"is {head.size}, but {size} entries were signed before: {FORKED}")
        tree = MerkleTree()
        for tile in (tile for tile in list_new_tiles(0, size) if tile.level == 0):
            width = min(TILE_HASHES, head.size - tile.index * TILE_HASHES)
            raw = read_tile(self._mirror, Tile(0, tile.index, width))
            check_tile(Tile(0, tile.index, width), raw)
            tree.append_many([raw[: tile.width * DIGEST_BYTES]])
        if bytes(tree.root()) != self._index.get("root"):
            raise RemoteError("tile/0", f"holds other hashes than before: {FORKED}")
        return tree


def _split_hashes(hashes: bytes) -> Iterator[bytes]:
    return (hashes[at : at + DIGEST_BYTES] for at in range(0, len(hashes), DIGEST_BYTES))


NICENESS = 10
"""Processes that answer requests have priority."""
LOCAL_ERRORS_MAX = 5
"""Consecutive local errors before one is shown: a mirror that is being written may miss a file for a moment."""


def main(argv: list[str] | None = None) -> int:
    """0: standard input closed, 1: the index cannot be kept."""
    args = parse_args(argv)
    os.nice(NICENESS)
    # Ctrl-C reaches every process of the terminal. Its parent ends this one, by closing standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging(LogConfig(), stream=sys.stderr, secrets=[])
    stop = threading.Event()
    threading.Thread(target=_stop_when_stdin_closes, args=(stop,), daemon=True).start()
    try:
        run_follower(args.mirror, args.folder, args.source, VerifierKey.parse(args.key) if args.key else None, stop)
    except LocalError as error:
        log.error("cannot keep the index: %s", error)
        return 1
    return 0


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m prime_explorer.index.follower", description=__doc__)
    parser.add_argument("--mirror", type=Path, required=True, help="folder with `checkpoint` and `tile/`")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the index")
    parser.add_argument("--source", help="URL of the mirror that the folder is a copy of")
    parser.add_argument("--key", help="the log's verifier key")
    return parser.parse_args(argv)


def _stop_when_stdin_closes(stop: threading.Event) -> None:
    """The parent process holds the other end, and the kernel closes it even when the parent is killed."""
    sys.stdin.buffer.read()
    stop.set()


def run_follower(
    mirror: Path, folder: Path, source: str | None, key: VerifierKey | None, stop: threading.Event
) -> None:
    """Run until told to stop."""
    clock = SystemClock()
    fetcher = MirrorFetcher(source, mirror) if source else None
    files = IndexFiles(folder)
    index = files.open()
    follower = LogFollower(mirror, index, snapshot=folder / "state.snapshot", key=key)
    local_errors = 0

    def is_wanted() -> bool:
        if not files.is_served:
            files.report_progress(index.size, int(index.get("signed_size") or 0))
        return not stop.is_set()

    try:
        while not stop.is_set():
            try:
                if fetcher is not None:
                    fetcher.fetch(lambda: not stop.is_set())
                follower.advance(clock.now_ms(), is_wanted)
                if not files.is_served and follower.has_caught_up:
                    files.serve()
                    log.info("the index of this release has caught up, and is served from now on")
                if local_errors:
                    index.write([], local_error="")
                local_errors = 0
            except RemoteError as error:
                log.error("verification of the log failed: %s", error)
                index.write([], problem=str(error))
                if fetcher is not None:
                    fetcher.discard_last()
            except LocalError as error:
                local_errors += 1
                if local_errors >= LOCAL_ERRORS_MAX or isinstance(error, UnknownRules):
                    index.write([], local_error=str(error))
            stop.wait((REMOTE_POLL_MS if fetcher or local_errors else MIRROR_POLL_MS) / 1000)
    finally:
        follower.close()


if __name__ == "__main__":
    sys.exit(main())
