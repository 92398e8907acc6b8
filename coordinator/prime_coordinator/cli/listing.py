"""Commands that only show something: status, and the explorer's pages as tables.

How a row becomes the cells of a table is here too. A field's name says its unit, and so how it is shown.
"""

import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prime_coordinator.cli.context import CoordinatorUnreachable, OperatorClient, OperatorContext, find_route
from prime_coordinator.cli.rules import format_rules
from prime_coordinator.constants import ROUND_LATE_S
from prime_coordinator.readiness.checklist import build_readiness
from prime_coordinator.readiness.probes import probe_network
from prime_explorer.config import ROWS_PER_PAGE_MAX
from prime_protocol.errors import LocalError
from prime_runtime.checklist import MARKS, find_worst
from prime_runtime.clock import SystemClock
from prime_runtime.console import CommandOutput, stack
from prime_runtime.formatting import format_amount, format_relative_time, format_time
from prime_runtime.redaction import escape

WATCH_S = 2.0
CHECK_BEATS = 15
"""`status --watch` checks the network every so many refreshes: half a minute."""


def _columns(spec: str) -> dict[str, str]:
    """Field by header, from `header=field` or one word for both, separated by commas."""
    return {header: field or header for header, _, field in (part.partition("=") for part in spec.split(", "))}


COLUMNS: dict[str, dict[str, str]] = {
    "runs": _columns(
        "run, status, step=latest_step, done=slots_done, held=slots_held, slots, leases=leases_open, "
        "open=submissions_open, slashes=slashes_open, validators, pool=pool_nano, calibrated=calibrated_at_ms, model"
    ),
    "nodes": _columns(
        "node, status, phase, doing=activity, roles, heartbeat=last_beat_ms, step=checkpoint_step, stake=stake_nano, "
        "accepted, invalid, fraudulent, faults, excluded"
    ),
    "leases": _columns(
        "run, lease, node, step, first slot=first_slot, slots, deadline=deadline_ms, duplicate=speculative"
    ),
    "submissions": _columns("submission, run, step, node, when=at_ms, progress, verdicts, of=validators, units"),
    "verdicts": _columns("entry=idx, when=at_ms, submission, validator, outcome, reason"),
    "slashes": _columns(
        "entry=idx, when=at_ms, submission, node, amount=amount_nano, progress, appeal until=appeal_until_ms"
    ),
    "appeals": _columns(
        "entry=appealed_idx, when=appealed_ms, submission, by=appealed_by, progress, reason=appeal_reason"
    ),
    "checkpoints": _columns("entry=idx, when=published_ms, run, step, trained on=trained_on, root, beacon"),
    "refused": _columns("when=at_ms, run, node, lease, field, problem, file=digest"),
    "entries": _columns("entry=idx, when=at_ms, kind, author, run, content=brief"),
}
"""Columns of each listing: header and field of the row."""
UNFOLDED = ("summary", "presence", "work", "terms")
OMITTED = ("charted", "drawn", "rollouts", "strips", "chunk_strips", "weights")
"""Parts of a page whose fields are shown as its own, and parts that only the explorer draws."""


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
    return [_format_cell(route, field, row.get(field), now_ms) for field in COLUMNS[route].values()]


def _format_cell(route: str, field: str, value: Any, now_ms: int) -> str:
    if field.endswith("_nano"):
        return format_amount(int(value))
    if field.endswith("_ms"):
        # Lines of `log tail` are kept in files, where a distance in time would mean nothing.
        return format_time(value) if route == "entries" else format_relative_time(value, now_ms)
    return format_value(value)


def format_fields(row: Mapping[str, Any], now_ms: int, prefix: str = "") -> list[tuple[str, str]]:
    """Every field of a page but its tables."""
    found: list[tuple[str, str]] = []
    for name, value in row.items():
        if name in OMITTED:
            continue
        if isinstance(value, dict) and name in UNFOLDED:
            found += format_fields(value, now_ms, "terms." if name == "terms" else prefix)
        elif name.endswith("_nano"):
            found.append((prefix + name.removesuffix("_nano"), format_amount(int(value))))
        elif name.endswith(("at_ms", "_until_ms", "_beat_ms", "deadline_ms", "_by_ms")) and value:
            shown = f"{format_time(value)} ({format_relative_time(value, now_ms)})"
            found.append((prefix + name.removesuffix("_ms"), shown))
        elif get_table(value) is None:
            found.append((prefix + name, format_value(value)))
    return found


