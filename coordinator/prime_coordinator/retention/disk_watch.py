"""Numbers of the files for `/metrics`, and a warning when the disk fills faster than files are deleted."""

import asyncio
import logging
import shutil
from pathlib import Path

from prime_coordinator.retention.disk_usage import FREE_DAYS, FULL_WARNING_MS, compute_full_ms, sum_freed
from prime_coordinator.retention.file_rows import FileTotal
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.object_names import get_day
from prime_coordinator.retention.schedule import FileReason
from prime_runtime.clock import Clock
from prime_runtime.formatting import format_bytes, format_duration
from prime_runtime.metrics import Metrics

log = logging.getLogger(__name__)


class DiskWatch:
    """The files of a running coordinator, in numbers."""

    def __init__(self, metrics: Metrics, table: FileTable, folder: Path, clock: Clock) -> None:
        self._table = table
        self._folder = folder
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        """Free bytes at the last check, and when it was."""
        reasons, days = [*FileReason], [str(each) for each in FREE_DAYS]
        self._kept = metrics.gauge("files_kept_bytes", "Bytes of nodes' files, by why they are kept.", reason=reasons)
        self._files = metrics.gauge("files_kept", "Files of nodes, by why they are kept.", reason=reasons)
        self._due = metrics.gauge("files_due_bytes", "Bytes that are due within so many days.", days=days)
        self._free = metrics.gauge("disk_free_bytes", "Free on the disk of the coordinator's folder.").at()

    async def update(self) -> None:
        """Before a scrape: one read of the sums."""
        totals = await self._table.list_totals()
        for reason in FileReason:
            mine = [each for each in totals if each.reason is reason]
            self._kept.at(reason=reason).set(sum(each.size_bytes for each in mine))
            self._files.at(reason=reason).set(sum(each.files for each in mine))
        self._set_due(totals)
        self._free.set((await asyncio.to_thread(shutil.disk_usage, self._folder)).free)

    def _set_due(self, totals: list[FileTotal]) -> None:
        freed = sum_freed(totals, get_day(self._clock.now_ms()))
        for days, size_bytes in zip(FREE_DAYS, freed, strict=True):
            self._due.at(days=str(days)).set(size_bytes)

    async def check(self) -> int | None:
        """Warn if the disk is full within FULL_WARNING_MS at the rate since the last check; returns when it is."""
        now_ms, free_bytes = self._clock.now_ms(), (await asyncio.to_thread(shutil.disk_usage, self._folder)).free
        seen, self._seen = self._seen, (free_bytes, now_ms)
        if seen is None or now_ms <= seen[1]:
            return None
        grown_bytes, duration_ms = seen[0] - free_bytes, now_ms - seen[1]
        full_ms = compute_full_ms(free_bytes=free_bytes, grown_bytes=grown_bytes, duration_ms=duration_ms)
        if full_ms is None or full_ms >= FULL_WARNING_MS:
            return None
        log.warning(
            "the disk of %s grew by %s in %s and is full in %s: more is added than the runs' terms let expire;"
            " `prime-coordinator disk` shows what uses it",
            self._folder,
            format_bytes(grown_bytes),
            format_duration(duration_ms),
            format_duration(full_ms),
        )
        return full_ms
