"""Commands that only show something: status, and the listings and details of the read API.

How a row becomes the cells of a table is here too. A field's name says its unit, and so how it is shown.
"""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prime_coordinator.cli.context import OperatorClient, OperatorContext
from prime_coordinator.constants import PAGE_ROWS_MAX
from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock
from prime_runtime.console import CommandOutput, stack
from prime_runtime.formatting import format_amount, format_relative_time, format_time

WATCH_S = 2.0


def _columns(spec: str) -> dict[str, str]:
    """Field by header, from `header=field` or one word for both, separated by commas."""
    return {header: field or header for header, _, field in (part.partition("=") for part in spec.split(", "))}


COLUMNS: dict[str, dict[str, str]] = {
    "runs": _columns(
        "run, status, step=latest_step, done=slots_done, held=slots_held, slots=slots_per_step, leases=leases_open, "
        "open=submissions_open, slashes=slashes_open, validators, pool=pool_nano, model"
    ),
    "nodes": _columns(
        "node, status, phase, doing=activity, roles, heartbeat=last_beat_ms, step=checkpoint_step, stake=stake_nano, "
        "accepted, invalid, fraudulent, faults"
    ),
    "leases": _columns(
        "run, lease, node, step, first slot=first_slot, slots, deadline=deadline_ms, duplicate=speculative"
    ),
    "submissions": _columns("submission, run, step, node, when=at_ms, progress, verdicts, of=validators, credited"),
    "verdicts": _columns("entry=index, when=at_ms, submission, validator, outcome, reason"),
    "slashes": _columns(
        "entry=index, when=at_ms, submission, node, amount=amount_nano, progress, appeal until=appeal_until_ms"
    ),
    "appeals": _columns("entry=index, when=at_ms, submission, by=author, progress, reason"),
    "checkpoints": _columns("entry=index, when=at_ms, run, step, trained on=trained_on, root, beacon"),
    "refused": _columns("when=at_ms, run, node, lease, field, problem, file=digest"),
    "entries": _columns("entry=index, when=at_ms, kind, author, run, content=body"),
}
"""Columns of each listing: header and field of the row."""


