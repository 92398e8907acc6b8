"""Commands about the log: verify a mirror, export one, show the newest entries."""

import asyncio
import os
import time
from typing import Any

from prime_coordinator.cli.context import OperatorClient, OperatorContext
from prime_coordinator.cli.listing import check_limit, fetch_rows, format_row
from prime_coordinator.home import CoordinatorHome, check_database, database_url
from prime_coordinator.log.key_list import read_key_file, write_key_file
from prime_coordinator.log.mirror import copy_snapshots, write_log_copy
from prime_coordinator.log.store import open_log_store
from prime_coordinator.log.summary import describe_log, summarise_log
from prime_coordinator.log.verify import VerifyOptions, verify_log
from prime_protocol.constants import NOTE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.log.tree_head import VerifierKey
from prime_runtime.clock import SystemClock
from prime_runtime.log_files import read_bounded

FOLLOW_S = 1.0
EXIT_BROKEN = 3


def verify(context: OperatorContext) -> int:
    args = context.args
    try:
        key = VerifierKey.parse(args.key) if args.key else None
    except RemoteError as error:
        raise LocalError(f"--key is not a verifier key: {error}") from None
    remembered = read_bounded(args.head, NOTE_BYTES_MAX) if args.head else None
    try:
        with context.screen.progress_bar("verifying entries") as on_progress:
            verified = verify_log(
                args.mirror,
                VerifyOptions(
                    key=key,
                    remembered=remembered,
                    is_from_snapshot=args.from_snapshot,
                    processes=args.processes or os.cpu_count() or 1,
                    on_progress=on_progress,
                ),
            )
    except RemoteError as error:
        context.print_error(f"the log is not valid: {error}")
        return EXIT_BROKEN
    if args.json:
        context.screen.print_json(summarise_log(verified))
    else:
        for line in describe_log(verified):
            context.screen.print_line(line)
    return 0


def export(context: OperatorContext) -> int:
    config, target = context.load_config(), context.args.target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LocalError(f"{target} is not an empty folder; choose another one")
    check_database(config)
    store = open_log_store(database_url(config), config.database_password)
    try:
        head = asyncio.run(store.last_head())
        if head is None:
            raise LocalError("no tree head is signed yet: start the coordinator once")
        with context.screen.spinner(f"writing {head.size:,} entries"):
            write_key_file(target, asyncio.run(read_key_file(store)))
            write_log_copy(target, store.read_blocking, head.note, head.size)
            copy_snapshots(CoordinatorHome(config.folder).mirror, target, head.size)
    finally:
        store.close()
    context.screen.print_line(
        f"{head.size} entries written to {target}; verify them with: prime-coordinator log verify {target}"
    )
    return 0


def tail(context: OperatorContext) -> int:
    args, client = context.args, OperatorClient(context)
    check_limit(args.limit)
    names = {"kind": "kind", "author": "author", "run": "run", "subject": "about"}
    params = {names[name]: getattr(args, name) for name in names if getattr(args, name) is not None}
    rows, _ = fetch_rows(client, "entries", params, args.limit)
    last = show_entries(context, rows, -1)
    while args.follow:
        time.sleep(FOLLOW_S)
        rows, _ = fetch_rows(client, "entries", params, None, after=last)
        last = show_entries(context, rows, last)
    return 0


def show_entries(context: OperatorContext, rows: list[Any], last: int) -> int:
    """Oldest first, one line each; returns the index of the last one."""
    now_ms = SystemClock().now_ms()
    for row in reversed(rows):
        if context.args.json:
            context.screen.print_json(row, in_one_line=True)
        else:
            context.screen.print_line("  ".join(format_row("entries", row, now_ms)))
    return max([last, *(int(row["idx"]) for row in rows)])
