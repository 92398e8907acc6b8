"""How the rows of each listing become the cells of a table: columns, and the words for times and amounts. Pure.

Commands that only show: status, and every listing and detail of questions.py.
"""

import time
from collections.abc import Callable, Mapping
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

CellFormat = Callable[[Any, int], str]
"""A value of a row and the present time to what is shown."""


def format_plain(value: Any, now_ms: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(format_plain(each, now_ms) for each in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={format_plain(each, now_ms)}" for name, each in value.items()) or "-"
    return str(value)


def format_amount_cell(value: Any, now_ms: int) -> str:
    return format_amount(int(value))


def format_time_cell(value: Any, now_ms: int) -> str:
    return format_time(value)


def format_distance(value: Any, now_ms: int) -> str:
    return format_relative_time(value, now_ms)


COLUMNS: dict[str, dict[str, tuple[str, CellFormat]]] = {
    "runs": {
        "run": ("run", format_plain),
        "status": ("status", format_plain),
        "step": ("latest_step", format_plain),
        "done": ("slots_done", format_plain),
        "held": ("slots_held", format_plain),
        "slots": ("slots_per_step", format_plain),
        "leases": ("leases_open", format_plain),
        "open": ("submissions_open", format_plain),
        "slashes": ("slashes_open", format_plain),
        "validators": ("validators", format_plain),
        "pool": ("pool_nano", format_amount_cell),
        "model": ("model", format_plain),
    },
    "nodes": {
        "node": ("node", format_plain),
        "status": ("status", format_plain),
        "phase": ("phase", format_plain),
        "doing": ("activity", format_plain),
        "roles": ("roles", format_plain),
        "beat": ("last_beat_ms", format_distance),
        "step": ("checkpoint_step", format_plain),
        "stake": ("stake_nano", format_amount_cell),
        "accepted": ("accepted", format_plain),
        "soft": ("soft", format_plain),
        "hard": ("hard", format_plain),
        "faults": ("faults", format_plain),
    },
    "leases": {
        "run": ("run", format_plain),
        "lease": ("lease", format_plain),
        "node": ("node", format_plain),
        "step": ("step", format_plain),
        "first slot": ("first_slot", format_plain),
        "slots": ("slots", format_plain),
        "deadline": ("deadline_ms", format_distance),
        "twin": ("speculative", format_plain),
    },
    "submissions": {
        "submission": ("submission", format_plain),
        "run": ("run", format_plain),
        "step": ("step", format_plain),
        "node": ("node", format_plain),
        "when": ("at_ms", format_distance),
        "progress": ("progress", format_plain),
        "verdicts": ("verdicts", format_plain),
        "of": ("validators", format_plain),
        "credited": ("credited", format_plain),
    },
    "verdicts": {
        "entry": ("index", format_plain),
        "when": ("at_ms", format_distance),
        "submission": ("submission", format_plain),
        "validator": ("validator", format_plain),
        "outcome": ("outcome", format_plain),
        "reason": ("reason", format_plain),
    },
    "slashes": {
        "entry": ("index", format_plain),
        "when": ("at_ms", format_distance),
        "submission": ("submission", format_plain),
        "node": ("node", format_plain),
        "amount": ("amount_nano", format_amount_cell),
        "progress": ("progress", format_plain),
        "appeal until": ("appeal_until_ms", format_distance),
    },
    "appeals": {
        "entry": ("index", format_plain),
        "when": ("at_ms", format_distance),
        "submission": ("submission", format_plain),
        "by": ("author", format_plain),
        "progress": ("progress", format_plain),
        "reason": ("reason", format_plain),
    },
    "checkpoints": {
        "entry": ("index", format_plain),
        "when": ("at_ms", format_distance),
        "run": ("run", format_plain),
        "step": ("step", format_plain),
        "trained on": ("trained_on", format_plain),
        "root": ("root", format_plain),
        "beacon": ("beacon", format_plain),
    },
    "refused": {
        "when": ("at_ms", format_distance),
        "run": ("run", format_plain),
        "node": ("node", format_plain),
        "lease": ("lease", format_plain),
        "field": ("field", format_plain),
        "problem": ("problem", format_plain),
        "file": ("digest", format_plain),
    },
    "entries": {
        "entry": ("index", format_plain),
        "when": ("at_ms", format_time_cell),
        "kind": ("kind", format_plain),
        "author": ("author", format_plain),
        "run": ("run", format_plain),
        "says": ("body", format_plain),
    },
}
"""For each listing: header, field of the row, and how its value is shown."""


def format_row(question: str, row: Mapping[str, Any], now_ms: int) -> list[str]:
    return [show(row[field], now_ms) for field, show in COLUMNS[question].values()]


def format_fields(row: Mapping[str, Any], now_ms: int, prefix: str = "") -> list[tuple[str, str]]:
    """Every field of a row in words, those inside its `summary` and other parts too."""
    found: list[tuple[str, str]] = []
    for name, value in row.items():
        if isinstance(value, dict) and name in ("summary", "terms"):
            found += format_fields(value, now_ms, "" if name == "summary" else f"{name}.")
        elif name.endswith("_nano"):
            found.append((prefix + name.removesuffix("_nano"), format_amount_cell(value, now_ms)))
        elif name.endswith(("at_ms", "_until_ms", "_beat_ms", "deadline_ms", "_by_ms")) and value:
            found.append(
                (
                    prefix + name.removesuffix("_ms"),
                    f"{format_time_cell(value, now_ms)} ({format_distance(value, now_ms)})",
                )
            )
        elif not (isinstance(value, list) and value and isinstance(value[0], dict)):
            found.append((prefix + name, format_plain(value, now_ms)))
    return found


def get_nested_rows(row: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The lists of rows inside a row: each is a table of its own."""
    return {
        name: value for name, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    }


WATCH_S = 2.0


def show_listing(context: OperatorContext) -> int:
    args = context.args
    if args.limit < 1:
        raise LocalError(f"--limit is {args.limit}, the least is 1")
    given = {name: getattr(args, name) for name in args.filters if getattr(args, name) is not None}
    rows, is_cut = fetch_rows(OperatorClient(context), args.question, given, None if args.all else args.limit)
    if args.json:
        context.screen.print_json(rows)
        return 0
    if not rows:
        context.screen.print_line("none")
        return 0
    now_ms = SystemClock().now_ms()
    lines = [format_row(args.question, row, now_ms) for row in rows]
    context.screen.show(context.screen.table(list(COLUMNS[args.question]), lines))
    if is_cut and context.screen.is_terminal:
        context.screen.print_line(f"the first {len(rows)}; there are more: --all, or --limit N")
    return 0


def fetch_rows(line: OperatorClient, question: str, given: dict[str, str], limit: int | None) -> tuple[list[Any], bool]:
    """Rows from as many pages as it takes, and whether there are more."""
    rows: list[Any] = []
    cursor: str | None = None
    while limit is None or len(rows) < limit:
        wanted = PAGE_ROWS_MAX if limit is None else min(PAGE_ROWS_MAX, limit - len(rows))
        page = line.ask(question, {**given, "limit": str(wanted), **({"cursor": cursor} if cursor else {})})
        rows += page["rows"]
        cursor = page["next"]
        if cursor is None:
            break
    return rows, cursor is not None


def show_detail(context: OperatorContext) -> int:
    args = context.args
    row = OperatorClient(context).ask(args.question, {args.param: args.name})
    if args.json:
        context.screen.print_json(row)
        return 0
    now_ms = SystemClock().now_ms()
    context.screen.show(context.screen.key_value_table(format_fields(row, now_ms)))
    for title, rows in get_nested_rows(row).items():
        lines = [[format_plain(value, now_ms) for value in each.values()] for each in rows]
        context.screen.show(Text(""), context.screen.table(list(rows[0]), lines, title=title))
    return 0


# --- Status ---------------------------------------------------------------------------------------------------------


def show_status(context: OperatorContext) -> int:
    line = OperatorClient(context)
    if context.args.json:
        context.screen.print_json(line.ask("status", {}))
        return 0
    if not context.args.watch:
        context.screen.show(draw_status(context.screen, line.ask("status", {})))
        return 0
    with context.screen.live() as live:
        while True:
            live.update(draw_status(context.screen, line.ask("status", {})), refresh=True)
            time.sleep(WATCH_S)


def draw_status(screen: CommandOutput, status: dict[str, Any]) -> RenderableType:
    now_ms = status["now_ms"]
    nodes, submissions, value = status["nodes"], status["submissions"], status["value"]
    grid = screen.key_value_table(
        [
            ("network", status["network"]),
            ("coordinator", status["coordinator"]),
            ("log key", status["log_key"]),
            (
                "log",
                f"{status['entries']:,} entries, newest {format_distance(status['newest_entry_ms'], now_ms)};"
                f" head over {status['head_size']:,}",
            ),
            ("nodes", f"{nodes['registered']:,}: " + format_counts(nodes, "online", "late", "lost")),
            ("leases", f"{status['leases_open']:,} open"),
            ("submissions", format_counts(submissions, *submissions)),
            ("slashes", f"{status['slashes_open']:,} open"),
            (
                "value",
                f"{format_amount_cell(value['deposited_nano'], now_ms)} in,"
                f" {format_amount_cell(value['withdrawn_nano'], now_ms)} out,"
                f" {format_amount_cell(value['burned_nano'], now_ms)} burned,"
                f" {format_amount_cell(value['held_nano'], now_ms)} held",
            ),
        ]
    )
    if not status["runs"]:
        return stack(grid, Text("runs: none yet; begin one with: prime-coordinator run create"))
    headers = ["run", "status", "step", "slots done", "", "held", "leases", "validators", "pool"]
    table = screen.table(headers, [])
    for run in status["runs"]:
        add_run_row(screen, table, run, now_ms)
    return stack(grid, Text(""), table)


def add_run_row(screen: CommandOutput, table: Table, run: dict[str, Any], now_ms: int) -> None:
    done, total = run["slots_done"], run["slots_per_step"]
    bar = ProgressBar(total=total, completed=done, width=20) if screen.is_terminal else Text("")
    words = [run["run"], run["status"], str(run["latest_step"]), f"{done}/{total}"]
    rest = [
        str(run["slots_held"]),
        str(run["leases_open"]),
        str(run["validators"]),
        format_amount_cell(run["pool_nano"], now_ms),
    ]
    table.add_row(*map(Text, words), bar, *map(Text, rest))


def format_counts(found: dict[str, int], *names: str) -> str:
    return ", ".join(f"{found[name]:,} {name}" for name in names)
