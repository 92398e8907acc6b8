"""A launcher process as the daemon sees it: start it, send it a job, read what comes back, leave nothing behind.

The other end of the socket is jail/launcher.py. What the walls are good for is decided in sandbox.py.
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
from pathlib import Path
from typing import Self

from prime_protocol.errors import LocalError
from prime_protocol.tasks.family import End, Limits, SandboxJob, SandboxOutcome
from prime_runtime.jail.launcher import READY

PACKAGE = str(Path(__file__).resolve().parent.parent)
START = "import sys; sys.path.insert(0, {package!r}); from prime_runtime.jail.launcher import main; sys.exit(main())"
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
            ends = Ends.open(build_request(job, walls, work), job.stdin)
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

    async def collect(self, limits: Limits, ends: "Ends") -> SandboxOutcome:
        """Read until the keeper closes its end, which it does when nothing of the job is left."""
        caps = (limits.output_bytes, limits.output_bytes, limits.output_bytes, STATUS_BYTES_MAX)
        readers = [asyncio.ensure_future(drain(fd, cap, ends.let_go)) for fd, cap in zip(ends.ours, caps, strict=True)]
        try:
            await asyncio.wait(readers, timeout=limits.wall_ms / 1000 + GRACE_S)
        finally:
            # A caller that was cancelled still waits here for the keeper, so that the job is over when it goes on.
            ends.let_go()
            _, unfinished = await asyncio.wait(readers, timeout=GRACE_S)
            for reader in unfinished:
                reader.cancel()
        if unfinished:
            self.process.kill()
            raise LocalError("the sandbox did not come back")
        (stdout, _), (stderr, _), (result, _), (status, _) = outputs = [reader.result() for reader in readers]
        flooded = any(over for _, over in outputs)
        end, code = read_end(status.decode(errors="replace"), flooded=flooded)
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
class Ends:
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
        theirs = [in_memory(request), in_memory(stdin), *(write for _, write in pairs), alive_theirs]
        return cls(theirs, [read for read, _ in pairs], alive_ours)

    def let_go(self) -> None:
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
        self.let_go()
        for fd in self.ours:
            os.close(fd)
        self.ours = []


def in_memory(data: bytes) -> int:
    """A file that is nowhere on disk, holding `data`, at its start."""
    fd = os.memfd_create("job", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def drain(fd: int, limit: int, let_go: Callable[[], None]) -> tuple[bytes, bool]:
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


def read_end(status: str, *, flooded: bool) -> tuple[End, int]:
    """How the job ended, from the lines of its first process and its keeper."""
    lines = [line.partition(" ") for line in status.splitlines()]
    for word, _, rest in lines:
        if word == "broken":
            raise LocalError(f"the sandbox could not run a job: {rest}")
    if flooded:
        return End.OUTPUT, 0
    for word, _, rest in lines:
        if word in ("exit", "signal"):
            return End(word), int(rest)
        if word == "timeout":
            return End.TIMEOUT, 0
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
