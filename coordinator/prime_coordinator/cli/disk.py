"""`prime-coordinator disk`: what uses the disk, and what will be free when."""

import asyncio
from dataclasses import asdict

from prime_coordinator.cli.context import OperatorContext
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import check_database, database_url
from prime_coordinator.log.store import open_log_store
from prime_coordinator.retention.disk_usage import FREE_DAYS, DiskReport, DiskUse, measure_disk
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_bytes

HEADERS = ("what", "size", "files", *(f"free in {days} d" for days in FREE_DAYS), "where")


def show_disk(context: OperatorContext) -> int:
    """The coordinator may run or not."""
    config, screen = context.load_config(), context.screen
    check_database(config)
    report = asyncio.run(_measure(config, context))
    if context.args.json:
        plain = [{**asdict(each), "freed_bytes": _name_days(each)} for each in report.uses]
        screen.print_json({"uses": plain, "free_bytes": report.free_bytes})
        return 0
    screen.show(screen.table(HEADERS, [_make_row(each) for each in (*report.uses, _add_up(report))]))
    screen.print_line(f"free on this disk: {format_bytes(report.free_bytes)}")
    return 0


async def _measure(config: CoordinatorConfig, context: OperatorContext) -> DiskReport:
    store = open_log_store(database_url(config), config.database_password)
    try:
        return await measure_disk(config, store, now_ms=SystemClock().now_ms(), backups=context.args.backups)
    finally:
        store.close()


def _name_days(use: DiskUse) -> dict[str, int]:
    return {str(days): size for days, size in zip(FREE_DAYS, use.freed_bytes, strict=False)}


def _make_row(use: DiskUse) -> list[str]:
    freed = [format_bytes(each) for each in use.freed_bytes] or ["-"] * len(FREE_DAYS)
    count = "-" if use.files is None else f"{use.files:,}"
    return [use.name, format_bytes(use.size_bytes), count, *freed, use.place]


def _add_up(report: DiskReport) -> DiskUse:
    freed = [each.freed_bytes for each in report.uses if each.freed_bytes]
    return DiskUse(
        name="all",
        place="",
        files=None,
        size_bytes=sum(each.size_bytes for each in report.uses),
        freed_bytes=tuple(map(sum, zip(*freed, strict=True))),
    )