def get_table(value: Any) -> list[dict[str, Any]] | None:
    """The rows of a value that is a table; None if it is none."""
    if isinstance(value, dict) and value.keys() == {"rows", "next"}:
        value = value["rows"]
    return value if isinstance(value, list) and value and isinstance(value[0], dict) else None


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
    cursor: dict[str, str] = {}
    name = "after" if "after" in find_route(route).filters else "before"
    while limit is None or len(rows) < limit:
        wanted = ROWS_PER_PAGE_MAX if limit is None else min(ROWS_PER_PAGE_MAX, limit - len(rows))
        view = client.query(route, {**params, "limit": str(wanted), **cursor}, is_fresh=not cursor)
        page = view if "rows" in view else view[route]
        presence = view.get("presence") or {}
        fresh = [row | presence.get(row.get("node"), {}) for row in page["rows"] if row.get("idx", after + 1) > after]
        rows += fresh
        cursor = {name: page["next"]} if page["next"] else {}
        if not cursor or len(fresh) < len(page["rows"]):
            break
    return rows, bool(cursor)


def show_detail(context: OperatorContext) -> int:
    args, screen = context.args, context.screen
    row = OperatorClient(context).query(args.route, {args.param: args.name})
    if args.json:
        screen.print_json(row)
        return 0
    screen.show(screen.key_value_table(format_fields(row, SystemClock().now_ms())))
    work = row.get("work") or {}
    for title, value in {**row, **work}.items():
        rows = get_table(value)
        if rows is not None and title not in OMITTED:
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
        status = client.query("status", {})
        screen.show(draw_status(screen, status, describe_readiness(context, client)))
        return 0
    with screen.live() as live:
        for beat in count():
            if beat % CHECK_BEATS == 0:
                readiness = describe_readiness(context, client)
            live.update(draw_status(screen, client.query("status", {}), readiness), refresh=True)
            time.sleep(WATCH_S)
    return 0


def describe_readiness(context: OperatorContext, client: OperatorClient) -> str:
    """The worst of what `check` finds, in one line."""
    try:
        facts = probe_network(context.load_config(), client, context.args.authority)
    except CoordinatorUnreachable:
        # It answers, since the status came; the index, which has the runs' details, may be building after a start.
        return "not known yet: the index is being built"
    except LocalError as error:
        return f"not known: {escape(str(error))}"
    worst = find_worst(build_readiness(facts))
    if worst is None:
        return "no problems found"
    return f"{MARKS[worst.grade]}: {worst.what}: {escape(worst.found)}; all of it: prime-coordinator check"


def draw_status(screen: CommandOutput, status: dict[str, Any], readiness: str) -> RenderableType:
    nodes, submissions = status["nodes"], status["submissions"]
    value = {name.removesuffix("_nano"): format_amount(amount) for name, amount in status["value"].items()}
    newest = format_relative_time(status["newest_entry_ms"], status["now_ms"])
    grid = screen.key_value_table(
        [
            ("network", status["network"]),
            ("coordinator", status["coordinator"]),
            ("log key", status["log_key"]),
            *((f"old {old['kind']} key", f"{old['old']} until entry {old['index']}") for old in status["rotations"]),
            ("log", f"{status['entries']:,} entries, newest {newest}; head over {status['head_size']:,}"),
            ("rules", format_rules(status["rules"], status["now_ms"])),
            ("randomness", format_randomness(status["randomness"])),
            ("nodes", f"{nodes['registered']:,}: " + format_counts(nodes, "online", "late", "lost")),
            ("leases", f"{status['leases_open']:,} open"),
            ("submissions", format_counts(submissions, *submissions)),
            ("slashes", f"{status['slashes_open']:,} open"),
            ("check", readiness),
            (f"value ({status['ticker']})", ", ".join(f"{amount} {name}" for name, amount in value.items())),
        ]
    )
    if not status["runs"]:
        return stack(grid, Text("runs: none yet; create one with: prime-coordinator run create"))
    table = screen.table(["run", "status", "step", "slots done", "", "held", "leases", "validators", "pool"], [])
    for run in status["runs"]:
        add_run_row(screen, table, run)
    return stack(grid, Text(""), table)


def format_randomness(found: dict[str, Any]) -> str:
    """The chain, the last witnesses, and what waits for a round that is late."""
    text = f"{found['chain']}; {found['last_witnesses']} witnesses of the last round"
    if found["late_s"] > ROUND_LATE_S:
        text += f"; beacons and audits wait for round {found['waiting_for_round']}, {found['late_s']} s late"
    return text


def add_run_row(screen: CommandOutput, table: Table, run: dict[str, Any]) -> None:
    done, total = run["slots_done"], run["slots_per_step"]
    bar = ProgressBar(total=total, completed=done, width=20) if screen.is_terminal else Text("")
    left = [run["run"], run["status"], str(run["latest_step"]), f"{done}/{total}"]
    right = [*(str(run[name]) for name in ("slots_held", "leases_open", "validators")), format_amount(run["pool_nano"])]
    table.add_row(*map(Text, left), bar, *map(Text, right))


def format_counts(found: dict[str, int], *names: str) -> str:
    return ", ".join(f"{found[name]:,} {name}" for name in names)
