"""What uses the disk, and what will be free when: sums that are kept, never a walk over the files of nodes.

The log's own folders are walked: the mirror has a file for 256 entries, and the others have a few.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.engine import make_url

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import CoordinatorHome, database_url, objects_url
from prime_coordinator.log.store import LogStore
from prime_coordinator.retention.file_rows import FileTotal, list_totals
from prime_coordinator.retention.object_names import get_day
from prime_coordinator.retention.schedule import FileReason
from prime_runtime.log_files import SNAPSHOT_FOLDER

FREE_DAYS = (1, 7, 30)
FULL_WARNING_MS = 7 * 24 * 3_600_000
"""A disk that is full within a week at the present rate is reported: enough time to buy one."""
SQLITE_SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """One row: what it is, where, and how much."""

    name: str
    place: str
    files: int | None
    """None: not counted."""
    size_bytes: int
    freed_bytes: tuple[int, ...] = ()
    """Within each of FREE_DAYS; empty where nothing is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReport:
    """What `prime-coordinator disk` shows."""

    uses: tuple[DiskUse, ...]
    free_bytes: int
    """On the disk of the coordinator's folder."""


def sum_freed(totals: Sequence[FileTotal], today: int) -> tuple[int, ...]:
    """Bytes that become due within each of FREE_DAYS, from the sums by day."""
    due = [(each.due_day, each.size_bytes) for each in totals if each.due_day is not None]
    return tuple(sum(size for day, size in due if day < today + days) for days in FREE_DAYS)


def compute_full_ms(*, free_bytes: int, grown_bytes: int, duration_ms: int) -> int | None:
    """When the disk is full if it goes on like this. None: it does not grow."""
    return None if grown_bytes <= 0 else free_bytes * duration_ms // grown_bytes


async def measure_disk(config: CoordinatorConfig, store: LogStore, *, now_ms: int, backups: Path | None) -> DiskReport:
    """Of a coordinator, running or not: it only reads."""
    home = CoordinatorHome(config.folder)
    totals, today = await store.query(list_totals), get_day(now_ms)
    uses = [await _measure_database(config, store)]
    snapshots = home.mirror / SNAPSHOT_FOLDER
    uses.append(_measure_folder("mirror", home.mirror, skipped=snapshots))
    uses.append(_measure_folder("snapshots", snapshots))
    for reason in FileReason:
        mine = [each for each in totals if each.reason is reason]
        uses.append(
            DiskUse(
                name=str(reason),
                place=objects_url(config),
                files=sum(each.files for each in mine),
                size_bytes=sum(each.size_bytes for each in mine),
                freed_bytes=sum_freed(mine, today),
            )
        )
    if config.objects is None:
        uses.append(_measure_folder("quarantine", home.objects / "quarantine"))
        uses.append(_measure_folder("datasets", home.objects / "datasets"))
    uses.append(_measure_folder("explorer index", home.explorer))
    if backups is not None:
        uses.append(_measure_folder("backups", backups))
    return DiskReport(uses=tuple(uses), free_bytes=shutil.disk_usage(config.folder).free)


async def _measure_database(config: CoordinatorConfig, store: LogStore) -> DiskUse:
    """PostgreSQL counts its own files."""
    url = make_url(database_url(config))
    if url.get_backend_name() == "postgresql":
        size_bytes = await store.query(
            lambda connection: connection.execute(select(func.pg_database_size(func.current_database()))).scalar()
        )
        place = url.render_as_string(hide_password=True)
        return DiskUse(name="database", place=place, files=None, size_bytes=size_bytes or 0)
    path = url.database or ""
    found = [size for suffix in SQLITE_SUFFIXES if (size := _get_size(Path(path + suffix))) is not None]
    return DiskUse(name="database", place=path, files=len(found), size_bytes=sum(found))


def _get_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _measure_folder(name: str, folder: Path, *, skipped: Path | None = None) -> DiskUse:
    files = size_bytes = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if Path(parent, each) != skipped]
        sizes = [size for each in names if (size := _get_size(Path(parent, each))) is not None]
        files, size_bytes = files + len(sizes), size_bytes + sum(sizes)
    return DiskUse(name=name, place=str(folder), files=files, size_bytes=size_bytes)
