"""The log in a database: SQLite or PostgreSQL, chosen by URL, with the same code. One process writes, in one thread.

This module stores leaves with the keys that listings search by; it does not interpret entries. Calls run in threads, so
nothing blocks the event loop.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, delete, event, func, insert, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from prime_coordinator.log.migrations import entries, heads, migrate, quarantine, subjects
from prime_coordinator.retention.file_rows import apply_changes
from prime_coordinator.retention.schedule import FileChange
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entry_index import EntryKeys
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_runtime.redaction import Secret

T = TypeVar("T")

READER_THREADS = 4
"""Threads that read, beside the one that writes."""
CONNECTIONS = READER_THREADS + 2
"""For the readers, the writer and the thread that writes the mirror."""
HEADS_KEPT_MS = 24 * 3_600_000
"""Older signed heads are deleted: each can be recreated byte for byte from the log and its key."""
QUARANTINE_KEPT_MS = 30 * 24 * 3_600_000
APPEND_LOCK = 0x7072696D65
"""Key of the advisory lock that appending transactions take in PostgreSQL: "prime" in ASCII."""
UNACKNOWLEDGED_MS_MAX = 20_000
"""How long a PostgreSQL server may leave sent data unacknowledged."""
KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 2}
"""Seconds before an idle connection is probed, between probes, and probes that may be lost."""
CHECKED_BYTES_MAX = 64 * 2**20
"""Largest SQLite file that is checked for damage before anything else. A larger one is checked while it is in use."""
ROWS_MAX = 1_000
"""Most rows of one result."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """An entry as the database holds it."""

    index: int
    at_ms: int
    kind: str
    author: str
    run: str | None
    leaf: bytes


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A signed tree head."""

    size: int
    at_ms: int
    note: bytes


@dataclass(frozen=True, slots=True)
class QuarantinedFile:
    """A file in quarantine."""

    digest: str
    at_ms: int
    node: str
    run: str
    lease: int
    field: str
    problem: str


