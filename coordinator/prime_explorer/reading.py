"""The index on disk, the reading side: a few threads, each with a connection that cannot write."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from prime_explorer.constants import READERS
from prime_explorer.schema import SCHEMA
from prime_protocol.errors import LocalError

T = TypeVar("T")


class NotYet(LocalError):
    """There is no index to read from yet."""


class Db:
    """One connection."""

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

    def facts(self) -> dict[str, Any]:
        """What the index says of itself."""
        return {row["name"]: row["value"] for row in self.rows("SELECT name, value FROM meta")}


class Reader:
    """Answers from one state of the index: a page is read in one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="explorer")
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []

    async def ask(self, question: Callable[[Db], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.ask_now, question)

    def ask_now(self, question: Callable[[Db], T]) -> T:
        """For a caller that is in a thread of its own."""
        connection = self._connect()
        try:
            connection.execute("BEGIN")
            try:
                return question(Db(connection))
            finally:
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            # The follower may be making it anew; else what is wrong here is for the log of this program to tell.
            self._local.connection = None
            raise LocalError(f"the index {self._path} cannot be read: {error}") from None

    async def run(self, work: Callable[[], T]) -> T:
        """Anything else that takes a moment."""
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
            made_by = connection.execute("SELECT value FROM meta WHERE name='made_by'").fetchone()
        except sqlite3.DatabaseError as error:
            raise NotYet(f"there is no index yet: {error}") from None
        if made_by is None or not made_by[0].startswith(SCHEMA):
            connection.close()
            raise NotYet("the index is of another release, and is being made anew")
        self._local.connection = (stamp, connection)
        self._opened.append(connection)
        return connection

    def _stamp(self) -> int:
        """Another file under the same name is another index."""
        try:
            return self._path.stat().st_ino
        except OSError:
            raise NotYet("there is no index yet") from None


def plain(value: Any) -> Any:
    """Ids as they print."""
    return "0x" + value.hex() if isinstance(value, bytes) else value


def as_row(kind: type[T], row: sqlite3.Row, **more: Any) -> T:
    """The columns that a dataclass has fields for; `more` are those that no column has."""
    names = set(row.keys())
    values = {each.name: plain(row[each.name]) for each in fields(kind) if each.name in names}  # type: ignore[arg-type]
    missing = [
        each.name
        for each in fields(kind)  # type: ignore[arg-type]
        if each.name not in {*values, *more} and each.default is MISSING
    ]
    assert not missing, f"{kind.__name__} has no {missing}"
    return kind(**{**values, **more})
