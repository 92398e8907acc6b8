"""Copies a mirror of a log from a URL, file by file, into a folder. What it brings is checked by following.py."""

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

from prime_explorer.constants import FETCH_AT_ONCE, FETCH_THREADS, FETCH_TIMEOUT_S
from prime_protocol.constants import DIGEST_BYTES, NOTE_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.note import Note
from prime_protocol.tiles import CHECKPOINT_PATH, Bundle, Tile, bundles_written, tiles_written
from prime_protocol.treehead import TreeHead
from prime_runtime.mirror import BUNDLE_BYTES_MAX, read_head, write_whole


class Fetcher:
    """One copy of one mirror."""

    def __init__(self, source: str, mirror: Path) -> None:
        self._source = source.rstrip("/")
        self._mirror = mirror
        self._brought: list[Path] = []
        self._old_note = b""

    def fetch(self, is_wanted: Callable[[], bool]) -> None:
        """Bring the folder up to the newest head. The head is written last, so the copy is whole at any time."""
        note = self._get(CHECKPOINT_PATH, NOTE_BYTES_MAX)
        old = self._read_old()
        if note == old:
            return
        self._brought, self._old_note = [], old
        size = TreeHead.parse(Note.parse(note).text).size
        old_size = TreeHead.parse(Note.parse(old).text).size if old else 0
        if size < old_size:
            raise RemoteError("tree_head.size", f"is {size}, but {old_size} entries were signed before")
        parts: Iterator[Tile | Bundle] = chain(bundles_written(old_size, size), tiles_written(old_size, size))
        with ThreadPoolExecutor(FETCH_THREADS) as threads:
            # Some at a time: a size is only a claim, and may be far beyond what there is.
            while is_wanted() and (some := list(islice(parts, FETCH_AT_ONCE))):
                list(threads.map(self._bring, some))
        if is_wanted():
            write_whole(self._mirror / CHECKPOINT_PATH, note)

    def forget(self) -> None:
        """What was brought last does not hold: bring it again next time."""
        for path in self._brought:
            path.unlink(missing_ok=True)
        if self._old_note:
            write_whole(self._mirror / CHECKPOINT_PATH, self._old_note)
        else:
            (self._mirror / CHECKPOINT_PATH).unlink(missing_ok=True)

    def _read_old(self) -> bytes:
        try:
            return read_head(self._mirror)
        except LocalError:
            return b""

    def _bring(self, part: Tile | Bundle) -> None:
        path = self._mirror / part.path
        self._brought.append(path)
        if path.is_file():
            return  # a copy that broke off had brought it
        most = BUNDLE_BYTES_MAX if isinstance(part, Bundle) else TILE_HASHES * DIGEST_BYTES
        write_whole(path, self._get(part.path, most))

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
