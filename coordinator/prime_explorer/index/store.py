"""The index on disk. One process writes it; the readers are a few threads with read-only connections."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from prime_explorer.config import HEADS_KEPT, READER_THREADS
from prime_explorer.index.schema import INDEX_FORMAT, TABLES, SqlWrite
from prime_protocol.errors import LocalError
from prime_protocol.log.tree_head import TreeHead

SQLITE_SUFFIXES = ("", "-wal", "-shm")
"""Suffixes of the files of a database in WAL mode."""


class IndexWriter:
    """The writing side: tables derived from the first `size` entries of a log."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path, wanted: str = INDEX_FORMAT) -> "IndexWriter":
        """Open the index; replace it with an empty one if it is of another format or unreadable."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            index = cls(path, _connect(path)) if read_format(path) == wanted else None
            if index is None:
                for side in SQLITE_SUFFIXES:
                    path.with_name(path.name + side).unlink(missing_ok=True)
                index = cls(path, _connect(path))
                index._create(wanted)
        except (sqlite3.Error, OSError) as error:
            raise LocalError(f"cannot keep the explorer's index in {path}: {error}") from None
        return index

    @property
    def size(self) -> int:
        return int(self.get("size") or 0)

    def get(self, name: str) -> Any:
        found = self._connection.execute("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return found[0] if found else None

    def write(self, writes: Iterable[SqlWrite], **facts: Any) -> None:
        """Write in one transaction. `facts` go into the table meta: size, source, problems."""
        try:
            with self._connection as connection:
                for statement, values in writes:
                    connection.execute(statement, values)
                for name, value in facts.items():
                    connection.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (name, value))
        except sqlite3.Error as error:
            raise LocalError(f"cannot write {self.path}: {error}") from None

    def write_head(self, head: TreeHead, note: bytes, at_ms: int) -> None:
        """Record a verified head whose entries are all in the index."""
        self.write(
            [
                ("INSERT OR REPLACE INTO heads VALUES (?,?,?,?)", (head.size, at_ms, head.root, note)),
                (
                    "DELETE FROM heads WHERE size < (SELECT size FROM heads ORDER BY size DESC LIMIT 1 OFFSET ?)",
                    (HEADS_KEPT,),
                ),
            ],
            head_size=head.size,
            head_ms=at_ms,
            problem="",
        )

    def close(self) -> None:
        self._connection.close()

    def _create(self, wanted: str) -> None:
        self._connection.executescript(TABLES)
        self.write([], size=0, head_size=0, signed_size=0, head_ms=0, problem="", local_error="", format=wanted)


def read_format(path: Path) -> str | None:
    """The format of an index; None if it is unreadable."""
    if not path.exists():
        return None
    connection = sqlite3.connect(path, timeout=30)
    try:
        found = connection.execute("SELECT value FROM meta WHERE name='format'").fetchone()
        return str(found[0]) if found else None
    except sqlite3.DatabaseError:
        return None
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("PRAGMA journal_mode=WAL")
    # A power cut may lose the last commits; folding them again is cheap.
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA cache_size=-65536")
    return connection


def _list_columns(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Every column of every table."""
    query = "SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns"
    return set(connection.execute(f"{query} WHERE tables.type = 'table'"))


@cache
def _list_needed_columns() -> set[tuple[str, str]]:
    """What the queries of this release need. An index of another format that has them can be served."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(TABLES)
        return _list_columns(connection)
    finally:
        connection.close()


def is_readable(path: Path) -> bool:
    """Whether this release can serve an index, whichever wrote it."""
    if not path.exists():
        return False
    connection = sqlite3.connect(path, timeout=30)
    try:
        return _list_needed_columns() <= _list_columns(connection)
    except sqlite3.DatabaseError:
        return False
    finally:
        connection.close()


T = TypeVar("T")


class IndexNotReady(LocalError):
    """There is no index to read yet."""


class ReadTransaction:
    """One read transaction: a page sees a single state of the index."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.row_factory = sqlite3.Row

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> sqlite3.Row | None:
        found: sqlite3.Row | None = self._connection.execute(query, values).fetchone()
        return found

    def value(self, query: str, *values: Any) -> Any:
        found = self.row(query, *values)
        return None if found is None else found[0]

    def read_meta(self) -> dict[str, Any]:
        """The table meta: facts about the index itself."""
        return {row["name"]: row["value"] for row in self.rows("SELECT name, value FROM meta")}


class IndexReader:
    """The reading side: runs queries in threads, each in one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="explorer")
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []

    async def query(self, read: Callable[[ReadTransaction], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.query_sync, read)

    def query_sync(self, read: Callable[[ReadTransaction], T]) -> T:
        """For a caller that already runs in a thread."""
        connection = self._connect()
        try:
            connection.execute("BEGIN")
            try:
                return read(ReadTransaction(connection))
            finally:
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            # The follower may be replacing the file. Any other cause is logged by the caller.
            self._local.connection = None
            raise LocalError(f"the index {self._path} cannot be read: {error}") from None

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run other slow work in the same threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown()
        for connection in self._opened:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        known = getattr(self._local, "connection", None)
        stamp = self._stamp()
        if known is not None and known[0] == stamp:
            opened: sqlite3.Connection = known[1]
            return opened
        uri = f"file:{self._path}?mode=ro"
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=5, check_same_thread=False, isolation_level=None)
            can_read = _list_needed_columns() <= _list_columns(connection)
        except sqlite3.DatabaseError as error:
            raise IndexNotReady(f"there is no index yet: {error}") from None
        if not can_read:
            connection.close()
            raise IndexNotReady("another release wrote the index; it is being rebuilt")
        self._local.connection = (stamp, connection)
        self._opened.append(connection)
        return connection

    def _stamp(self) -> int:
        """The inode: it changes when the index is replaced."""
        try:
            return self._path.stat().st_ino
        except OSError:
            raise IndexNotReady("there is no index yet") from None


def format_id(value: Any) -> Any:
    """Bytes as 0x and hex; other values unchanged."""
    return "0x" + value.hex() if isinstance(value, bytes) else value


def make_row(kind: type[T], row: sqlite3.Row, **more: Any) -> T:
    """Build a dataclass from the columns of the same names; `more` are fields without a column."""
    names = set(row.keys())
    values = {each.name: format_id(row[each.name]) for each in fields(kind) if each.name in names}  # type: ignore[arg-type]
    missing = [
        each.name
        for each in fields(kind)  # type: ignore[arg-type]
        if each.name not in {*values, *more} and each.default is MISSING
    ]
    assert not missing, f"{kind.__name__} has no {missing}"
    return kind(**{**values, **more})
