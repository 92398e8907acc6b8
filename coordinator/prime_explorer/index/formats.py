"""Which index is served while a release with another format makes its own: the old one, until the new one is complete.

Each format has a file of its own, `index-FORMAT.db`, and `index.db` is a link to the one that is served. A switch
replaces that link, which is atomic, so no reader sees half an index. A process that is killed while it rebuilds goes on
with its file at the next start.
"""

import os
import sqlite3
from pathlib import Path

from prime_explorer.index.schema import INDEX_FORMAT
from prime_explorer.index.store import SQLITE_SUFFIXES, IndexWriter, is_readable
from prime_protocol.errors import LocalError

SERVED_NAME = "index.db"


class IndexFiles:
    """The indexes in one folder."""

    def __init__(self, folder: Path, wanted: str = INDEX_FORMAT) -> None:
        self._folder = folder
        self._wanted = wanted
        self._served = folder / SERVED_NAME
        self._own = folder / f"index-{wanted}.db"

    def open(self) -> IndexWriter:
        """The index of this release. It is served at once if there is no other that could be."""
        index = IndexWriter.open(self._own, self._wanted)
        if not self.is_served and not is_readable(self._served):
            self.serve()
        return index

    @property
    def is_served(self) -> bool:
        return self._served.is_symlink() and os.readlink(self._served) == self._own.name

    def serve(self) -> None:
        """Switch to the index of this release, and delete the others."""
        try:
            link = self._folder / f"{SERVED_NAME}.link"
            link.unlink(missing_ok=True)
            link.symlink_to(self._own.name)
            link.replace(self._served)
            kept = {self._served.name, *(self._own.name + suffix for suffix in SQLITE_SUFFIXES)}
            for path in self._folder.glob("index*.db*"):
                if path.name not in kept:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise LocalError(f"cannot switch to the index {self._own}: {error.strerror}") from None

    def report_progress(self, done: int, total: int) -> None:
        """Say in the old index, which is served, why it does not move."""
        text = f"another release made this index; its own has {done:,} of {total:,} entries"
        try:
            connection = sqlite3.connect(self._served, timeout=5)
            try:
                with connection:
                    connection.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", ("local_error", text))
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise LocalError(f"cannot write {self._served}: {error}") from None
