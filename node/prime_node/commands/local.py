"""`prime-node status` and `prime-node stop`: they talk to the running node over its door on this machine."""

import asyncio
import json
from typing import Any

import aiohttp

from prime_node.commands.context import Context, NotRunning
from prime_node.home import Home, read_lock
from prime_node.view import render
from prime_runtime.lock import is_held

WATCH_MS = 1_000
STOP_MS = 30_000
CLEAR = "\x1b[H\x1b[2J"


def show_status(context: Context) -> int:
    return asyncio.run(_watch(context) if context.args.watch else _show(context))


def stop(context: Context) -> int:
    return asyncio.run(_stop(context))


async def _show(context: Context) -> int:
    context.say(_text(context, await call(context, "GET", "/status")))
    return 0


async def _watch(context: Context) -> int:
    while True:
        text = _text(context, await call(context, "GET", "/status"))
        context.say(text if context.args.json else CLEAR + text)
        await asyncio.sleep(WATCH_MS / 1000)


def _text(context: Context, report: dict[str, Any]) -> str:
    if context.args.json:
        return json.dumps(report, indent=None if context.args.watch else 2)
    return render(report).rstrip("\n")


async def _stop(context: Context) -> int:
    await call(context, "POST", "/stop")
    path = Home(context.folder).lock
    try:
        async with asyncio.timeout(STOP_MS / 1000):
            while is_held(path):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise NotRunning(f"the node in {context.folder} was told to stop, and has not after {STOP_MS} ms") from None
    context.say("stopped")
    return 0


async def call(context: Context, method: str, path: str) -> dict[str, Any]:
    """One question to the node in the folder."""
    facts = read_lock(context.folder)
    if "url" not in facts:
        state = "is just starting" if facts else "is not running"
        raise NotRunning(f"the node in {context.folder} {state}; start it with: prime-node start")
    headers = {"Authorization": f"Bearer {facts['token']}"}
    timeout = aiohttp.ClientTimeout(total=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.request(method, f"{facts['url']}{path}", headers=headers) as response,
        ):
            if response.status != 200:
                raise NotRunning(f"the node answers HTTP {response.status}: {(await response.text()).strip()}")
            report: dict[str, Any] = await response.json()
            return report
    except (aiohttp.ClientError, OSError) as error:
        raise NotRunning(f"the node, process {facts.get('pid')}, does not answer: {error}") from None
