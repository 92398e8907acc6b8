"""What uses the disk and what will be free: from sums, of a coordinator that does not run; and the warning."""

import logging
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.core import Core
from prime_coordinator.home import CoordinatorHome, database_url
from prime_coordinator.log.store import LogStore, open_log_store
from prime_coordinator.retention.disk_usage import FULL_WARNING_MS, compute_full_ms, measure_disk, sum_freed
from prime_coordinator.retention.disk_watch import DiskWatch
from prime_coordinator.retention.file_rows import FileTotal
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.object_names import DAY_MS, FileKind
from prime_coordinator.retention.schedule import FileReason
from prime_protocol.wire.ids import Digest
from prime_runtime.metrics import Metrics
from prime_runtime.objects.store import open_object_store
from support.ledger_network import World

Usage = namedtuple("Usage", "total used free")


def make_total(due_day: int | None, size_bytes: int) -> FileTotal:
    return FileTotal(reason=FileReason.ROLLOUTS, due_day=due_day, files=1, size_bytes=size_bytes)


def test_what_is_due_within_a_day_a_week_and_a_month_adds_up() -> None:
    today = 100
    totals = [make_total(*each) for each in ((None, 1), (90, 2), (100, 4), (101, 8), (106, 16), (107, 32), (500, 64))]
    assert sum_freed(totals, today) == (2 + 4, 2 + 4 + 8 + 16, 2 + 4 + 8 + 16 + 32)
    assert sum_freed([], today) == (0, 0, 0)


def test_a_disk_is_full_when_what_is_free_is_used_at_the_present_rate() -> None:
    assert compute_full_ms(free_bytes=1000, grown_bytes=10, duration_ms=60) == 6000
    assert compute_full_ms(free_bytes=1000, grown_bytes=0, duration_ms=60) is None
    assert compute_full_ms(free_bytes=1000, grown_bytes=-5, duration_ms=60) is None


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.at_ms = now_ms

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        raise AssertionError("nothing here waits")


def open_table(store: LogStore, folder: Path, world: World) -> FileTable:
    core = Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms)
    return FileTable(store, open_object_store(str(folder / "objects")), core)


async def test_every_part_of_the_folder_is_in_the_report_and_files_of_nodes_are_not_walked(tmp_path: Path) -> None:
    config = CoordinatorConfig(folder=tmp_path)
    home, world = CoordinatorHome(tmp_path), World.started()
    store = open_log_store(database_url(config))
    table = open_table(store, tmp_path, world)
    await table.announce(Digest(bytes(32)), FileKind.ROLLOUTS, size_bytes=7, about_ms=0, now_ms=world.now_ms)
    for place, size in (
        (home.mirror / "checkpoint", 3),
        (home.mirror / "snapshot" / "50", 5),
        (home.objects / "rollouts" / "not-walked", 1000),
        (home.objects / "quarantine" / "ab" / "cd", 11),
        (home.explorer / "index.db", 13),
        (tmp_path / "backups" / "one" / "manifest.json", 17),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes(size))
    report = await measure_disk(config, store, now_ms=world.now_ms, backups=tmp_path / "backups")
    store.close()
    found = {each.name: (each.files, each.size_bytes) for each in report.uses if each.name != "database"}
    assert found == {
        "mirror": (1, 3),
        "snapshots": (1, 5),
        "unclaimed": (1, 7),
        "rollouts": (0, 0),
        "evidence": (0, 0),
        "manifests": (0, 0),
        "slashes": (0, 0),
        "quarantine": (1, 11),
        "datasets": (0, 0),
        "explorer index": (1, 13),
        "backups": (1, 17),
    }
    unclaimed = next(each for each in report.uses if each.name == "unclaimed")
    assert unclaimed.freed_bytes == (0, 7, 7)
    assert next(each for each in report.uses if each.name == "database").size_bytes > 0
    assert report.free_bytes > 0


async def test_a_disk_that_fills_within_a_week_is_reported_once_in_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, world, clock = open_log_store(f"sqlite:///{tmp_path / 'log.db'}"), World.started(), Clock(DAY_MS)
    metrics = Metrics("test")
    watch = DiskWatch(metrics, open_table(store, tmp_path, world), tmp_path, clock)
    free = [10**12]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free[0]))
    assert await watch.check() is None, "there is nothing to compare with"
    assert await watch.check() is None, "no time has passed"
    clock.at_ms += 3_600_000
    free[0] -= 10**6
    assert await watch.check() is None, "it takes a century"
    clock.at_ms += 3_600_000
    free[0] -= 10**11
    with caplog.at_level(logging.WARNING):
        full_ms = await watch.check()
    assert full_ms is not None
    assert 0 < full_ms < FULL_WARNING_MS
    assert "grew by 100.0 GB in 1 h 0 min and is full in 8 h" in caplog.text
    await watch.update()
    store.close()
    assert "prime_test_disk_free_bytes 8.99999e+11" in generate_latest(metrics.registry).decode()
