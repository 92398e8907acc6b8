"""How much of the time nodes were there, as the coordinator beside this explorer saw it: one look a minute, counted.

The log does not say it, so a copy of the log cannot know it. The counts are kept in a file of their own; who deletes it
begins to count anew.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from prime_explorer.constants import LOOK_MS
from prime_explorer.live import Live
from prime_protocol.errors import LocalError
from prime_protocol.ids import NodeId
from prime_runtime.clock import Clock

TABLES = """
CREATE TABLE IF NOT EXISTS looks (count INTEGER);
CREATE TABLE IF NOT EXISTS seen (node BLOB PRIMARY KEY, first INTEGER, looks INTEGER) WITHOUT ROWID;
INSERT INTO looks SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM looks);
"""
COUNT = "INSERT INTO seen VALUES (?, ?, 1) ON CONFLICT (node) DO UPDATE SET looks=looks+1"


class Attendances:
    """Looks that found each node online, and all looks since it was first found."""

    def __init__(self, path: Path, live: Live, clock: Clock) -> None:
        self._path = path
        self._live = live
        self._clock = clock

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._clock.sleep_ms(LOOK_MS)
            online = self._live.list_online()
            if online is not None:
                await asyncio.to_thread(self.count, online)

    def count(self, online: Sequence[NodeId]) -> None:
        """One look."""
        try:
            connection = self._open()
            with connection:
                connection.execute("UPDATE looks SET count=count+1")
                (looks,) = connection.execute("SELECT count FROM looks").fetchone()
                connection.executemany(COUNT, [(node, looks) for node in online])
            connection.close()
        except (sqlite3.Error, OSError) as error:
            raise LocalError(f"cannot keep {self._path}: {error}; delete it to count anew") from None

    async def read(self, nodes: Sequence[NodeId]) -> dict[str, float]:
        """The share of looks since the first one that found it, by address; none for a node that was never found."""
        return await asyncio.to_thread(self.read_now, nodes) if self._path.exists() else {}

    def read_now(self, nodes: Sequence[NodeId]) -> dict[str, float]:
        try:
            connection = self._open()
            (total,) = connection.execute("SELECT count FROM looks").fetchone()
            places = ",".join("?" * len(nodes))
            found = connection.execute(f"SELECT node, first, looks FROM seen WHERE node IN ({places})", list(nodes))
            shares = {"0x" + node.hex(): looks / (1 + total - first) for node, first, looks in found}
            connection.close()
        except sqlite3.Error:
            return {}
        return shares

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=5)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(TABLES)
        return connection
