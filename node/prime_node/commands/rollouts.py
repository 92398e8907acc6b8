"""`prime-node rollouts`: what became of the node's work, by its journal; and of one piece, by the coordinator too."""

import asyncio
from collections.abc import Sequence
from typing import Any

from prime_node.commands.context import Context
from prime_node.config import NodeConfig
from prime_node.home import Home
from prime_node.journal import Journal, Piece, PieceState
from prime_node.outline import make_grid, printable
from prime_node.work_status import describe_piece
from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock
from prime_runtime.json_client import open_json_client
from prime_runtime.wording import show_bytes, show_distance, show_moment

WAITS_FOR = {
    PieceState.PRODUCED: "received: it is sent again and again until the coordinator has it or its deadline is over",
    PieceState.RECEIVED: "checked: by validators if it is drawn; if not, it is accepted unchecked after a while",
    PieceState.CHECKED: "accepted: other validators have not said what they found",
    PieceState.ACCEPTED: "credited: the books have not counted it",
    PieceState.CREDITED: "paid: everybody who worked on a step is paid when it ends",
}
"""What comes next for a piece, and what that hangs on."""


def show(context: Context) -> int:
    args = context.args
    if args.limit < 1:
        raise LocalError(f"--limit is {args.limit}, the least is 1")
    config = context.load_config()
    path = Home(config.folder).journal
    if not path.exists():
        raise LocalError(f"the node in {config.folder} has made nothing yet: there is no {path.name}")
    journal = Journal(path)
    try:
        return _show_one(context, config, journal.get(args.id)) if args.id else _show_all(context, journal)
    finally:
        journal.close()


def _show_all(context: Context, journal: Journal) -> int:
    rows = [describe_piece(piece) for piece in journal.list(context.args.limit)]
    if context.args.json:
        context.screen.print_json(rows)
        return 0
    if not rows:
        context.screen.say("none yet")
        return 0
    grid = make_grid(rows, SystemClock().now_ms())
    context.screen.show(context.screen.table(grid.headers, grid.rows))
    return 0


def _show_one(context: Context, config: NodeConfig, piece: Piece) -> int:
    verdicts, problem = asyncio.run(_ask_verdicts(config, piece))
    row = describe_piece(piece)
    if context.args.json:
        context.screen.print_json({**row, "verdicts": verdicts, "verdicts_problem": problem})
        return 0
    screen = context.screen
    screen.show(screen.facts(_facts(row, SystemClock().now_ms())))
    screen.say("")
    for line in tell_way(piece, [verdict["at_ms"] for verdict in verdicts]):
        screen.say(line)
    if piece.reason:
        screen.say(f"it stopped there: {printable(piece.reason)}" if not piece.is_open else printable(piece.reason))
    _show_verdicts(context, verdicts, problem)
    return 0


def tell_way(piece: Piece, verdicts_ms: Sequence[int]) -> list[str]:
    """Every state with its time, the good ones that nobody looked at in time too, and what the next one waits for."""
    times = dict(piece.history)
    if verdicts_ms:
        times.setdefault(PieceState.CHECKED, min(verdicts_ms))
    lines = [(at_ms, f"{show_moment(at_ms)} UTC  {state.replace('_', ' ')}") for state, at_ms in times.items()]
    told = [line for _, line in sorted(lines, key=lambda line: line[0])]
    if piece.is_open and piece.state in WAITS_FOR:
        told.append(f"{'not yet':>23}  {WAITS_FOR[piece.state]}")
    return told


def _facts(row: dict[str, Any], now_ms: int) -> list[tuple[str, str]]:
    return [
        ("lease", f"{row['lease']} of {row['run']}, step {row['step']}"),
        ("slots", f"{row['slots']} from {row['first_slot']}, {row['rows']} rollouts"),
        ("begun", f"{show_moment(row['started_ms'])} UTC ({show_distance(row['started_ms'], now_ms)})"),
        ("deadline", f"{show_moment(row['deadline_ms'])} UTC"),
        ("submission", row["submission"] or "-"),
        ("file", f"{row['file']}, {show_bytes(row['file_bytes'])}" if row["file"] else "none was made"),
        ("checkpoint", row["checkpoint_root"] or "-"),
        ("tokens", f"{row['output_tokens']:,} generated"),
    ]


async def _ask_verdicts(config: NodeConfig, piece: Piece) -> tuple[list[dict[str, Any]], str]:
    """What validators said of it, as far as the coordinator tells; and why not, where it does not."""
    if piece.submission is None or not config.coordinator:
        return [], ""
    try:
        async with open_json_client(config.coordinator, config.authority) as client:
            page = await client.get("/verdicts", submission=str(piece.submission))
        rows: list[dict[str, Any]] = [
            {name: row[name] for name in ("validator", "outcome", "reason", "evidence", "metrics")}
            | {"at_ms": int(row["at_ms"])}
            for row in page["rows"]
        ]
        return rows, ""
    except LocalError as error:
        return [], str(error)
    except (KeyError, TypeError, ValueError) as error:
        return [], f"the coordinator's answer is not as it should be: {error!r}"


def _show_verdicts(context: Context, verdicts: list[dict[str, Any]], problem: str) -> None:
    screen = context.screen
    if problem:
        screen.say(f"\nverdicts are not known just now: {problem}")
    for verdict in verdicts:
        screen.say(f"\n{verdict['outcome']} by {verdict['validator']}, {show_moment(verdict['at_ms'])} UTC")
        if verdict["reason"]:
            screen.say(f"  {verdict['reason']}")
        for name, value in verdict["metrics"].items():
            screen.say(f"  {name} = {value}")
        if verdict["outcome"] != "accept":
            screen.say(f"  check it yourself: prime-node audit {verdict['evidence']}")
