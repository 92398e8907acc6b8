"""Runs jobs of strangers' code, or of our code over strangers' text, where they can hurt nobody.

This is the daemon's side and what it can promise. The processes are in zygote.py, the walls in jail/.
A fault of this machine is a LocalError and never a grade; whatever the job does is a SandboxOutcome.
"""

import asyncio
import json
import os
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from prime_protocol.errors import LocalError
from prime_protocol.tasks.family import End, SandboxJob, SandboxOutcome
from prime_runtime.zygote import Zygote, start_zygote

JOBS_DEFAULT = 2
"""Jobs at once. Each may keep a core busy, and a validator needs the others."""


class Guarantee(StrEnum):
    """What the walls keep from happening, whichever wall it is that does."""

    FILES = "files"
    NETWORK = "network"
    PROCESSES = "processes"
    IDENTITY = "identity"
    SYSCALLS = "syscalls"


PROVIDED_BY: dict[Guarantee, frozenset[str]] = {
    Guarantee.FILES: frozenset({"mount namespace", "landlock"}),
    Guarantee.NETWORK: frozenset({"net namespace", "seccomp"}),
    Guarantee.PROCESSES: frozenset({"pid namespace"}),
    Guarantee.IDENTITY: frozenset({"own user", "user namespace"}),
    Guarantee.SYSCALLS: frozenset({"seccomp"}),
}
"""Any one of the walls is enough for the guarantee."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Which walls stand on this machine, and what that guarantees."""

    walls: tuple[str, ...]

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        return frozenset(name for name, walls in PROVIDED_BY.items() if walls & set(self.walls))


REQUIRED = frozenset({Guarantee.FILES, Guarantee.NETWORK, Guarantee.SYSCALLS})
"""What a daemon insists on unless told otherwise. Any Linux from 5.13 on gives these without privileges."""


class Sandbox:
    """Runs jobs, a few at a time. Use as `async with Sandbox() as sandbox`."""

    def __init__(
        self,
        *,
        require: frozenset[Guarantee] = REQUIRED,
        jobs_max: int = JOBS_DEFAULT,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.require = require
        self.without = without
        """Walls to leave out although they would stand: for machines where one of them does harm."""
        self.turns = asyncio.Semaphore(jobs_max)
        self.zygotes: dict[str, Zygote] = {}
        self.starting = asyncio.Lock()
        self.found: Capabilities | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the zygotes; jobs that still run end with them."""
        for zygote in self.zygotes.values():
            await zygote.close()
        self.zygotes.clear()

    async def capabilities(self) -> Capabilities:
        """Which walls stand here, found by trying them once."""
        zygote = await self.get_zygote("")
        if self.found is None:
            outcome = await zygote.run(SandboxJob("", b""), walls=None)
            if outcome.end is not End.EXIT or outcome.code != 0:
                raise LocalError(f"the sandbox does not work here: {outcome.stderr.decode(errors='replace')}")
            self.found = Capabilities(tuple(wall for wall in json.loads(outcome.result) if wall not in self.without))
        return self.found

    async def run(self, job: SandboxJob) -> SandboxOutcome:
        """Run one job to its end. Cancelling kills it."""
        found = await self.capabilities()
        if os.geteuid() == 0 and "own user" not in found.walls:
            raise LocalError(
                "no job is run as root, and this root may not become anyone else: start as an ordinary user"
            )
        missing = self.require - found.guarantees
        if missing:
            raise LocalError(
                f"this machine cannot guarantee {', '.join(sorted(missing))}: see docs/operating/sandbox.md"
            )
        async with self.turns:
            zygote = await self.get_zygote(job.prepare)
            return await zygote.run(job, walls=found.walls)

    async def get_zygote(self, prepare: str) -> Zygote:
        """The living zygote that has run this, started if there is none."""
        async with self.starting:
            zygote = self.zygotes.get(prepare)
            if zygote is not None and zygote.alive:
                return zygote
            if zygote is not None:
                await zygote.close()
            self.zygotes[prepare] = await start_zygote(prepare)
            return self.zygotes[prepare]


async def capabilities() -> Capabilities:
    """Which walls stand on this machine, for a report. Starts and ends a sandbox."""
    async with Sandbox(require=frozenset()) as sandbox:
        return await sandbox.capabilities()
