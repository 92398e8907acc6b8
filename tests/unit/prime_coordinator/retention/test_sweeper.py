"""The file table and the sweep: files go when they are due, in any order of crashes, and a sweep costs what is due."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, insert

from prime_coordinator.constants import ORPHANS_AFTER_MS, SWEEP_FILES_MAX, SWEEP_RETRY_MS
from prime_coordinator.core import Core
from prime_coordinator.log.migrations import files as files_table
from prime_coordinator.log.store import LogStore, open_log_store
from prime_coordinator.retention.file_rows import (
    ExpiredFile,
    FileTotal,
    StoredFile,
    add_file,
    apply_changes,
    expire_due,
    find_file,
    list_holding_steps,
    list_totals,
)
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.object_names import DAY_MS, FileKind, get_day
from prime_coordinator.retention.schedule import FileClaimed, FileReason, StepReleased
from prime_coordinator.retention.sweeper import FileSweeper
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.wire.ids import Digest, RunId, Step
from prime_runtime.objects.store import ObjectStore, open_object_store
from support.ledger_network import RUN, TERMS, World

UNTIL = {FileReason.ROLLOUTS: 100, FileReason.EVIDENCE: 200, FileReason.MANIFESTS: 300, FileReason.SLASHES: 900}


@dataclass
class WorldClock:
    world: World

    def now_ms(self) -> int:
        return self.world.now_ms

    def monotonic_ms(self) -> int:
        return self.world.now_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        raise AssertionError("nothing here waits")


@dataclass
class Kept:
    """A coordinator's files: table, objects and sweep."""

    world: World
    store: LogStore
    objects: ObjectStore
    table: FileTable
    sweeper: FileSweeper
    statements: list[str] = field(default_factory=list)

    async def add(self, data: bytes, kind: FileKind = FileKind.ROLLOUTS) -> StoredFile:
        digest, now_ms = Digest(sha256(data).digest()), self.world.now_ms
        file = await self.table.announce(digest, kind, size_bytes=len(data), about_ms=now_ms, now_ms=now_ms)
        await self.objects.put(file.key, data, bytes_max=1000)
        return file

    async def change(self, *changes: FileClaimed | StepReleased) -> None:
        await self.store.write(lambda connection: apply_changes(connection, changes))

    async def add_due(self, count: int) -> list[StoredFile]:
        """Files that are due at 100 ms, and there."""
        found = [await self.add(b"%d" % number) for number in range(count)]
        await self.change(*[claim(each) for each in found], release())
        return found


def claim(file: StoredFile, step: int = 0, submission: str = "0x1") -> FileClaimed:
    return FileClaimed(size=1, run=RUN, step=Step(step), digest=file.digest, submission=submission)


def release(step: int = 0, *slashed: str) -> StepReleased:
    return StepReleased(size=1, run=RUN, step=Step(step), until_ms=UNTIL, slashed=slashed)


def make_kept(tmp_path: Path, world: World | None = None, objects: ObjectStore | None = None) -> Kept:
    world = world or World.started()
    store = open_log_store(f"sqlite:///{tmp_path / 'log.db'}")
    objects = objects or open_object_store(str(tmp_path / "objects"))
    table = FileTable(store, objects, Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms))
    kept = Kept(world, store, objects, table, FileSweeper(store, objects, table, WorldClock(world)))
    event.listen(store._engine, "before_cursor_execute", lambda *args: kept.statements.append(args[2]))
    return kept


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    made = make_kept(tmp_path)
    yield made
    made.store.close()


async def test_a_file_is_held_until_its_last_step_lets_go_and_kept_as_long_as_any_of_them_asks(kept: Kept) -> None:
    file = await kept.add(b"rows")
    await kept.change(claim(file, 0), claim(file, 1, "0x2"), claim(file, 1, "0x2"))
    await kept.change(release(0, "0x1"))
    found = await kept.table.find(file.digest)
    assert isinstance(found, StoredFile)
    assert found.due_ms is None, "step 1 holds it"
    await kept.change(release(1))
    found = await kept.table.find(file.digest)
    assert isinstance(found, StoredFile)
    assert (found.due_ms, found.reason) == (UNTIL[FileReason.SLASHES], FileReason.SLASHES)


async def test_a_file_that_is_named_again_has_no_due_time_any_more(kept: Kept) -> None:
    (file,) = await kept.add_due(1)
    await kept.change(claim(file, 5))
    kept.world.wait(99 * DAY_MS)
    assert await kept.sweeper.sweep() == 0
    await kept.change(release(5))
    assert await kept.sweeper.sweep() == 1


