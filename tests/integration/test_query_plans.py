"""Every query over the coordinator's database finds its rows by an index, on SQLite and on PostgreSQL.

All that the log store, the file table and the sweep can ask is asked once. The statements are recorded as the database
gets them, and the plan of each is read.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from prime_coordinator.constants import ORPHANS_AFTER_MS
from prime_coordinator.core import Core
from prime_coordinator.log.store import LogStore, QuarantinedFile, StoredHead, open_log_store
from prime_coordinator.retention.file_rows import apply_changes, list_holding_steps
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.object_names import DAY_MS, FileKind
from prime_coordinator.retention.schedule import FileClaimed, FileReason, StepReleased
from prime_coordinator.retention.sweeper import FileSweeper
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_runtime.clock import Clock
from prime_runtime.objects.store import open_object_store
from support.ledger_network import RUN, World
from support.processes.postgres import create_database, running_postgres

SMALL = ("meta", "file_totals")
"""A few names, and one row for each reason and day of the years that files are kept."""
LISTED = ("SELECT heads.", "SELECT quarantine.")
"""Read in the order of the result and cut off after a page."""

PARTIAL = "USING INDEX expired_files_pending"
"""An index of only the rows that are asked for."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield url


class MovableClock:
    """A clock that only moves when told."""

    def __init__(self, now_ms: int) -> None:
        self.at_ms = now_ms

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        raise AssertionError("nothing here waits")


async def ask_everything(store: LogStore, world: World, name: Digest, objects: Path, clock: MovableClock) -> None:
    """Every method that reads or writes."""
    leaves = world.leaves
    await store.append(0, leaves, [compute_entry_keys(leaf) for leaf in leaves])
    await store.add_head(StoredHead(5, 1, b"note"))
    refused = QuarantinedFile("0x1", 1, "node", RUN, 1, "field", "problem")
    await store.add_refused(refused)
    await store.wait_for_pending_writes()
    await store.size()
    await store.read(0, 3)
    await store.last_head()
    await store.list_refused()
    await store.is_subject(name)
    ann: NodeId = world.id("ann")
    for subject in (None, name):
        for kinds in ((), ["Submitted"], ["Submitted", "Settled"]):
            for author in (None, ann):
                for run in (None, RUN):
                    for before in (None, 20):
                        await store.list_entries(kinds=kinds, author=author, run=run, subject=subject, before=before)
    await ask_about_files(store, world, name, objects, clock)


async def ask_about_files(store: LogStore, world: World, name: Digest, folder: Path, clock: Clock) -> None:
    core = Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms)
    objects = open_object_store(str(folder))
    table = FileTable(store, objects, core)
    sweeper = FileSweeper(store, objects, table, clock)
    found = []
    for number in range(3):
        digest = Digest(bytes([number]) * 32)
        announced = await table.announce(digest, FileKind.ROLLOUTS, size_bytes=9, about_ms=1, now_ms=number)
        again = await table.announce(digest, FileKind.ROLLOUTS, size_bytes=9, about_ms=1, now_ms=9)
        assert again.key == announced.key
        await objects.put(announced.key, b"bytes", bytes_max=9)
        found.append(announced)
    claims = [FileClaimed(size=1, run=RUN, step=Step(77), digest=each.digest) for each in found]
    until_ms = dict.fromkeys(FileReason, 5)
    released = StepReleased(size=1, run=RUN, step=Step(77), until_ms=until_ms, slashed=("0x1",))
    await store.write(lambda connection: apply_changes(connection, claims))
    await store.query(list_holding_steps)
    await table.find(found[0].digest)
    await table.find_expired([each.digest for each in found])
    await table.find_or_rebuild(world.submission(name).file_digest)
    await table.list_totals()
    await table.release_forgotten()
    await store.write(lambda connection: apply_changes(connection, [*claims, released]))
    await table.remove(found[2].digest)
    assert await sweeper.sweep() == 2
    await sweeper.sweep_orphans()


def record_statements(engine: Engine) -> dict[str, Any]:
    """What the database is asked, each with one set of its values."""
    asked: dict[str, Any] = {}

    def record(connection: Any, cursor: Any, statement: str, values: Any, context: Any, is_many: bool) -> None:
        if statement.split(" ", 1)[0] in ("SELECT", "UPDATE", "DELETE") and "pg_advisory" not in statement:
            asked[statement] = values[0] if is_many else values

    event.listen(engine, "before_cursor_execute", record)
    return asked


def read_plan(engine: Engine, statement: str, values: Any) -> list[str]:
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            return [row[3] for row in rows]
        # Tables of a few rows are scanned whatever index they have; this asks whether there is another way.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        return [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", values)]


def find_problem(statement: str, plan: list[str]) -> str | None:
    """Whether a query reads a share of a large table, or sorts one."""
    found = [line for line in plan if not line.endswith(PARTIAL)]
    scanned = {match[1] for line in found if (match := re.search(r"(?:^SCAN|Seq Scan on) (\w+)", line))} - set(SMALL)
    is_page = statement.replace("\n", " ").startswith(LISTED) or " WHERE " not in statement.replace("\n", " ")
    if any("Seq Scan on" in line for line in plan) and scanned:
        return f"scans {', '.join(scanned)}"
    if scanned and not (is_page and "LIMIT" in statement):
        return f"scans {', '.join(scanned)}"
    return None


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_no_query_of_the_log_store_and_the_file_table_reads_a_large_table_without_an_index(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_postgres = kind == "postgresql"
    url = (
        create_database(request.getfixturevalue("postgres"), "plans") if is_postgres else f"sqlite:///{tmp_path}/log.db"
    )
    world = World.started()
    name = world.settled("ann", Outcome.ACCEPT)
    store = open_log_store(url)
    engine = store._engine
    asked = record_statements(engine)
    clock = MovableClock(world.now_ms + ORPHANS_AFTER_MS + 9 * DAY_MS)
    await ask_everything(store, world, name, tmp_path / "objects", clock)
    assert len(asked) > 50
    problems = []
    for statement, values in sorted(asked.items()):
        plan = read_plan(engine, statement, values)
        problem = find_problem(statement, plan)
        if problem:
            problems.append(f"{statement} {problem}: {plan}")
    store.close()
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("statement", "plan", "is_bad"),
    [
        ("SELECT x FROM files WHERE reason = ?", ["SCAN files"], True),
        ("SELECT x FROM files WHERE due_ms <= ? LIMIT ?", ["SEARCH files USING INDEX files_by_due (due_ms<?)"], False),
        ("SELECT x FROM files WHERE reason = %s", ["Seq Scan on files  (cost=1..2)"], True),
        ("SELECT heads.size FROM heads ORDER BY heads.size DESC LIMIT ?", ["SCAN heads"], False),
        ("SELECT x FROM file_totals", ["SCAN file_totals"], False),
    ],
)
def test_a_bad_plan_of_the_database_is_told_from_a_good_one(statement: str, plan: list[str], is_bad: bool) -> None:
    assert (find_problem(statement, plan) is not None) is is_bad
