"""Deletes the files that are due, a few at a time, and the objects that no row names.

Each tick takes at most SWEEP_FILES_MAX files, oldest first, so it costs what is due. The rows move first: from then on
a reader is told that the file expired. Then the objects are deleted, and the rows are marked. After kill -9 at any
point the next tick deletes the same objects again, which is harmless.

An object without a row is what a crash or a lost database leaves. Names begin with a day, and a row exists before its
object does. So each day's folder is searched once, some days later, and never again.
"""

import asyncio
import logging
from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update

from prime_coordinator.constants import DELETES_AT_ONCE, ORPHANS_AFTER_MS, SWEEP_FILES_MAX, SWEEP_RETRY_MS
from prime_coordinator.log.migrations import meta
from prime_coordinator.log.store import LogStore
from prime_coordinator.retention.file_rows import (
    ExpiredFile,
    StoredFile,
    expire_due,
    finish_expired,
    has_due,
    list_pending,
    list_unknown,
)
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.object_names import DATED_KINDS, get_day, make_day_prefix
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import Clock
from prime_runtime.objects.store import ObjectStore

log = logging.getLogger(__name__)

ORPHANS_DAY = "orphans_day"
"""In the table `meta`: the next day whose folder is searched for objects without a row."""
KEYS_AT_ONCE = 500
"""Names of one listing that are compared with the table in one query."""


class FileSweeper:
    """The sweep of one coordinator."""

    def __init__(self, store: LogStore, objects: ObjectStore, table: FileTable, clock: Clock) -> None:
        self._store = store
        self._objects = objects
        self._table = table
        self._clock = clock
        self._paused_until_ms = 0
        """After the object store failed: it is asked again later."""
        self.deleted = 0
        """Files deleted since the start."""

    async def sweep(self) -> int:
        """Delete up to SWEEP_FILES_MAX files that are due; returns how many."""
        now_ms = self._clock.now_ms()
        if now_ms < self._paused_until_ms:
            return 0
        gone = await self._store.query(lambda connection: list_pending(connection, SWEEP_FILES_MAX))
        if not gone and await self._store.query(lambda connection: has_due(connection, now_ms)):
            gone = await self._store.write(lambda connection: expire_due(connection, now_ms, SWEEP_FILES_MAX))
        if gone:
            try:
                await self._delete([each.key for each in gone])
            except LocalError as error:
                log.warning("cannot delete files that are due, and will try again: %s", error)
                self._paused_until_ms = now_ms + SWEEP_RETRY_MS
                return 0
            await self._store.write(lambda connection: finish_expired(connection, gone))
            self.deleted += len(gone)
            log.info("deleted %d files that were due: %s", len(gone), _describe(gone))
        return len(gone)

    async def sweep_orphans(self) -> int:
        """Search the oldest day that was not searched, if it is old enough; returns how many objects were deleted."""
        last_day = get_day(self._clock.now_ms() - ORPHANS_AFTER_MS) - 1
        day = await self._store.query(_read_orphans_day)
        if day is None:
            day = get_day(await self._find_start_ms())
        found = 0
        if day <= last_day:
            for kind in DATED_KINDS:
                found += await self._sweep_folder(make_day_prefix(kind, day))
            await self._store.write(lambda connection: _write_orphans_day(connection, day + 1))
        return found

    async def _find_start_ms(self) -> int:
        """When the network began: no object is older."""
        first = await self._store.read(0, 1)
        return decode_leaf(first[0])[0] if first else self._clock.now_ms()

    async def _sweep_folder(self, prefix: str) -> int:
        found, batch = 0, []
        async for listed in self._objects.list(prefix):
            batch.append(listed.key)
            if len(batch) >= KEYS_AT_ONCE:
                found += await self._delete_unknown(batch)
                batch = []
        return found + await self._delete_unknown(batch)

    async def _delete_unknown(self, keys: Sequence[str]) -> int:
        named: dict[Digest, str] = {}
        for key in keys:
            try:
                named[Digest.parse("0x" + key.rpartition("/")[2])] = key
            except RemoteError:
                log.warning("%s is no file of a node; it stays", key)
        unknown = await self._store.query(lambda connection: list_unknown(connection, list(named)))
        # The log may name it: then only its row was lost, and it is made again.
        found = [(each, await self._table.find_or_rebuild(each)) for each in unknown]
        orphans = [named[each] for each, file in found if not isinstance(file, StoredFile)]
        await self._delete(orphans)
        if orphans:
            log.info("deleted %d objects that no row and no entry names", len(orphans))
        return len(orphans)

    async def _delete(self, keys: Sequence[str]) -> None:
        """A few at once: a bucket answers each after some ten milliseconds."""
        limit = asyncio.Semaphore(DELETES_AT_ONCE)

        async def delete(key: str) -> None:
            async with limit:
                await self._objects.delete(key)

        await asyncio.gather(*map(delete, keys))


def _describe(gone: Sequence[ExpiredFile]) -> str:
    reasons = [str(each.reason) for each in gone]
    return ", ".join(f"{reasons.count(reason)} {reason}" for reason in sorted(set(reasons)))


def _read_orphans_day(connection: Connection) -> int | None:
    found = connection.execute(select(meta.c.value).where(meta.c.name == ORPHANS_DAY)).scalar()
    return None if found is None else int(found)


def _write_orphans_day(connection: Connection, day: int) -> None:
    changed = connection.execute(update(meta).where(meta.c.name == ORPHANS_DAY).values(value=str(day)))
    if not changed.rowcount:
        connection.execute(insert(meta).values(name=ORPHANS_DAY, value=str(day)))
