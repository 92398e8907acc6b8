"""`prime-node status`, `pause`, `resume`, `drain`, `stop`: what the running node is asked and told over its door."""

import asyncio
import json
from typing import Any

from prime_node.commands.context import Context, NotRunning
from prime_node.commands.door import call
from prime_node.home import Home
from prime_node.view import render
from prime_runtime.lock import is_held

WATCH_MS = 1_000
STOP_MS = 30_000
CLEAR = "\x1b[H\x1b[2J"


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
    context.screen.say(_text(context, await call(context.folder, "GET", "/status")))
    return 0


async def _watch(context: Context) -> int:
    while True:
        text = _text(context, await call(context.folder, "GET", "/status"))
        context.screen.say(text if context.args.json else CLEAR + text)
        await asyncio.sleep(WATCH_MS / 1000)


def _text(context: Context, report: dict[str, Any]) -> str:
    if context.args.json:
        return json.dumps(report, indent=None if context.args.watch else 2)
    return render(report).rstrip("\n")


async def _stop(context: Context) -> int:
    await call(context.folder, "POST", "/stop")
    path = Home(context.folder).lock
    try:
        async with asyncio.timeout(STOP_MS / 1000):
            while is_held(path):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise NotRunning(f"the node in {context.folder} was told to stop, and has not after {STOP_MS} ms") from None
    context.screen.say("stopped")
    return 0
