"""Runs untrusted code, or our code over untrusted text, in isolated processes: the daemon's side.

A sandbox keeps a zygote process per kind of job, sends it jobs over a socket and reads what comes back. The processes
are in launcher.py, the isolation layers in isolation.py. A failure of this machine is a LocalError and never a grade;
everything that the job does is a SandboxOutcome.
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
"""Time for a zygote to start. Importing reasoning-gym takes 2 s on an idle machine."""

GRACE_S = 15.0
"""Time beyond the limit of a job for its supervisor to clean up. Beyond it the zygote is at fault."""

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
        """End the process. It exits when the socket closes; jobs end when their `alive` pipes close."""
        self.control.close()
        try:
            await asyncio.wait_for(self.process.wait(), GRACE_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        await asyncio.to_thread(shutil.rmtree, self.home, ignore_errors=True)

    async def run(self, job: SandboxJob, layers: tuple[str, ...] | None) -> SandboxOutcome:
        """Run one job. `layers` are required; None probes which layers work."""
        work = "" if layers is not None and "mount namespace" in layers else tempfile.mkdtemp(dir=self.home)
        try:
            pipes = JobPipes.open(build_request(job, layers, work), job.stdin)
            try:
                socket.send_fds(self.control, [b"j"], pipes.theirs)
            except OSError as error:
                pipes.close()
                raise LocalError(f"the sandbox process is gone: {error}") from error
            finally:
                pipes.close_theirs()
            return await self.collect(job.limits, pipes)
        finally:
            if work:
                await asyncio.to_thread(remove_tree, work)

    async def collect(self, limits: SandboxLimits, pipes: "JobPipes") -> SandboxOutcome:
        """Read until the supervisor closes its end, which it does when nothing of the job is left."""
        caps = (limits.output_bytes, limits.output_bytes, limits.output_bytes, STATUS_BYTES_MAX)
        readers = [
            asyncio.ensure_future(read_pipe(fd, cap, pipes.release)) for fd, cap in zip(pipes.ours, caps, strict=True)
        ]
        try:
            await asyncio.wait(readers, timeout=limits.wall_ms / 1000 + GRACE_S)
        finally:
            # A cancelled caller still waits here, so that the job has ended when it continues.
            pipes.release()
            _, unfinished = await asyncio.wait(readers, timeout=GRACE_S)
            for reader in unfinished:
                reader.cancel()
        if unfinished:
            self.process.kill()
            raise LocalError("the sandbox did not end the job in time")
        (stdout, _), (stderr, _), (result, _), (status, _) = outputs = [reader.result() for reader in readers]
        flooded = any(over for _, over in outputs)
        end, code = parse_outcome(status.decode(errors="replace"), flooded=flooded)
        return SandboxOutcome(end, code, stdout, stderr, result)


async def start_zygote(prepare: str) -> Zygote:
    """Start a zygote that has run `prepare`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    home = tempfile.mkdtemp(prefix="prime-sandbox-")
    site = [path for path in sys.path if prepare and path.endswith(("site-packages", "dist-packages"))]
    setup = json.dumps({"package": PACKAGE, "path": site, "prepare": prepare})
    # Pass no environment of the daemon: a secret in a variable would be in the memory of every job.
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
        raise LocalError(f"the sandbox does not start; its preparation was {prepare.strip()[:80]!r}")
    ours.setblocking(True)
    return zygote


def build_request(job: SandboxJob, layers: tuple[str, ...] | None, work: str) -> bytes:
    limits = job.limits
    fields = {
        "source": None if layers is None else job.source,
        "layers": layers,
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
    """Both ends of the pipes of a job. Every descriptor is closed exactly once."""

    theirs: list[int]
    """In the order of JobDescriptors."""
    ours: list[int]
    """stdout, stderr, result, status; the reader of each closes it."""
    alive: int

    @classmethod
    def open(cls, request: bytes, stdin: bytes) -> Self:
        pairs = [os.pipe() for _ in range(4)]
        alive_theirs, alive_ours = os.pipe()
        theirs = [make_memory_file(request), make_memory_file(stdin), *(write for _, write in pairs), alive_theirs]
        return cls(theirs, [read for read, _ in pairs], alive_ours)

    def release(self) -> None:
        """Tell the supervisor to end the job."""
        if self.alive >= 0:
            os.close(self.alive)
            self.alive = -1

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)
        self.theirs = []

    def close(self) -> None:
        """Close everything before reading has started."""
        self.release()
        for fd in self.ours:
            os.close(fd)
        self.ours = []