async def test_a_verdict_that_names_a_file_of_nobody_changes_nothing(kept: Kept) -> None:
    nothing = StoredFile(
        digest=Digest(bytes(32)), kind=FileKind.EVIDENCE, day=0, size_bytes=0, reason=FileReason.EVIDENCE
    )
    await kept.change(claim(nothing), release())
    assert await kept.store.query(list_totals) == []
    assert await kept.store.query(list_holding_steps) == []


async def test_a_file_that_is_gone_is_known_with_its_time_and_one_that_no_entry_named_leaves_no_trace(
    kept: Kept,
) -> None:
    (named,), loose = await kept.add_due(1), await kept.add(b"loose")
    kept.world.wait(99 * DAY_MS)
    assert await kept.sweeper.sweep() == 2
    assert not await kept.objects.exists(named.key)
    assert not await kept.objects.exists(loose.key)
    found = await kept.table.find(named.digest)
    assert isinstance(found, ExpiredFile)
    assert (found.at_ms, found.reason, found.is_pending) == (kept.world.now_ms, FileReason.ROLLOUTS, False)
    assert await kept.table.find(loose.digest) is None
    assert await kept.table.find_expired([named.digest, loose.digest]) == {named.digest: kept.world.now_ms}
    assert await kept.store.query(list_totals) == []


async def test_a_sweep_takes_a_bounded_number_and_the_next_one_goes_on(kept: Kept) -> None:
    await kept.add_due(SWEEP_FILES_MAX + 3)
    kept.world.wait(99 * DAY_MS)
    assert [await kept.sweeper.sweep() for _ in range(3)] == [SWEEP_FILES_MAX, 3, 0]
    assert kept.sweeper.deleted == SWEEP_FILES_MAX + 3


async def test_the_sums_are_those_of_the_rows(kept: Kept) -> None:
    first, second = await kept.add(b"abc"), await kept.add(b"defgh", FileKind.EVIDENCE)
    day = get_day(first.due_ms or 0)
    unclaimed = FileTotal(reason=FileReason.UNCLAIMED, due_day=day, files=2, size_bytes=8)
    assert await kept.table.list_totals() == [unclaimed]
    await kept.change(claim(first), claim(second))
    held = [
        FileTotal(reason=FileReason.EVIDENCE, due_day=None, files=1, size_bytes=5),
        FileTotal(reason=FileReason.ROLLOUTS, due_day=None, files=1, size_bytes=3),
    ]
    assert sorted(await kept.table.list_totals(), key=lambda each: each.reason) == held
    await kept.change(release(0, "0x1"))
    (slashes,) = await kept.table.list_totals()
    assert (slashes.reason, slashes.files, slashes.size_bytes) == (FileReason.SLASHES, 2, 8)
    await kept.table.remove(first.digest)
    await kept.table.remove(first.digest)
    assert [each.files for each in await kept.table.list_totals()] == [1]


async def test_after_a_crash_between_rows_and_objects_the_next_sweep_deletes_the_objects(
    kept: Kept, tmp_path: Path
) -> None:
    before, after = await kept.add_due(2)
    kept.world.wait(99 * DAY_MS)
    gone = await kept.store.write(lambda connection: expire_due(connection, kept.world.now_ms, 10))
    assert len(gone) == 2
    await kept.objects.delete(after.key)  # killed here: one object is deleted, one is not, no row is marked
    assert await kept.objects.exists(before.key)
    kept.store.close()
    again = make_kept(tmp_path, kept.world)
    found = await again.table.find(before.digest)
    assert isinstance(found, ExpiredFile)
    assert found.is_pending
    assert await again.sweeper.sweep() == 2
    assert not await again.objects.exists(before.key)
    assert await again.sweeper.sweep() == 0
    again.store.close()


