"""Programs of ours as child processes: started, watched, stopped. The output of each goes to its own file.

If this process dies, even by kill -9, the kernel ends the others too, so nothing keeps running on the machine.
"""

import asyncio
import ctypes
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from prime_protocol.errors import LocalError

STOP_S = 15.0
"""Time limit for a party to exit."""
TAIL_LINES = 12
PR_SET_PDEATHSIG = 1


class ProcessSpec(Protocol):
    """One process before it runs."""

    @property
    def name(self) -> str: ...

    @property
    def words(self) -> tuple[str, ...]:
        """The command as a user types it."""

    @property
    def log(self) -> Path: ...


def make_command(words: Sequence[str]) -> list[str]:
    """The same command with this interpreter, independent of the PATH."""
    program, *rest = words
    return [sys.executable, "-m", f"{program.replace('-', '_')}.cli", *rest]


class ProcessFailedError(LocalError):
    """A party exited unexpectedly; the text has the end of its output."""


def die_with_parent() -> None:
    """In the child, before it becomes another program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


Spec = TypeVar("Spec", bound=ProcessSpec)


class RunningProcess(Generic[Spec]):
    """One started party."""

    def __init__(self, party: Spec, process: asyncio.subprocess.Process) -> None:
        self.party = party
        self._process = process

    @classmethod
    async def start(cls, party: Spec, environ: Mapping[str, str]) -> "RunningProcess[Spec]":
        party.log.parent.mkdir(parents=True, exist_ok=True)
        with party.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *make_command(party.words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environ),
                preexec_fn=die_with_parent,
                # Ctrl-C reaches this process only, which then stops the others in order.
                start_new_session=True,
            )
        return cls(party, process)

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                return
            self._process.send_signal(number)
            try:
                async with asyncio.timeout(STOP_S):
                    await self._process.wait()
            except TimeoutError:
                continue

    def check(self) -> None:
        """PartyFailed if it has exited."""
        if self.code is not None:
            raise ProcessFailedError(
                f"{self.party.name} ended with code {self.code}; the end of its output:\n{read_tail(self.party.log)}"
            )


async def run_command(party: ProcessSpec, environ: Mapping[str, str]) -> str:
    """Run a short command and return its output. PartyFailed if it fails."""
    running = await RunningProcess.start(party, environ)
    code = await running.wait()
    if code != 0:
        words = " ".join(party.words[:3])
        raise ProcessFailedError(f"`{words}` ended with code {code}:\n{read_tail(party.log)}")
    return party.log.read_text()


def read_tail(path: Path) -> str:
    with path.open(errors="replace") as file:
        return "".join(f"    {line}" for line in deque(file, maxlen=TAIL_LINES))
