"""What anybody can see of the network: the public answers, asked again and again, and every head that was shown."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from chaos.parties import Stage, port_of
from chaos.schedule import COORDINATOR, ORIGIN, TRAINER
from chaos.stopwatch import Stopwatch

ASK_S = 3.0
LOOK_S = 0.2

Seen = dict[str, Any]


class Looker:
    """Looks at one network."""

    def __init__(self, stage: Stage, session: aiohttp.ClientSession) -> None:
        self._stage = stage
        self._session = session
        self.heads: set[bytes] = set()
        """Every signed head that was ever shown."""

    async def ask(self, path: str) -> Seen | None:
        """None where there is no good answer just now."""
        raw = await self._get(f"{self._stage.url}/api/v1{path}")
        return json.loads(raw) if raw is not None else None

    async def _get(self, url: str) -> bytes | None:
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=ASK_S)) as response:
                raw = await response.read()
                return raw if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def gather_heads(self) -> None:
        """For ever."""
        while True:
            head = await self._get(f"{self._stage.url}/log/checkpoint")
            if head is not None:
                self.heads.add(head)
            await asyncio.sleep(LOOK_S)

    # --- How things stand -------------------------------------------------------------------------------------------

    async def newest_outcome(self) -> int:
        """Place of the newest entry that settles submissions; -1: none, or no answer."""
        return max(await self.newest("Settled"), await self.newest("AcceptedUnaudited"))

    async def newest(self, kind: str) -> int:
        """Place of the log's newest entry of a kind; -1: none, or no answer."""
        page = await self.ask(f"/log?kind={kind}&limit=1")
        rows = page["entries"]["rows"] if page else []
        return int(rows[0]["idx"]) if rows else -1

    async def step(self) -> int:
        status = await self.ask("/status")
        return int(status["runs"][0]["latest_step"]) if status and status["runs"] else -1

    async def rows(self) -> dict[str, Seen]:
        """The nodes' rows by address."""
        page = await self.ask("/nodes?limit=200")
        rows = page["nodes"]["rows"] if page else []
        return {row["node"]: row | page["presence"][row["node"]] for row in rows} if page else {}

    async def is_back(self, name: str, since_ms: int, step: int) -> bool:
        """A party does again what it is for; `since_ms` is when the fault ended, `step` the run's when it began."""
        if name == COORDINATOR:
            return await self.ask("/status") is not None
        if name == TRAINER:
            return await self.step() > step
        if name == ORIGIN:
            host = self._stage.site.hosts[ORIGIN]
            return await self._is_listening(host.address, port_of(self._stage, ORIGIN))
        row = (await self.rows()).get(read_address(self._stage.site.hosts[name].folder / "home" / "key.json"))
        return row is not None and row["phase"] == "online" and (row["last_beat_ms"] or 0) > since_ms

    async def _is_listening(self, address: str, port: int) -> bool:
        try:
            async with asyncio.timeout(ASK_S):
                _, writer = await asyncio.open_connection(address, port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True


def read_address(keystore: Path) -> str:
    try:
        return "0x" + str(json.loads(keystore.read_text())["address"]).removeprefix("0x")
    except (OSError, ValueError, KeyError, UnicodeDecodeError):
        return ""


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float, watch: Stopwatch) -> float | None:
    """Seconds that it took; None: it did not come."""
    began_s = watch.awake_s
    while not await holds():
        if watch.awake_s - began_s > limit_s:
            return None
        await asyncio.sleep(LOOK_S)
    return watch.awake_s - began_s
