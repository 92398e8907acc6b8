"""A launcher process as the daemon sees it: start it, send it a job, read what comes back, leave nothing behind.

The other end of the socket is jail/launcher.py. What the walls are good for is decided in sandbox.py.

Runs jobs of strangers' code, or of our code over strangers' text, where they can hurt nobody.

This is the daemon's side and what it can promise. The processes are in zygote.py, the walls in jail/.
A fault of this machine is a LocalError and never a grade; whatever the job does is a SandboxOutcome.
"""

import asyncio
import io
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from prime_protocol.errors import LocalError
from prime_protocol.tasks.family import JobEnd, SandboxJob, SandboxLimits, SandboxOutcome
from prime_runtime.sandbox.launcher import READY

PACKAGE = str(Path(__file__).resolve().parents[2])
START = "import sys; sys.path.insert(0, {package!r}); from prime_runtime.sandbox.launcher import main; sys.exit(main())"
START_S = 60.0
"""Longest wait for a zygote. reasoning-gym takes 2 s to import on a quiet machine."""

GRACE_S = 15.0
"""How long past a job's wall clock its keeper may take to clean up. Then the zygote is at fault."""

STATUS_BYTES_MAX = 16384
CHUNK_BYTES = 65536


class Zygote:
    """A launcher process and the socket to it."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket, home: str) -> None:
        self.process = process
        self.control = control
        self.home = home

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def close(self) -> None:
        """End the process. It leaves by itself when the socket closes; jobs end when their `alive` pipes do."""
        self.control.close()
        try:
            await asyncio.wait_for(self.process.wait(), GRACE_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        await asyncio.to_thread(shutil.rmtree, self.home, ignore_errors=True)

    async def run(self, job: SandboxJob, walls: tuple[str, ...] | None) -> SandboxOutcome:
        """One job. `walls` are those that must stand; None asks which ones do."""
        work = "" if walls is not None and "mount namespace" in walls else tempfile.mkdtemp(dir=self.home)
        try:
            ends = JobPipes.open(build_request(job, walls, work), job.stdin)
            try:
                socket.send_fds(self.control, [b"j"], ends.theirs)
            except OSError as error:
                ends.close()
                raise LocalError(f"the sandbox process is gone: {error}") from error
            finally:
                ends.close_theirs()
            return await self.collect(job.limits, ends)
        finally:
            if work:
                await asyncio.to_thread(remove_tree, work)

    async def collect(self, limits: SandboxLimits, ends: "JobPipes") -> SandboxOutcome:
        """Read until the keeper closes its end, which it does when nothing of the job is left."""
        caps = (limits.output_bytes, limits.output_bytes, limits.output_bytes, STATUS_BYTES_MAX)
        readers = [
            asyncio.ensure_future(read_pipe(fd, cap, ends.release)) for fd, cap in zip(ends.ours, caps, strict=True)
        ]
        try:
            await asyncio.wait(readers, timeout=limits.wall_ms / 1000 + GRACE_S)
        finally:
            # A caller that was cancelled still waits here for the keeper, so that the job is over when it goes on.
            ends.release()
            _, unfinished = await asyncio.wait(readers, timeout=GRACE_S)
            for reader in unfinished:
                reader.cancel()
        if unfinished:
            self.process.kill()
            raise LocalError("the sandbox did not come back")
        (stdout, _), (stderr, _), (result, _), (status, _) = outputs = [reader.result() for reader in readers]
        flooded = any(over for _, over in outputs)
        end, code = parse_outcome(status.decode(errors="replace"), flooded=flooded)
        return SandboxOutcome(end, code, stdout, stderr, result)


async def start_zygote(prepare: str) -> Zygote:
    """A launcher that has run `prepare`, ready for requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    home = tempfile.mkdtemp(prefix="prime-sandbox-")
    site = [path for path in sys.path if prepare and path.endswith(("site-packages", "dist-packages"))]
    setup = json.dumps({"package": PACKAGE, "path": site, "prepare": prepare})
    # Nothing of the daemon's environment: a key in a variable would be in every job's memory.
    environment = {"PYTHONHASHSEED": "0", "HOME": home, "TMPDIR": home, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    options = ("-s", "-S", "-P", "-B", "-X", "utf8")
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *options, "-c", START.format(package=PACKAGE), setup,
            stdin=theirs.fileno(), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            env=environment, cwd=home, start_new_session=True,
        )  # fmt: skip
    ours.setblocking(False)
    zygote = Zygote(process, ours, home)
    try:
        async with asyncio.timeout(START_S):
            word = await asyncio.get_running_loop().sock_recv(ours, len(READY))
    except TimeoutError:
        word = b""
    if word != READY:
        await zygote.close()
        raise LocalError(f"the sandbox does not start; it was to run {prepare.strip()[:80] or 'nothing'!r} first")
    ours.setblocking(True)
    return zygote


