"""`prime-node doctor`: a checklist of this machine and its line, with what to do about each thing that is missing."""

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path

from prime_node.commands.context import Context, with_pins
from prime_node.config import NodeConfig
from prime_node.doctor.examination import examine
from prime_node.doctor.judge import Grade, Line, judge
from prime_node.home import read_lock
from prime_runtime.clock import SystemClock
from prime_runtime.redaction import escape

EXIT_MISSING = 3
MARKS = {Grade.GOOD: "ok", Grade.NOTE: "note", Grade.MISSING: "MISSING"}


def check(context: Context) -> int:
    config = with_pins(context.resolve().config)
    with context.screen.working("looking at this machine and its line"):
        lines = examine_lines(config)
    if context.args.json:
        context.screen.print_json([asdict(line) for line in lines])
    else:
        show(context, lines)
    return EXIT_MISSING if any(line.grade is Grade.MISSING for line in lines) else 0


def examine_lines(config: NodeConfig) -> list[Line]:
    """Also for `diagnose`."""
    with tempfile.TemporaryDirectory(prefix="prime-node-doctor-") as scratch:
        examined = asyncio.run(examine(config, Path(scratch), SystemClock(), is_running=bool(read_lock(config.folder))))
    return judge(examined, str(config.role))


def show(context: Context, lines: list[Line]) -> None:
    screen = context.screen
    rows = [[MARKS[line.grade], line.what, escape(line.found), line.needed] for line in lines]
    screen.show(screen.table(["", "what", "found", "needed"], rows))
    advice = [f"{line.what}: {line.advice}" for line in lines if line.advice]
    if advice:
        screen.say("\nwhat to do:")
        for text in advice:
            screen.say(f"  {text}")
    else:
        screen.say("\nall fine")
