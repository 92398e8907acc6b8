"""What the network looks like from outside: the coordinator's public answers and the trainer's numbers, once a second.

Nothing is asked of the parties that a visitor could not ask.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from prime_protocol.errors import LocalError

ANSWER_S = 60.0
"""Longer than any answer takes on a machine where others want each core too; a process that ended refuses at once."""
STEP_FILE = "steps.jsonl"


@dataclass(slots=True)
class Look:
    """One look."""

    status: dict[str, Any] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    slashes: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    """The trainer's numbers of each step it has made."""

    @property
    def run(self) -> dict[str, Any]:
        runs: list[dict[str, Any]] = self.status.get("runs", [])
        return runs[0] if runs else {}

    @property
    def step(self) -> int:
        return int(self.run.get("latest_step", -1))


class Watch:
    """Looks at one network."""

    def __init__(self, session: aiohttp.ClientSession, url: str, trainer: Path) -> None:
        self._session = session
        self._url = url
        self._trainer = trainer

    async def look(self) -> Look:
        """LocalError where the coordinator does not answer."""
        status = await self._ask("/status")
        nodes, slashes = [(await self._ask(path))["rows"] for path in ("/nodes?limit=200", "/slashes?limit=200")]
        return Look(status, nodes, slashes, read_steps(self._trainer))

    async def _ask(self, path: str) -> Any:
        try:
            timeout = aiohttp.ClientTimeout(total=ANSWER_S)
            async with self._session.get(f"{self._url}/api/v1{path}", timeout=timeout) as response:
                response.raise_for_status()
                return await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LocalError(f"the coordinator at {self._url} does not answer: {error!r}") from None


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """The trainer's file of numbers; its last line may be half written."""
    path = folder / STEP_FILE
    if not path.exists():
        return []
    found = []
    for line in path.read_text().split("\n")[:-1]:
        found.append(json.loads(line))
    return found