def build_request(job: SandboxJob, walls: tuple[str, ...] | None, work: str) -> bytes:
    limits = job.limits
    fields = {
        "source": None if walls is None else job.source,
        "walls": walls,
        "work": work,
        "wall_ms": limits.wall_ms,
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes,
        "processes": limits.processes,
        "open_files": limits.open_files,
    }
    return json.dumps(fields).encode()


@dataclass(slots=True)
class JobPipes:
    """Both ends of the pipes of one job. Every descriptor is closed once, whatever happens."""

    theirs: list[int]
    """In the order of keeper.Pipes."""
    ours: list[int]
    """stdout, stderr, result, status; each is closed by its reader."""
    alive: int

    @classmethod
    def open(cls, request: bytes, stdin: bytes) -> Self:
        pairs = [os.pipe() for _ in range(4)]
        alive_theirs, alive_ours = os.pipe()
        theirs = [make_memory_file(request), make_memory_file(stdin), *(write for _, write in pairs), alive_theirs]
        return cls(theirs, [read for read, _ in pairs], alive_ours)

    def release(self) -> None:
        """Tell the keeper that the job is no longer wanted."""
        if self.alive >= 0:
            os.close(self.alive)
            self.alive = -1

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)
        self.theirs = []

    def close(self) -> None:
        """Give up before anyone reads."""
        self.release()
        for fd in self.ours:
            os.close(fd)
        self.ours = []


def make_memory_file(data: bytes) -> int:
    """A file that is nowhere on disk, holding `data`, at its start."""
    fd = os.memfd_create("job", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def read_pipe(fd: int, limit: int, let_go: Callable[[], None]) -> tuple[bytes, bool]:
    """Everything written to a pipe, and whether that was more than the limit, at which reading stops."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), io.FileIO(fd))
    kept = bytearray()
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            kept += chunk
            if len(kept) > limit:
                let_go()
                return bytes(kept[:limit]), True
        return bytes(kept), False
    finally:
        transport.close()


def parse_outcome(status: str, *, flooded: bool) -> tuple[JobEnd, int]:
    """How the job ended, from the lines of its first process and its keeper."""
    lines = [line.partition(" ") for line in status.splitlines()]
    for word, _, rest in lines:
        if word == "broken":
            raise LocalError(f"the sandbox could not run a job: {rest}")
    if flooded:
        return JobEnd.OUTPUT, 0
    for word, _, rest in lines:
        if word in ("exit", "signal"):
            return JobEnd(word), int(rest)
        if word == "timeout":
            return JobEnd.TIMEOUT, 0
    raise LocalError(f"the sandbox lost a job: {status!r}")


def remove_tree(path: str) -> None:
    """Remove a job's folder, also where the job took away the right to enter parts of it."""
    if os.geteuid() != 0:
        for folder, names, _ in os.walk(path):
            for inner in (os.path.join(folder, name) for name in names):
                # A link would lead the change of rights out of the folder.
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)


SANDBOX_JOBS_DEFAULT = 2
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
class SandboxCapabilities:
    """Which walls stand on this machine, and what that guarantees."""

    layers: tuple[str, ...]

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        return frozenset(name for name, walls in PROVIDED_BY.items() if walls & set(self.layers))


REQUIRED_GUARANTEES = frozenset({Guarantee.FILES, Guarantee.NETWORK, Guarantee.SYSCALLS})
"""What a daemon insists on unless told otherwise. Any Linux from 5.13 on gives these without privileges."""


class Sandbox:
    """Runs jobs, a few at a time. Use as `async with Sandbox() as sandbox`."""

    def __init__(
        self,
        *,
        require: frozenset[Guarantee] = REQUIRED_GUARANTEES,
        jobs_max: int = SANDBOX_JOBS_DEFAULT,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.require = require
        self.without = without
        """Walls to leave out although they would stand: for machines where one of them does harm."""
        self.turns = asyncio.Semaphore(jobs_max)
        self.zygotes: dict[str, Zygote] = {}
        self.starting = asyncio.Lock()
        self.found: SandboxCapabilities | None = None

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

    async def capabilities(self) -> SandboxCapabilities:
        """Which walls stand here, found by trying them once."""
        zygote = await self.get_zygote("")
        if self.found is None:
            outcome = await zygote.run(SandboxJob("", b""), walls=None)
            if outcome.end is not JobEnd.EXIT or outcome.code != 0:
                raise LocalError(f"the sandbox does not work here: {outcome.stderr.decode(errors='replace')}")
            self.found = SandboxCapabilities(
                tuple(wall for wall in json.loads(outcome.result) if wall not in self.without)
            )
        return self.found

    async def run(self, job: SandboxJob) -> SandboxOutcome:
        """Run one job to its end. Cancelling kills it."""
        found = await self.capabilities()
        if os.geteuid() == 0 and "own user" not in found.layers:
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
            return await zygote.run(job, walls=found.layers)

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


async def probe_capabilities() -> SandboxCapabilities:
    """Which walls stand on this machine, for a report. Starts and ends a sandbox."""
    async with Sandbox(require=frozenset()) as sandbox:
        return await sandbox.capabilities()
