"""A party as a service manager would run it: started again when it ends and nobody asked it to. No human is in here."""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from chaos.hosts import Host

RESTART_S = 1.0
"""Before the next attempt. The units in docs/operating wait longer; the times to recover here are with one second."""
STOP_S = 20.0
PR_SET_PDEATHSIG = 1
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


def die_with_parent() -> None:
    """In the child, before it becomes another program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Memory of one life of a party."""

    pid: int
    age_s: float
    resident_kb: int


@dataclass(slots=True)
class Keeper:
    """One party."""

    name: str
    host: Host
    words: tuple[str, ...]
    variables: dict[str, str]
    log: Path
    starts: int = 0
    ends: list[tuple[float, int]] = field(default_factory=list)
    """When it ended without being told to, and with which code."""
    weights: list[Weighed] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None
    _keeping: asyncio.Task[None] | None = None
    _may_run: asyncio.Event = field(default_factory=asyncio.Event)
    _began_s: float = 0.0

    def begin(self) -> None:
        self._may_run.set()
        self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            await self._may_run.wait()
            code = await (await self._start()).wait()
            if self._may_run.is_set():
                self.ends.append((time.monotonic(), code))
                await asyncio.sleep(RESTART_S)

    async def _start(self) -> asyncio.subprocess.Process:
        program, *words = self.words
        command = [*self.host.prefix, sys.executable, "-m", f"{program.replace('-', '_')}.cli", *words]
        self.starts, self._began_s = self.starts + 1, time.monotonic()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.variables,
                preexec_fn=die_with_parent,
                start_new_session=True,  # as services have; the scheduler shares a busy machine between sessions
            )
        return self._process

    # --- What is done to it -----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def send(self, number: int) -> None:
        """To the party itself; what it started follows or is frozen on its pipe."""
        if self.pid is not None and self._process is not None:
            self._process.send_signal(number)

    async def hold(self, number: int = signal.SIGKILL) -> None:
        """End it, and let nobody start it until `release`."""
        self._may_run.clear()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def release(self) -> None:
        self._may_run.set()

    async def close(self) -> None:
        await self.hold(signal.SIGTERM)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    # --- What is seen of it -----------------------------------------------------------------------------------------

    def weigh(self) -> None:
        pid = self.pid
        if pid is None:
            return
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return
        self.weights.append(Weighed(pid, time.monotonic() - self._began_s, pages * PAGE_KB))

    def tail(self, lines: int = 12) -> str:
        with self.log.open(errors="replace") as file:
            return "".join(f"    {line}" for line in deque(file, maxlen=lines))
