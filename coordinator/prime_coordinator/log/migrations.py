"""The database's tables, as numbered migrations. The same ones run on SQLite and PostgreSQL.

A released migration is never edited; the next change gets the next number.
"""

from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    inspect,
    select,
    text,
    update,
)

from prime_protocol.errors import LocalError

metadata = MetaData()

entries = Table(
    "entries",
    metadata,
    Column("idx", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("run", Text),
    Column("leaf", LargeBinary, nullable=False),
    Index("entries_by_kind", "kind", "idx"),
    Index("entries_by_author", "author", "idx"),
    Index("entries_by_run", "run", "idx"),
)
"""The log. Everything else in the database follows from it or may be lost."""

subjects = Table(
    "subjects",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("idx", BigInteger, primary_key=True),
)
"""The addresses and digests that entries refer to; see prime_protocol.ledger.entry_index."""

heads = Table(
    "heads",
    metadata,
    Column("size", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("note", LargeBinary, nullable=False),
)
heads_by_time = Index("heads_by_time", heads.c.at_ms)
"""Old heads are deleted with each new one, every second."""

quarantine = Table(
    "quarantine",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("at_ms", BigInteger, primary_key=True),
    Column("node", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("lease", BigInteger, nullable=False),
    Column("field", Text, nullable=False),
    Column("problem", Text, nullable=False),
    Index("quarantine_by_time", "at_ms"),
)
"""Refused files, and why."""

files = Table(
    "files",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("day", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    Column("due_ms", BigInteger),
    Index("files_by_due", "due_ms"),
)
"""Files of nodes in the object store: where each is, and when it may be deleted. NULL: not while a step holds it."""

file_holds = Table(
    "file_holds",
    metadata,
    Column("run", Text, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("submission", Text, primary_key=True),
    Index("file_holds_by_digest", "digest"),
)
"""The steps that hold a file; see retention/schedule.py."""

expired_files = Table(
    "expired_files",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("day", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("is_pending", Integer, nullable=False),
)
Index(
    "expired_files_pending",
    expired_files.c.digest,
    sqlite_where=expired_files.c.is_pending == 1,
    postgresql_where=expired_files.c.is_pending == 1,
)
"""Files that are gone, and when. Pending: the object may still be there, because the process was killed."""

file_totals = Table(
    "file_totals",
    metadata,
    Column("reason", Text, primary_key=True),
    Column("due_day", BigInteger, primary_key=True, autoincrement=False),
    Column("files", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
)
"""Sums over `files`, changed in the same transactions; the day of no due time is -1."""

meta = Table(
    "meta",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

VERSION_KEY = "schema_version"


def _create_log(connection: Connection) -> None:
    """1: append-only entries, and signed heads."""
    for table in (entries, heads):
        table.create(connection)
    guards = SQLITE_GUARDS if connection.dialect.name == "sqlite" else POSTGRESQL_GUARDS
    for statement in guards:
        connection.execute(text(statement))


def _create_subjects(connection: Connection) -> None:
    """2: the addresses and digests that entries refer to."""
    from prime_protocol.ledger.entry_index import compute_entry_keys

    subjects.create(connection)
    for idx, leaf in connection.execute(select(entries.c.idx, entries.c.leaf).order_by(entries.c.idx)):
        rows = [{"subject": subject, "idx": idx} for subject in compute_entry_keys(leaf).subjects]
        if rows:
            connection.execute(subjects.insert(), rows)


def _create_quarantine(connection: Connection) -> None:
    """3: refused files."""
    quarantine.create(connection)


def _create_files(connection: Connection) -> None:
    """4: where files of nodes are, and when they are due."""
    for table in (files, file_holds, expired_files, file_totals):
        table.create(connection)


def _index_heads(connection: Connection) -> None:
    """5: heads by time. A database that begins with this version has the index from migration 1."""
    heads_by_time.create(connection, checkfirst=True)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _create_log,
    _create_subjects,
    _create_quarantine,
    _create_files,
    _index_heads,
)

SQLITE_GUARDS = (
    "CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END",
    "CREATE TRIGGER entries_last BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END",
)
POSTGRESQL_GUARDS = (
    "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the log is append-only'; END $$",
    "CREATE TRIGGER entries_stay BEFORE UPDATE OR DELETE ON entries FOR EACH ROW EXECUTE FUNCTION refuse_change()",
    "CREATE TRIGGER entries_last BEFORE TRUNCATE ON entries FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()",
)


def get_version(connection: Connection) -> int:
    """0 for an empty database."""
    if not inspect(connection).has_table(meta.name):
        return 0
    found = connection.execute(select(meta.c.value).where(meta.c.name == VERSION_KEY)).scalar()
    return int(found or 0)


def migrate(connection: Connection, *, target: int = len(MIGRATIONS)) -> None:
    """Apply the missing migrations inside the caller's transaction: all or none."""
    version = get_version(connection)
    if version > len(MIGRATIONS):
        raise LocalError(
            f"the database has schema version {version}, this program knows up to {len(MIGRATIONS)}:"
            " install a newer release"
        )
    if version == 0:
        meta.create(connection)
        connection.execute(meta.insert().values(name=VERSION_KEY, value="0"))
    for number, step in enumerate(MIGRATIONS[version:target], version + 1):
        step(connection)
        connection.execute(update(meta).where(meta.c.name == VERSION_KEY).values(value=str(number)))
