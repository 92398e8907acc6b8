"""The log in a database: append-only, found by what it speaks of, and brought to the present from every old version."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from prime_coordinator.log.migrations import MIGRATIONS, get_version, meta, migrate
from prime_coordinator.log.store import (
    HEADS_KEPT_MS,
    LogStore,
    QuarantinedFile,
    StoredHead,
    append_entries,
    open_engine,
    open_log_store,
)
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_index import compute_entry_keys, lease_subject
from prime_protocol.wire.ids import Digest
from support.ledger_network import RUN, World


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LogStore]:
    opened = open_log_store(f"sqlite:///{tmp_path / 'log.db'}")
    yield opened
    opened.close()


def written_world() -> tuple[World, Digest]:
    world = World.started()
    return world, world.settled("ann", Outcome.ACCEPT)


async def fill(store: LogStore, leaves: list[bytes], first: int = 0) -> None:
    await store.append(first, leaves, [compute_entry_keys(leaf) for leaf in leaves])


async def test_appended_entries_are_read_in_order(store: LogStore) -> None:
    world, _ = written_world()
    await fill(store, world.leaves[:5])
    await fill(store, world.leaves[5:], 5)
    assert await store.size() == len(world.leaves)
    assert await store.read(0, len(world.leaves)) == world.leaves
    assert store.read_blocking(3, 6) == world.leaves[3:6]
    assert await store.read(len(world.leaves), len(world.leaves) + 9) == []


@pytest.mark.parametrize("first", [0, 2, 4])
async def test_an_entry_is_never_written_over_another_nor_after_a_gap(store: LogStore, first: int) -> None:
    world, _ = written_world()
    await fill(store, world.leaves[:3])
    with pytest.raises(LocalError, match="is another coordinator using it"):
        await fill(store, world.leaves[3:5], first)
    assert await store.read(0, 9) == world.leaves[:3]


@pytest.mark.parametrize("statement", ["UPDATE entries SET kind = 'x'", "DELETE FROM entries"])
async def test_the_database_itself_refuses_to_change_an_entry(tmp_path: Path, statement: str) -> None:
    world, _ = written_world()
    url = f"sqlite:///{tmp_path / 'log.db'}"
    store = open_log_store(url)
    await fill(store, world.leaves)
    store.close()
    engine = open_engine(url)
    with engine.begin() as connection, pytest.raises(Exception, match="append-only"):
        connection.execute(text(statement))
    engine.dispose()


async def test_a_commit_is_on_disk_before_it_returns(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'log.db'}")
    with engine.begin() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2, "FULL"
    engine.dispose()


async def test_entries_are_found_by_what_they_speak_of(store: LogStore) -> None:
    world, name = written_world()
    await fill(store, world.leaves)
    story = await store.list_entries(subject=name)
    audit = ["AuditDrawn", *["VerdictCommitted"] * 3, *["VerdictGiven"] * 3]
    assert [row.kind for row in reversed(story)] == ["Submitted", *audit, *audit, "Settled"]
    assert [row.index for row in story] == sorted((row.index for row in story), reverse=True)
    (lease,) = await store.list_entries(subject=lease_subject(RUN, 0), kinds=["LeaseGranted"])
    assert world.leaves[lease.index] == lease.leaf
    mine = await store.list_entries(author=world.id("ann"))
    assert {row.author for row in mine} == {str(world.id("ann"))}
    assert await store.is_subject(name)
    assert not await store.is_subject(Digest(bytes(32)))


async def test_a_listing_goes_on_where_the_page_before_ended(store: LogStore) -> None:
    world, _ = written_world()
    await fill(store, world.leaves)
    seen, before = [], None
    while page := await store.list_entries(run=RUN, limit=3, before=before):
        seen += [row.index for row in page]
        before = seen[-1]
    whole = await store.list_entries(run=RUN, limit=1000)
    assert seen == [row.index for row in whole]


async def test_heads_are_kept_for_a_day_and_signed_once(store: LogStore) -> None:
    for head in (StoredHead(1, 0, b"one"), StoredHead(2, 10, b"two"), StoredHead(2, 11, b"two again")):
        await store.add_head(head)
    assert await store.last_head() == StoredHead(2, 10, b"two")
    await store.add_head(StoredHead(3, HEADS_KEPT_MS + 5, b"three"))
    assert [head.size for head in await store.list_heads()] == [3, 2]


async def test_refused_files_are_listed_newest_first(store: LogStore) -> None:
    rows = [QuarantinedFile("0xaa", at_ms, "node", "run-1", 3, "rows", "are bad") for at_ms in (5, 9)]
    for row in (*rows, rows[1]):
        await store.add_refused(row)
    assert await store.list_refused() == rows[::-1]


async def test_a_database_that_is_gone_is_named_without_its_password() -> None:
    with pytest.raises(LocalError) as error:
        open_log_store("postgresql://prime:hunter2hunter2@127.0.0.1:1/none?connect_timeout=1")
    assert "127.0.0.1:1/none" in str(error.value)
    assert "hunter2" not in str(error.value)


async def test_a_damaged_page_is_refused_at_the_start_wherever_it_is(tmp_path: Path) -> None:
    """One that the log's own hashes do not vouch for: listings would have lost rows in silence."""
    world, _ = written_world()
    path = tmp_path / "log.db"
    store = open_log_store(f"sqlite:///{path}")
    await store.append(0, world.leaves, [compute_entry_keys(leaf) for leaf in world.leaves])
    store.close()
    with sqlite3.connect(path) as database:
        (page,) = database.execute("select rootpage from sqlite_master where name = 'entries_by_kind'").fetchone()
        (size,) = database.execute("pragma page_size").fetchone()
        database.execute("pragma wal_checkpoint(truncate)")
    database.close()
    raw = bytearray(path.read_bytes())
    raw[(page - 1) * size + 8] ^= 0x40
    path.write_bytes(raw)
    with pytest.raises(LocalError, match=r"damaged .* restore the newest backup"):
        open_log_store(f"sqlite:///{path}")


