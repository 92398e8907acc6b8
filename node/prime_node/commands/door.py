"""How a command reaches the running node of a folder: over its door on loopback, with the token of its lock file."""

from pathlib import Path
from typing import Any

from prime_node.home import Home
from prime_runtime.door import call_door


async def call(folder: Path, method: str, path: str, given: dict[str, str] | None = None) -> dict[str, Any]:
    """One question or order to the node in the folder."""
    start = f"prime-node start --folder {folder}"
    return await call_door(Home(folder).lock, "node", method, path, start=start, given=given)