async def test_a_store_that_refuses_to_delete_is_asked_again_later(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = await kept.add_due(1)
    kept.world.wait(99 * DAY_MS)
    delete = kept.objects.delete

    async def refuse(key: str) -> None:
        raise LocalError("the bucket is away")

    monkeypatch.setattr(kept.objects, "delete", refuse)
    assert await kept.sweeper.sweep() == 0
    monkeypatch.setattr(kept.objects, "delete", delete)
    assert await kept.sweeper.sweep() == 0, "not at once"
    kept.world.wait(SWEEP_RETRY_MS)
    assert await kept.sweeper.sweep() == 1
    assert not await kept.objects.exists(file.key)


async def test_a_sweep_of_ten_files_among_a_hundred_thousand_touches_only_those(kept: Kept) -> None:
    later_ms = kept.world.now_ms + 99 * DAY_MS

    def fill(connection: Connection) -> None:
        connection.execute(
            insert(files_table),
            [
                {
                    "digest": "0x" + sha256(b"%d" % number).hexdigest(),
                    "kind": "rollouts",
                    "day": 20_000,
                    "size_bytes": 1,
                    "reason": "rollouts",
                    "until_ms": 0,
                    "due_ms": 5 if number < 10 else later_ms if number % 2 else None,
                }
                for number in range(100_000)
            ],
        )

    await kept.store.write(fill)
    kept.statements.clear()
    assert await kept.sweeper.sweep() == 10
    assert len(kept.statements) < 30, kept.statements
    kept.statements.clear()
    assert await kept.sweeper.sweep() == 0
    assert len([each for each in kept.statements if each != "BEGIN"]) == 2, kept.statements


# --- Objects without a row ------------------------------------------------------------------------------------------


async def test_an_object_that_nothing_names_is_found_by_its_day_and_one_that_the_log_names_gets_its_row_again(
    tmp_path: Path,
) -> None:
    world = World.started()
    name = world.settled("ann", Outcome.ACCEPT)
    kept = make_kept(tmp_path, world)
    await kept.store.append(0, world.leaves, [compute_entry_keys(leaf) for leaf in world.leaves])
    submission = world.submission(name)
    lost = StoredFile(
        digest=submission.file_digest,
        kind=FileKind.ROLLOUTS,
        day=get_day(submission.leased_at_ms),
        size_bytes=4,
        reason=FileReason.ROLLOUTS,
    )
    stray = f"rollouts/{'/'.join(lost.key.split('/')[1:4])}/ab/{'ab' * 32}"
    for key in (lost.key, stray, f"{stray}.txt"):
        await kept.objects.put(key, b"rows", bytes_max=10)
    assert await kept.sweeper.sweep_orphans() == 0
    assert await kept.objects.exists(stray), "it may be under way"
    world.wait(ORPHANS_AFTER_MS + DAY_MS)
    days = 0
    while await kept.sweeper.sweep_orphans() == 0:
        days += 1
        assert days < 9
    assert not await kept.objects.exists(stray)
    assert await kept.objects.exists(lost.key)
    found = await kept.table.find(lost.digest)
    assert isinstance(found, StoredFile)
    assert (found.key, found.due_ms) == (lost.key, None), "the ledger still has its submission"
    assert await kept.store.query(list_holding_steps) == [(RUN, Step(0))]
    kept.store.close()


async def test_a_file_that_the_log_names_and_nothing_has_is_not_found(tmp_path: Path) -> None:
    world = World.started()
    name = world.settled("ann", Outcome.ACCEPT)
    kept = make_kept(tmp_path, world)
    await kept.store.append(0, world.leaves, [compute_entry_keys(leaf) for leaf in world.leaves])
    assert await kept.table.find_or_rebuild(world.submission(name).file_digest) is None
    assert await kept.table.find_or_rebuild(Digest(bytes(32))) is None
    kept.store.close()


async def test_a_start_lets_go_of_the_files_of_steps_that_the_ledger_does_not_have(kept: Kept) -> None:
    old, other = await kept.add(b"old"), await kept.add(b"other")
    open_step = Step(kept.world.run.latest)
    gone = FileClaimed(size=1, run=RUN, step=Step(77), digest=old.digest)
    held = FileClaimed(size=1, run=RUN, step=open_step, digest=other.digest)
    await kept.change(gone, held)
    assert await kept.table.release_forgotten() == 1
    found = await asyncio.gather(*(kept.table.find(each.digest) for each in (old, other)))
    assert [isinstance(each, StoredFile) and each.due_ms for each in found] == [
        kept.world.state.at_ms + TERMS.rollouts_kept_ms,
        None,
    ]


async def test_steps_that_hold_files_are_listed_over_all_runs(kept: Kept) -> None:
    file = await kept.add(b"rows")
    for run, step in (("b", 2), ("a", 9), ("b", 0), ("a", 9)):
        await kept.change(FileClaimed(size=1, run=RunId(run), step=Step(step), digest=file.digest, submission=run))
    assert await kept.store.query(list_holding_steps) == [("a", 9), ("b", 0), ("b", 2)]


async def test_a_second_announcement_keeps_the_name_and_moves_the_due_time_on(kept: Kept) -> None:
    file = await kept.add(b"rows")
    kept.world.wait(DAY_MS)
    again = await kept.add(b"rows")
    assert again.key == file.key, "the day of the first"
    found = await kept.store.query(lambda connection: find_file(connection, file.digest))
    assert isinstance(found, StoredFile)
    assert found.due_ms == (file.due_ms or 0) + DAY_MS
    assert await kept.store.write(lambda connection: add_file(connection, file)) == found