# --- Migrations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
async def test_a_log_of_every_old_version_is_whole_in_the_present_one(tmp_path: Path, version: int) -> None:
    world, name = written_world()
    url = f"sqlite:///{tmp_path / 'log.db'}"
    engine = open_engine(url)
    with engine.begin() as connection:
        migrate(connection, target=version)
        assert get_version(connection) == version
        has_subjects = inspect(connection).has_table("subjects")
        cards = [compute_entry_keys(leaf) for leaf in world.leaves]
        if has_subjects:
            append_entries(connection, 0, world.leaves, cards)
        else:
            insert_as_version_1(connection, world.leaves)
    engine.dispose()
    store = open_log_store(url)
    try:
        assert await store.read(0, 10_000) == world.leaves
        assert [row.kind for row in await store.list_entries(subject=name)][-1] == "Submitted"
    finally:
        store.close()


def insert_as_version_1(connection, leaves: list[bytes]) -> None:  # type: ignore[no-untyped-def]
    statement = text("INSERT INTO entries (idx, at_ms, kind, author, run, leaf) VALUES (:i, :t, :k, :a, :r, :l)")
    for index, leaf in enumerate(leaves):
        card = compute_entry_keys(leaf)
        values = {"i": index, "t": card.at_ms, "k": card.kind, "a": str(card.author), "r": card.run, "l": leaf}
        connection.execute(statement, values)


def test_a_migration_that_fails_leaves_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: object) -> None:
        raise RuntimeError("the power went")

    monkeypatch.setattr("prime_coordinator.log.migrations.MIGRATIONS", (*MIGRATIONS[:1], fail))
    engine = open_engine(f"sqlite:///{tmp_path / 'log.db'}")
    with pytest.raises(RuntimeError), engine.begin() as connection:
        migrate(connection, target=2)
    with engine.begin() as connection:
        assert get_version(connection) == 0
        assert inspect(connection).get_table_names() == []
    engine.dispose()


def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    open_log_store(url).close()
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(meta.update().values(value="99"))
    engine.dispose()
    with pytest.raises(LocalError, match="install a newer release"):
        open_log_store(url)