def make_memory_file(data: bytes) -> int:
    """A descriptor of an in-memory file with this content, at its start."""
    fd = os.memfd_create("job", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def read_pipe(fd: int, limit: int, release: Callable[[], None]) -> tuple[bytes, bool]:
    """The bytes from a pipe, and whether there were more than the limit, at which reading stops."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), io.FileIO(fd))
    kept = bytearray()
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            kept += chunk
            if len(kept) > limit:
                release()
                return bytes(kept[:limit]), True
        return bytes(kept), False
    finally:
        transport.close()


def parse_outcome(status: str, *, flooded: bool) -> tuple[JobEnd, int]:
    """How the job ended, from the status lines of pid 1 and the supervisor."""
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
    """Remove the folder of a job, even if the job removed the permission to enter parts of it."""
    if os.geteuid() != 0:
        for folder, names, _ in os.walk(path):
            for inner in (os.path.join(folder, name) for name in names):
                # Changing permissions through a link would leave the folder.
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)


SANDBOX_JOBS_DEFAULT = 2
"""Concurrent jobs. Each may use a core, and a validator needs the others."""


class Guarantee(StrEnum):
    """Kinds of protection. Several layers may give the same one."""

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
"""Any one of the layers gives the guarantee."""


@dataclass(frozen=True, slots=True)
class SandboxCapabilities:
    """The layers that work on this machine, and what they guarantee."""

    layers: tuple[str, ...]

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        return frozenset(name for name, layers in PROVIDED_BY.items() if layers & set(self.layers))


REQUIRED_GUARANTEES = frozenset({Guarantee.FILES, Guarantee.NETWORK, Guarantee.SYSCALLS})
"""Required by default. Linux 5.13 and later provides these without privileges."""


class Sandbox:
    """Runs a few jobs at a time. Use it as `async with Sandbox() as sandbox`."""

    def __init__(
        self,
        *,
        require: frozenset[Guarantee] = REQUIRED_GUARANTEES,
        jobs_max: int = SANDBOX_JOBS_DEFAULT,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.require = require
        self.without = without
        """Layers to skip although they would work, for machines where one of them does harm."""
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
        """End the zygotes, and with them the running jobs."""
        for zygote in self.zygotes.values():
            await zygote.close()
        self.zygotes.clear()

    async def capabilities(self) -> SandboxCapabilities:
        """The layers that work here, found by a probe."""
        zygote = await self.get_zygote("")
        if self.found is None:
            outcome = await zygote.run(SandboxJob("", b""), layers=None)
            if outcome.end is not JobEnd.EXIT or outcome.code != 0:
                raise LocalError(f"the sandbox does not work here: {outcome.stderr.decode(errors='replace')}")
            self.found = SandboxCapabilities(
                tuple(layer for layer in json.loads(outcome.result) if layer not in self.without)
            )
        return self.found

    async def run(self, job: SandboxJob) -> SandboxOutcome:
        """Run one job to its end. Cancelling kills it."""
        found = await self.capabilities()
        if os.geteuid() == 0 and "own user" not in found.layers:
            raise LocalError(
                "jobs never run as root, and root may not switch to another user here: start as an ordinary user"
            )
        missing = self.require - found.guarantees
        if missing:
            raise LocalError(
                f"this machine cannot guarantee {', '.join(sorted(missing))}: see docs/operating/sandbox.md"
            )
        async with self.turns:
            zygote = await self.get_zygote(job.prepare)
            return await zygote.run(job, layers=found.layers)

    async def get_zygote(self, prepare: str) -> Zygote:
        """The running zygote with this preparation; starts one if needed."""
        async with self.starting:
            zygote = self.zygotes.get(prepare)
            if zygote is not None and zygote.alive:
                return zygote
            if zygote is not None:
                await zygote.close()
            self.zygotes[prepare] = await start_zygote(prepare)
            return self.zygotes[prepare]
