"""The index on disk, the writing side: one process, one connection. What is written is decided in folding.py."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prime_explorer.constants import HEADS_KEPT
from prime_explorer.schema import SCHEMA, TABLES
from prime_explorer.writes import Write
from prime_protocol.errors import LocalError
from prime_protocol.treehead import TreeHead

SIDES = ("", "-wal", "-shm")
"""What a database in WAL mode consists of."""


class Index:
    """Tables that follow from the first `size` entries of a log."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path, made_by: str) -> "Index":
        """The index in this file, or an empty one in its place where other code has made it, or nothing can read it."""
        wanted = f"{SCHEMA} {made_by}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            index = cls(path, _connect(path)) if _read_maker(path) == wanted else None
            if index is None:
                for side in SIDES:
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

    def put(self, writes: Iterable[Write], **facts: Any) -> None:
        """All of it or nothing. `facts` are about the index itself: its size, what it follows, what is wrong."""
        try:
            with self._connection as connection:
                for statement, values in writes:
                    connection.execute(statement, values)
                for name, value in facts.items():
                    connection.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (name, value))
        except sqlite3.Error as error:
            raise LocalError(f"cannot write {self.path}: {error}") from None

    def put_head(self, head: TreeHead, note: bytes, at_ms: int) -> None:
        """A head whose entries are all in the index and hold."""
        self.put(
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

    def _create(self, made_by: str) -> None:
        self._connection.executescript(TABLES)
        self.put([], size=0, head_size=0, signed_size=0, head_ms=0, problem="", trouble="", made_by=made_by)


def _read_maker(path: Path) -> str | None:
    """Which code has made it; None where there is nothing that can be read."""
    if not path.exists():
        return None
    connection = sqlite3.connect(path, timeout=30)
    try:
        found = connection.execute("SELECT value FROM meta WHERE name='made_by'").fetchone()
        return str(found[0]) if found else None
    except sqlite3.DatabaseError:
        return None
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("PRAGMA journal_mode=WAL")
    # Losing the last moments to a power cut costs folding them again.
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA cache_size=-65536")
    return connection
