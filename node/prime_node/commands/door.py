"""How a command reaches the running node of a folder: over its door on loopback, with the token of its lock file."""

from pathlib import Path
from typing import Any

import aiohttp

from prime_node.commands.context import NotRunning
from prime_node.home import read_lock
from prime_protocol.errors import LocalError

CALL_S = 10


async def call(folder: Path, method: str, path: str, given: dict[str, str] | None = None) -> dict[str, Any]:
    """One question or order to the node in the folder."""
    facts = read_lock(folder)
    if "url" not in facts:
        if facts:
            raise NotRunning(f"the node in {folder}, process {facts.get('pid')}, is just starting; try again")
        raise NotRunning(f"the node in {folder} is not running; start it with: prime-node start --folder {folder}")
    headers = {"Authorization": f"Bearer {facts['token']}"}
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.request(method, f"{facts['url']}{path}", headers=headers, json=given) as response,
        ):
            if response.status == 409:
                raise LocalError((await response.text()).strip())
            if response.status != 200:
                raise NotRunning(f"the node answers HTTP {response.status}: {(await response.text()).strip()}")
            report: dict[str, Any] = await response.json()
            return report
    except (aiohttp.ClientError, OSError) as error:
        problem = str(error) or type(error).__name__
        raise NotRunning(f"the node, process {facts.get('pid')}, does not answer: {problem}") from None