def format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(format_value, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={format_value(each)}" for name, each in value.items()) or "-"
    return str(value)


def format_row(route: str, row: Mapping[str, Any], now_ms: int) -> list[str]:
    return [_format_cell(route, field, row[field], now_ms) for field in COLUMNS[route].values()]


def _format_cell(route: str, field: str, value: Any, now_ms: int) -> str:
    if field.endswith("_nano"):
        return format_amount(int(value))
    if field.endswith("_ms"):
        # Lines of `log tail` are kept in files, where a distance in time would mean nothing.
        return format_time(value) if route == "entries" else format_relative_time(value, now_ms)
    return format_value(value)


def format_fields(row: Mapping[str, Any], now_ms: int, prefix: str = "") -> list[tuple[str, str]]:
    """Every field of a row but its lists of rows; `summary` and `terms` are unfolded."""
    found: list[tuple[str, str]] = []
    for name, value in row.items():
        if isinstance(value, dict) and name in ("summary", "terms"):
            found += format_fields(value, now_ms, "" if name == "summary" else f"{name}.")
        elif name.endswith("_nano"):
            found.append((prefix + name.removesuffix("_nano"), format_amount(int(value))))
        elif name.endswith(("at_ms", "_until_ms", "_beat_ms", "deadline_ms", "_by_ms")) and value:
            shown = f"{format_time(value)} ({format_relative_time(value, now_ms)})"
            found.append((prefix + name.removesuffix("_ms"), shown))
        elif not _is_table(value):
            found.append((prefix + name, format_value(value)))
    return found


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


# --- Listings and details ---------------------------------------------------------------------------------------------


def show_listing(context: OperatorContext) -> int:
    args, screen = context.args, context.screen
    check_limit(args.limit)
    params = {name: getattr(args, name) for name in args.filters if getattr(args, name) is not None}
    rows, is_cut = fetch_rows(OperatorClient(context), args.route, params, None if args.all else args.limit)
    if args.json:
        screen.print_json(rows)
        return 0
    if not rows:
        screen.print_line("none")
        return 0
    now_ms = SystemClock().now_ms()
    screen.show(screen.table(list(COLUMNS[args.route]), [format_row(args.route, row, now_ms) for row in rows]))
    if is_cut and screen.is_terminal:
        screen.print_line(f"first {len(rows)} rows; there are more: use --all, or --limit N")
    return 0


def check_limit(limit: int) -> None:
    if limit < 1:
        raise LocalError(f"--limit is {limit}, the least is 1")


def fetch_rows(
    client: OperatorClient, route: str, params: dict[str, str], limit: int | None, *, after: int = -1
) -> tuple[list[Any], bool]:
    """Rows of as many pages as it takes, and whether there are more. `after` ends at the row with this index."""
    rows: list[Any] = []
    cursor: str | None = None
    while limit is None or len(rows) < limit:
        wanted = PAGE_ROWS_MAX if limit is None else min(PAGE_ROWS_MAX, limit - len(rows))
        page = client.query(route, {**params, "limit": str(wanted), **({"cursor": cursor} if cursor else {})})
        fresh = [row for row in page["rows"] if row.get("index", after + 1) > after]
        rows += fresh
        cursor = page["next"]
        if cursor is None or len(fresh) < len(page["rows"]):
            break
    return rows, cursor is not None


def show_detail(context: OperatorContext) -> int:
    args, screen = context.args, context.screen
    row = OperatorClient(context).query(args.route, {args.param: args.name})
    if args.json:
        screen.print_json(row)
        return 0
    screen.show(screen.key_value_table(format_fields(row, SystemClock().now_ms())))
    for title, rows in row.items():
        if _is_table(rows):
            lines = [list(map(format_value, each.values())) for each in rows]
            screen.show(Text(""), screen.table(list(rows[0]), lines, title=title))
    return 0


# --- Status -----------------------------------------------------------------------------------------------------------


def show_status(context: OperatorContext) -> int:
    client, screen = OperatorClient(context), context.screen
    if context.args.json:
        screen.print_json(client.query("status", {}))
        return 0
    if not context.args.watch:
        screen.show(draw_status(screen, client.query("status", {})))
        return 0
    with screen.live() as live:
        while True:
            live.update(draw_status(screen, client.query("status", {})), refresh=True)
            time.sleep(WATCH_S)


def draw_status(screen: CommandOutput, status: dict[str, Any]) -> RenderableType:
    nodes, submissions = status["nodes"], status["submissions"]
    value = {name.removesuffix("_nano"): format_amount(amount) for name, amount in status["value"].items()}
    newest = format_relative_time(status["newest_entry_ms"], status["now_ms"])
    grid = screen.key_value_table(
        [
            ("network", status["network"]),
            ("coordinator", status["coordinator"]),
            ("log key", status["log_key"]),
            ("log", f"{status['entries']:,} entries, newest {newest}; head over {status['head_size']:,}"),
            ("nodes", f"{nodes['registered']:,}: " + format_counts(nodes, "online", "late", "lost")),
            ("leases", f"{status['leases_open']:,} open"),
            ("submissions", format_counts(submissions, *submissions)),
            ("slashes", f"{status['slashes_open']:,} open"),
            (f"value ({status['ticker']})", ", ".join(f"{amount} {name}" for name, amount in value.items())),
        ]
    )
    if not status["runs"]:
        return stack(grid, Text("runs: none yet; create one with: prime-coordinator run create"))
    table = screen.table(["run", "status", "step", "slots done", "", "held", "leases", "validators", "pool"], [])
    for run in status["runs"]:
        add_run_row(screen, table, run)
    return stack(grid, Text(""), table)


def add_run_row(screen: CommandOutput, table: Table, run: dict[str, Any]) -> None:
    done, total = run["slots_done"], run["slots_per_step"]
    bar = ProgressBar(total=total, completed=done, width=20) if screen.is_terminal else Text("")
    left = [run["run"], run["status"], str(run["latest_step"]), f"{done}/{total}"]
    right = [*(str(run[name]) for name in ("slots_held", "leases_open", "validators")), format_amount(run["pool_nano"])]
    table.add_row(*map(Text, left), bar, *map(Text, right))


def format_counts(found: dict[str, int], *names: str) -> str:
    return ", ".join(f"{found[name]:,} {name}" for name in names)