class LogStore:
    """The log's tables."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="log-writer")
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="log-reader")

    # --- Writing ----------------------------------------------------------------------------------------------------

    async def append(
        self,
        first_index: int,
        leaves: Sequence[bytes],
        keys: Sequence[EntryKeys],
        changes: Sequence[FileChange] = (),
    ) -> None:
        """Append these entries, with what they change about files, in one transaction; all is on disk then."""

        def write(connection: Connection) -> None:
            append_entries(connection, first_index, leaves, keys)
            apply_changes(connection, changes)

        await self._write(write)

    async def add_head(self, head: StoredHead) -> None:
        def write(connection: Connection) -> None:
            connection.execute(delete(heads).where(heads.c.at_ms < head.at_ms - HEADS_KEPT_MS))
            if connection.execute(select(heads.c.size).where(heads.c.size == head.size)).first() is None:
                connection.execute(insert(heads).values(size=head.size, at_ms=head.at_ms, note=head.note))

        await self._write(write)

    async def add_refused(self, refused: QuarantinedFile) -> None:
        def write(connection: Connection) -> None:
            connection.execute(delete(quarantine).where(quarantine.c.at_ms < refused.at_ms - QUARANTINE_KEPT_MS))
            same = (quarantine.c.digest == refused.digest) & (quarantine.c.at_ms == refused.at_ms)
            connection.execute(delete(quarantine).where(same))
            row = {name: getattr(refused, name) for name in QuarantinedFile.__slots__}
            connection.execute(insert(quarantine).values(**row))

        await self._write(write)

    async def wait_for_pending_writes(self) -> None:
        """Return once every write that a killed process had begun is either committed or rolled back."""
        await self._write(lock_appends)

    async def check_integrity(self) -> None:
        """LocalError if the file is damaged. Reads all of it."""
        await self._read(check_sqlite_integrity)

    # --- Reading ----------------------------------------------------------------------------------------------------

    async def size(self) -> int:
        return await self._read(get_log_size)

    async def read(self, start: int, stop: int) -> list[bytes]:
        """Leaves from one index up to another; fewer if the log ends before."""
        return await self._read(lambda connection: read_leaves(connection, start, stop))

    def read_blocking(self, start: int, stop: int) -> list[bytes]:
        """As `read`, for a caller that is already in a thread."""
        with explain_database_errors(self._engine), self._engine.begin() as connection:
            return read_leaves(connection, start, stop)

    async def last_head(self) -> StoredHead | None:
        found = await self.list_heads(limit=1)
        return found[0] if found else None

    async def list_heads(self, *, limit: int = ROWS_MAX) -> list[StoredHead]:
        """Newest first."""
        query = select(heads.c.size, heads.c.at_ms, heads.c.note).order_by(heads.c.size.desc()).limit(limit)
        return await self._read(lambda connection: [StoredHead(*row) for row in connection.execute(query)])

    async def list_entries(
        self,
        *,
        kinds: Sequence[str] = (),
        author: NodeId | None = None,
        run: RunId | None = None,
        subject: str | Digest | NodeId | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[LogRow]:
        """Newest first; page on with `before`, the index of the last row."""
        table = entries.c
        query = select(table.idx, table.at_ms, table.kind, table.author, table.run, table.leaf)
        if subject is not None:
            query = query.join(subjects, subjects.c.idx == table.idx).where(subjects.c.subject == str(subject))
        if kinds:
            query = query.where(table.kind.in_(kinds))
        if author is not None:
            query = query.where(table.author == str(author))
        if run is not None:
            query = query.where(table.run == str(run))
        if before is not None:
            query = query.where(table.idx < before)
        query = query.order_by(table.idx.desc()).limit(min(limit, ROWS_MAX))
        return await self._read(lambda connection: [LogRow(*row) for row in connection.execute(query)])

    async def is_subject(self, subject: str | Digest | NodeId) -> bool:
        """Whether any entry refers to it."""
        query = select(subjects.c.idx).where(subjects.c.subject == str(subject)).limit(1)
        return await self._read(lambda connection: connection.execute(query).first() is not None)

    async def list_refused(self, *, limit: int = 100) -> list[QuarantinedFile]:
        """Newest first."""
        query = select(*(quarantine.c[name] for name in QuarantinedFile.__slots__)).order_by(quarantine.c.at_ms.desc())
        bounded = query.limit(min(limit, ROWS_MAX))
        return await self._read(lambda connection: [QuarantinedFile(*row) for row in connection.execute(bounded)])

    def close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        self._engine.dispose()

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a transaction that writes, in the one thread that does."""
        return await self._write(work)

    async def query(self, work: Callable[[Connection], T]) -> T:
        """Run a transaction that only reads."""
        return await self._read(work)

    # --- Threads ----------------------------------------------------------------------------------------------------

    async def _write(self, work: Callable[[Connection], T]) -> T:
        return await self._in_thread(self._writer, work)

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._in_thread(self._readers, work)

    async def _in_thread(self, pool: ThreadPoolExecutor, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with explain_database_errors(self._engine), self._engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(pool, run)


def open_log_store(url: str, password: Secret | None = None) -> LogStore:
    """Open the database; create or migrate its tables."""
    engine = open_engine(url, password)
    with explain_database_errors(engine), engine.begin() as connection:
        if get_file_bytes(connection) <= CHECKED_BYTES_MAX:
            check_sqlite_integrity(connection)
        migrate(connection)
    return LogStore(engine)


def get_file_bytes(connection: Connection) -> int:
    """Of a SQLite database; 0 for a server."""
    if connection.dialect.name != "sqlite":
        return 0
    pages, page_bytes = (connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("page_count", "page_size"))
    return int(pages or 0) * int(page_bytes or 0)


def check_sqlite_integrity(connection: Connection) -> None:
    """Refuse a damaged SQLite file before anything is read from it or added to it.

    The log's hashes protect the entries only. A damaged index would hide entries from listings, and a damaged page that
    fails on a later write would lose entries that were acknowledged since the start.
    """
    if connection.dialect.name != "sqlite":
        return
    found = str(connection.execute(text("PRAGMA quick_check(1)")).scalar())
    if found != "ok":
        problem = " ".join(found.split())
        raise LocalError(f"the database is damaged ({problem}): restore the newest backup into a new folder")


def lock_appends(connection: Connection) -> None:
    """Hold off other appending transactions until this one ends.

    A PostgreSQL server may still finish what a killed client had sent. A new process that counted the entries before
    that would conclude that another coordinator is writing. SQLite's writes end with their process.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": APPEND_LOCK})


def append_entries(
    connection: Connection, first_index: int, leaves: Sequence[bytes], keys: Sequence[EntryKeys]
) -> None:
    """Refuse gaps and overwrites: two writers on one database would fork the log."""
    lock_appends(connection)
    size = get_log_size(connection)
    if size != first_index:
        raise LocalError(
            f"the database has {size} entries where this process has {first_index}: is another coordinator using it?"
        )
    numbered = list(enumerate(zip(leaves, keys, strict=True), first_index))
    rows = [
        {"idx": index, "at_ms": key.at_ms, "kind": key.kind, "author": str(key.author), "run": key.run, "leaf": leaf}
        for index, (leaf, key) in numbered
    ]
    connection.execute(insert(entries), rows)
    references = [{"subject": subject, "idx": index} for index, (_, key) in numbered for subject in key.subjects]
    if references:
        connection.execute(insert(subjects), references)


def get_log_size(connection: Connection) -> int:
    last = connection.execute(select(func.max(entries.c.idx))).scalar()
    return 0 if last is None else int(last) + 1


def read_leaves(connection: Connection, start: int, stop: int) -> list[bytes]:
    query = select(entries.c.leaf).where(entries.c.idx >= start, entries.c.idx < stop).order_by(entries.c.idx)
    return [bytes(leaf) for (leaf,) in connection.execute(query)]


def open_engine(url: str, password: Secret | None = None) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(parsed)
    parsed = parsed.set(drivername="postgresql+psycopg", password=password.reveal() if password else None)
    # synchronous_commit: a commit is on disk when it returns, whatever the server's default. The timeouts notice a
    # vanished server while nodes still wait for a reply; TCP alone would take a quarter of an hour.
    arguments = {
        "options": "-c synchronous_commit=on",
        "connect_timeout": 10,
        "tcp_user_timeout": UNACKNOWLEDGED_MS_MAX,
        **KEEPALIVES,
    }
    return create_engine(parsed, connect_args=arguments, pool_size=CONNECTIONS, max_overflow=0, pool_pre_ping=True)


def _open_sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": 30}, pool_size=CONNECTIONS, max_overflow=0)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        # The driver must not begin transactions by itself, or a migration would not be one transaction.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        # FULL: a commit is on disk when it returns, even if the power fails.
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


@contextmanager
def explain_database_errors(engine: Engine) -> Iterator[None]:
    """Turn a database error into one sentence for the operator, without the password in the URL."""
    try:
        yield
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        name = engine.url.render_as_string(hide_password=True)
        raise LocalError(f"the database {name} failed: {cause}") from error
