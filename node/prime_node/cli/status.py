"""`prime-node status`, `pause`, `resume`, `drain`, `stop`, `logs`, `rollouts`: watch and control the node of a folder.

The first five talk to the running node's control API; `logs` reads its log file, `rollouts` its journal and, for one
submission, the coordinator.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.text import Text

from prime_node.cli.context import NodeCliContext, call_node
from prime_node.config import NodeConfig
from prime_node.log.accusations import SUFFIX, describe_accusation, read_accusations
from prime_node.status.render import render_screen, render_text
from prime_node.status.report import describe_record
from prime_node.status.status_model import make_grid, printable
from prime_node.storage.journal import JobRecord, JobState, Journal
from prime_node.storage.log_file import LogFileFollower, format_line, read_last
from prime_node.storage.node_folder import NodeFolder, read_pins
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NetworkId
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_bytes, format_relative_time, format_time
from prime_runtime.http.control_api import wait_until_stopped
from prime_runtime.http.coordinator_api import open_json_client

WATCH_MS = 1_000
STOP_MS = 30_000

T = TypeVar("T")


def show_status(context: NodeCliContext) -> int:
    return asyncio.run(_watch(context) if context.args.watch else _show_once(context))


def stop(context: NodeCliContext) -> int:
    return asyncio.run(_stop(context))


def pause(context: NodeCliContext) -> int:
    return _post(context, "/pause")


def resume(context: NodeCliContext) -> int:
    return _post(context, "/resume")


def drain(context: NodeCliContext) -> int:
    return _post(context, "/drain")


def _post(context: NodeCliContext, path: str) -> int:
    gpu = getattr(context.args, "gpu", None)
    done = asyncio.run(call_node(context.folder, "POST", path, {"gpu": gpu} if gpu else None))
    context.screen.print_line(done["text"])
    return 0


EXIT_FOUND = 3


async def _show_once(context: NodeCliContext) -> int:
    report = await call_node(context.folder, "GET", "/status")
    _print_report(context, report)
    return EXIT_FOUND if is_log_broken(report) else 0


def is_log_broken(report: dict[str, Any]) -> bool:
    """The coordinator broke a rule, or its log has forked."""
    if report["state"] != "running":
        return False
    return bool(report["heads"]["forks"]) or bool(report["accusations"]["is_stopped"])


def show_accusations(context: NodeCliContext) -> int:
    """From the files: it works while the node is stopped, too."""
    config = context.load_config()
    folder = NodeFolder(config.folder).accusations
    network = config.network or read_pins(config).get("network", "")
    found = read_accusations(folder, NetworkId(network)) if network and folder.exists() else []
    rows = [
        {
            **describe_accusation(kept.accusation),
            "accuser": str(kept.accuser),
            "is_acknowledged": kept.is_acknowledged_in(folder),
            "file": str(folder / (kept.name + SUFFIX)),
        }
        for kept in found
    ]
    if context.args.json:
        context.screen.print_json(rows)
    else:
        for row in rows:
            state = "acknowledged" if row["is_acknowledged"] else "NOT ACKNOWLEDGED: the node takes no work"
            context.screen.print_line(f"entry {row['index']} ({row['rule']}): {printable(row['problem'])}")
            context.screen.print_line(f"  says {row['accuser']}; {state}")
            context.screen.print_line(f"  signed evidence: {row['file']}")
        context.screen.print_line("" if rows else "none: no entry of the log is known to break a rule")
    return EXIT_FOUND if any(not row["is_acknowledged"] for row in rows) else 0


def acknowledge(context: NodeCliContext) -> int:
    return _post(context, "/acknowledge")


async def _watch(context: NodeCliContext) -> int:
    """On a terminal full screen; in a pipe one report after the other."""
    if context.args.json or not context.screen.is_terminal:
        while True:
            _print_report(context, await call_node(context.folder, "GET", "/status"), in_one_line=True)
            await asyncio.sleep(WATCH_MS / 1000)
    with context.screen.live(full=True) as live:
        while True:
            live.update(await _draw(context), refresh=True)
            await asyncio.sleep(WATCH_MS / 1000)


async def _draw(context: NodeCliContext) -> RenderableType:
    """A node that does not answer for a moment, or restarts, does not end the view."""
    try:
        report = await call_node(context.folder, "GET", "/status")
        return render_report(report, render_screen)
    except LocalError as error:
        return Text(f"{error}\n\nCtrl-C leaves this view", style="bold red")


def _print_report(context: NodeCliContext, report: dict[str, Any], *, in_one_line: bool = False) -> None:
    if context.args.json:
        context.screen.print_json(report, in_one_line=in_one_line)
    else:
        context.screen.write(render_report(report, render_text))


def render_report(report: dict[str, Any], show: Callable[[dict[str, Any]], T]) -> T:
    """LocalError if the running node has another version, whose report this one cannot show."""
    try:
        return show(report)
    except (KeyError, TypeError):
        theirs = report.get("program_version", "unknown")
        raise LocalError(
            f"the running node has another version ({theirs}) than this command; restart it, or use --json"
        ) from None


async def _stop(context: NodeCliContext) -> int:
    await call_node(context.folder, "POST", "/stop")
    await wait_until_stopped(NodeFolder(context.folder).lock, "node", STOP_MS)
    context.screen.print_line("stopped")
    return 0


FOLLOW_S = 0.3


def show_logs(context: NodeCliContext) -> int:
    if context.args.lines < 0:
        raise LocalError(f"--lines is {context.args.lines}, the least is 0")
    path = find_log(context)
    if not path.exists():
        raise LocalError(f"there is no log yet: prime-node start creates {path}")
    follower = LogFileFollower(path) if context.args.follow else None
    for line in read_last(path, context.args.lines):
        _print_log_line(context, line)
    while follower is not None:
        for line in follower.read():
            _print_log_line(context, line)
        time.sleep(FOLLOW_S)
    return 0


def find_log(context: NodeCliContext) -> Path:
    config = context.load_config()
    return config.log.file or NodeFolder(config.folder).log


def _print_log_line(context: NodeCliContext, line: str) -> None:
    context.screen.print_line(line if context.args.json else format_line(line))


WAITS_FOR = {
    JobState.PRODUCED: "received: the node retries until the coordinator has it or the deadline is over",
    JobState.RECEIVED: "checked: by validators if it is drawn; if not, it is accepted unchecked after a while",
    JobState.CHECKED: "accepted: verdicts of other validators are missing",
    JobState.ACCEPTED: "credited: the ledger has not credited it yet",
    JobState.CREDITED: "paid: all contributors of a step are paid when it ends",
}
"""The next state of a submission, and what it depends on."""


def show_rollouts(context: NodeCliContext) -> int:
    args = context.args
    if args.limit < 1:
        raise LocalError(f"--limit is {args.limit}, the least is 1")
    config = context.load_config()
    path = NodeFolder(config.folder).journal
    if not path.exists():
        raise LocalError(f"the node in {config.folder} has done no work yet: there is no {path.name}")
    journal = Journal(path)
    try:
        return _show_one(context, config, journal.find(args.id)) if args.id else _show_all(context, journal)
    finally:
        journal.close()


def _show_all(context: NodeCliContext, journal: Journal) -> int:
    rows = [describe_record(piece) for piece in journal.list_newest(context.args.limit)]
    if context.args.json:
        context.screen.print_json(rows)
        return 0
    if not rows:
        context.screen.print_line("none yet")
        return 0
    grid = make_grid(rows, SystemClock().now_ms())
    context.screen.show(context.screen.table(grid.headers, grid.rows))
    return 0


def _show_one(context: NodeCliContext, config: NodeConfig, piece: JobRecord) -> int:
    verdicts, problem = asyncio.run(_fetch_verdicts(config, piece))
    row = describe_record(piece)
    if context.args.json:
        context.screen.print_json({**row, "verdicts": verdicts, "verdicts_problem": problem})
        return 0
    screen = context.screen
    screen.show(screen.key_value_table(_list_facts(row, SystemClock().now_ms())))
    screen.print_line("")
    for line in describe_progress(piece, [verdict["at_ms"] for verdict in verdicts]):
        screen.print_line(line)
    if piece.reason:
        screen.print_line(
            f"it stopped there: {printable(piece.reason)}" if not piece.is_open else printable(piece.reason)
        )
    _show_verdicts(context, verdicts, problem)
    return 0


def describe_progress(piece: JobRecord, verdicts_ms: Sequence[int]) -> list[str]:
    """Every state with its time, in order of time, and what the next state waits for."""
    times = dict(piece.history)
    if verdicts_ms:
        times.setdefault(JobState.CHECKED, min(verdicts_ms))
    lines = [(at_ms, f"{format_time(at_ms)} UTC  {state.replace('_', ' ')}") for state, at_ms in times.items()]
    ordered = [line for _, line in sorted(lines, key=lambda line: line[0])]
    if piece.is_open and piece.state in WAITS_FOR:
        ordered.append(f"{'not yet':>23}  {WAITS_FOR[piece.state]}")
    return ordered


def _list_facts(row: dict[str, Any], now_ms: int) -> list[tuple[str, str]]:
    return [
        ("lease", f"{row['lease']} of {row['run']}, step {row['step']}"),
        ("slots", f"{row['slots']} from {row['first_slot']}, {row['rows']} rollouts"),
        ("started", f"{format_time(row['started_ms'])} UTC ({format_relative_time(row['started_ms'], now_ms)})"),
        ("deadline", f"{format_time(row['deadline_ms'])} UTC"),
        ("submission", row["submission"] or "-"),
        ("file", f"{row['file']}, {format_bytes(row['file_bytes'])}" if row["file"] else "none"),
        ("checkpoint", row["checkpoint_root"] or "-"),
        ("tokens", f"{row['output_tokens']:,} generated"),
    ]


async def _fetch_verdicts(config: NodeConfig, piece: JobRecord) -> tuple[list[dict[str, Any]], str]:
    """Its verdicts as the coordinator has them, and why they could not be fetched, else empty."""
    if piece.submission is None or not config.coordinator:
        return [], ""
    try:
        async with open_json_client(config.coordinator, config.authority) as client:
            view = await client.get(f"/submissions/{piece.submission}")
        rows: list[dict[str, Any]] = [
            {name: row["summary"][name] for name in ("validator", "outcome", "reason", "evidence")}
            | {"metrics": row["metrics"], "at_ms": int(row["summary"]["at_ms"])}
            for row in view["verdicts"]
        ]
        return rows, ""
    except LocalError as error:
        return [], str(error)
    except (KeyError, TypeError, ValueError) as error:
        return [], f"the coordinator's answer is malformed: {error!r}"


def _show_verdicts(context: NodeCliContext, verdicts: list[dict[str, Any]], problem: str) -> None:
    screen = context.screen
    if problem:
        screen.print_line(f"\ncannot fetch its verdicts: {problem}")
    for verdict in verdicts:
        screen.print_line(f"\n{verdict['outcome']} by {verdict['validator']}, {format_time(verdict['at_ms'])} UTC")
        if verdict["reason"]:
            screen.print_line(f"  {verdict['reason']}")
        for name, value in verdict["metrics"].items():
            screen.print_line(f"  {name} = {value}")
        if verdict["outcome"] != "accept":
            screen.print_line(f"  check it yourself: prime-node audit {verdict['evidence']}")
