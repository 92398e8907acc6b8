"""`prime-node status`, `pause`, `resume`, `drain`, `stop`: what the running node is asked and told over its door."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.text import Text

from prime_node.commands.context import Context
from prime_node.commands.door import call
from prime_node.full_screen import draw
from prime_node.home import Home
from prime_node.view import render
from prime_protocol.errors import LocalError
from prime_runtime.door import wait_until_gone

WATCH_MS = 1_000
STOP_MS = 30_000

T = TypeVar("T")


def show_status(context: Context) -> int:
    return asyncio.run(_watch(context) if context.args.watch else _show(context))


def stop(context: Context) -> int:
    return asyncio.run(_stop(context))


def pause(context: Context) -> int:
    return _order(context, "/pause")


def resume(context: Context) -> int:
    return _order(context, "/resume")


def drain(context: Context) -> int:
    return _order(context, "/drain")


def _order(context: Context, path: str) -> int:
    gpu = getattr(context.args, "gpu", None)
    done = asyncio.run(call(context.folder, "POST", path, {"gpu": gpu} if gpu else None))
    context.screen.say(done["text"])
    return 0


async def _show(context: Context) -> int:
    _print(context, await call(context.folder, "GET", "/status"))
    return 0


async def _watch(context: Context) -> int:
    """On a terminal the whole screen; in a pipe one report after the other."""
    if context.args.json or not context.screen.is_terminal:
        while True:
            _print(context, await call(context.folder, "GET", "/status"), in_one_line=True)
            await asyncio.sleep(WATCH_MS / 1000)
    with context.screen.live(full=True) as live:
        while True:
            live.update(await _draw(context), refresh=True)
            await asyncio.sleep(WATCH_MS / 1000)


async def _draw(context: Context) -> RenderableType:
    """A node that is away for a moment, or is started again, does not end the view."""
    try:
        report = await call(context.folder, "GET", "/status")
        return shown(report, draw)
    except LocalError as error:
        return Text(f"{error}\n\nCtrl-C leaves this view", style="bold red")


def _print(context: Context, report: dict[str, Any], *, in_one_line: bool = False) -> None:
    if context.args.json:
        context.screen.print_json(report, in_one_line=in_one_line)
    else:
        context.screen.write(shown(report, render))


def shown(report: dict[str, Any], show: Callable[[dict[str, Any]], T]) -> T:
    """LocalError where the node that runs is of another version, and its report is not what this one shows."""
    try:
        return show(report)
    except (KeyError, TypeError):
        theirs = report.get("program_version", "unknown")
        raise LocalError(
            f"the node that runs is of another version ({theirs}) than this command; start it again, or read --json"
        ) from None


async def _stop(context: Context) -> int:
    await call(context.folder, "POST", "/stop")
    await wait_until_gone(Home(context.folder).lock, "node", STOP_MS)
    context.screen.say("stopped")
    return 0
