"""Commands that only show: status, and every listing and detail of questions.py."""

import time
from typing import Any

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prime_coordinator.commands.columns import COLUMNS, amount, cells, distance, facts, parts, plain
from prime_coordinator.commands.context import Context
from prime_coordinator.commands.line import Line
from prime_coordinator.constants import PAGE_ROWS_MAX
from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock
from prime_runtime.screen import Screen, below

WATCH_S = 2.0


def show_listing(context: Context) -> int:
    args = context.args
    if args.limit < 1:
        raise LocalError(f"--limit is {args.limit}, the least is 1")
    given = {name: getattr(args, name) for name in args.filters if getattr(args, name) is not None}
    rows, is_cut = fetch(Line(context), args.question, given, None if args.all else args.limit)
    if args.json:
        context.screen.print_json(rows)
        return 0
    if not rows:
        context.screen.say("none")
        return 0
    now_ms = SystemClock().now_ms()
    lines = [cells(args.question, row, now_ms) for row in rows]
    context.screen.show(context.screen.table(list(COLUMNS[args.question]), lines))
    if is_cut and context.screen.is_terminal:
        context.screen.say(f"the first {len(rows)}; there are more: --all, or --limit N")
    return 0


def fetch(line: Line, question: str, given: dict[str, str], limit: int | None) -> tuple[list[Any], bool]:
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


def show_detail(context: Context) -> int:
    args = context.args
    row = Line(context).ask(args.question, {args.param: args.name})
    if args.json:
        context.screen.print_json(row)
        return 0
    now_ms = SystemClock().now_ms()
    context.screen.show(context.screen.facts(facts(row, now_ms)))
    for title, rows in parts(row).items():
        lines = [[plain(value, now_ms) for value in each.values()] for each in rows]
        context.screen.show(Text(""), context.screen.table(list(rows[0]), lines, title=title))
    return 0


# --- Status ---------------------------------------------------------------------------------------------------------


def show_status(context: Context) -> int:
    line = Line(context)
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


def draw_status(screen: Screen, status: dict[str, Any]) -> RenderableType:
    now_ms = status["now_ms"]
    nodes, submissions, value = status["nodes"], status["submissions"], status["value"]
    grid = screen.facts(
        [
            ("network", status["network"]),
            ("coordinator", status["coordinator"]),
            ("log key", status["log_key"]),
            (
                "log",
                f"{status['entries']:,} entries, newest {distance(status['newest_entry_ms'], now_ms)};"
                f" head over {status['head_size']:,}",
            ),
            ("nodes", f"{nodes['registered']:,}: " + counts(nodes, "online", "late", "lost")),
            ("leases", f"{status['leases_open']:,} open"),
            ("submissions", counts(submissions, *submissions)),
            ("slashes", f"{status['slashes_open']:,} open"),
            (
                "value",
                f"{amount(value['deposited_nano'], now_ms)} in, {amount(value['withdrawn_nano'], now_ms)} out,"
                f" {amount(value['burned_nano'], now_ms)} burned, {amount(value['held_nano'], now_ms)} held",
            ),
        ]
    )
    if not status["runs"]:
        return below(grid, Text("runs: none yet; begin one with: prime-coordinator run create"))
    headers = ["run", "status", "step", "slots done", "", "held", "leases", "validators", "pool"]
    table = screen.table(headers, [])
    for run in status["runs"]:
        add_run(screen, table, run, now_ms)
    return below(grid, Text(""), table)


def add_run(screen: Screen, table: Table, run: dict[str, Any], now_ms: int) -> None:
    done, total = run["slots_done"], run["slots_per_step"]
    bar = ProgressBar(total=total, completed=done, width=20) if screen.is_terminal else Text("")
    words = [run["run"], run["status"], str(run["latest_step"]), f"{done}/{total}"]
    rest = [str(run["slots_held"]), str(run["leases_open"]), str(run["validators"]), amount(run["pool_nano"], now_ms)]
    table.add_row(*map(Text, words), bar, *map(Text, rest))


def counts(found: dict[str, int], *names: str) -> str:
    return ", ".join(f"{found[name]:,} {name}" for name in names)
