"""Hostile programs, as real processes: none of them gets out, stays behind or takes more than its share.

Every attack is bounded by itself as well, so that a hole in the sandbox fails a test and not the machine.
"""

import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from prime_protocol.tasks.family import JobEnd, SandboxOutcome
from prime_runtime.sandbox.sandbox import Guarantee, Sandbox
from support.processes.sandboxes import QUICK, job, survivors

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODES = {
    "all layers": frozenset[str](),
    "no pid and net namespaces": frozenset({"pid namespace", "net namespace", "ipc namespace"}),
    "no seccomp and landlock": frozenset({"seccomp", "landlock"}),
}
"""Each guarantee but that of the call filter is given by another wall when one is missing."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    async with Sandbox(require=frozenset(), without=MODES[request.param]) as sandbox:
        yield sandbox
        assert survivors(sandbox) == set()


async def attack(sandbox: Sandbox, source: str, *needs: Guarantee) -> SandboxOutcome:
    """Run it where the guarantee that it attacks is given, and see that nothing of it is left."""
    missing = set(needs) - (await sandbox.capabilities()).guarantees
    if missing:
        pytest.skip(f"not guaranteed here: {missing}")
    outcome = await sandbox.run(job(source))
    assert survivors(sandbox) == set()
    return outcome


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file that anyone on this machine may read."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "secret"
        path.write_text("the secret")
        path.chmod(0o644)
        yield path


async def test_forks_stop_at_the_limit(sandbox: Sandbox) -> None:
    source = """
import os, time
made = 0
for _ in range(60):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    made += 1
print(made, flush=True)
"""
    outcome = await attack(sandbox, source)
    assert outcome.end is JobEnd.EXIT
    assert 0 < int(outcome.stdout) <= QUICK.processes


async def test_a_daemon_with_a_session_of_its_own_dies_with_its_job(sandbox: Sandbox) -> None:
    source = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        time.sleep(60)
    os._exit(0)
os.wait()
print("left")
"""
    outcome = await attack(sandbox, source)
    assert (outcome.end, outcome.code, outcome.stdout) == (JobEnd.EXIT, 0, b"left\n")


async def test_a_secret_outside_cannot_be_read(sandbox: Sandbox, secret: Path) -> None:
    source = f"""
import os
for path in ({str(secret)!r}, "/etc/shadow", "/etc/passwd", "/proc/1/environ", "/proc/self/environ", {__file__!r}):
    try:
        print(open(path, "rb").read(1))
    except OSError:
        pass
for path in ("/root", "/home", "/var", "/work", "/proc", {str(secret.parent)!r}, os.path.expanduser("~")):
    try:
        print(os.listdir(path))
    except OSError:
        pass
os.symlink({str(secret)!r}, "link")
try:
    print(open("link").read())
except OSError:
    pass
"""
    outcome = await attack(sandbox, source, Guarantee.FILES)
    assert (outcome.code, outcome.stdout) == (0, b""), outcome.stderr


async def test_nothing_outside_can_be_written(sandbox: Sandbox, secret: Path) -> None:
    source = f"""
import os, sys
for path in ({str(secret)!r}, "/tmp/attack", "/dev/shm/attack", os.__file__, sys.prefix + "/attack", "/attack"):
    try:
        open(path, "a").write("x")
        print(path)
    except OSError:
        pass
"""
    outcome = await attack(sandbox, source, Guarantee.FILES)
    assert (outcome.code, outcome.stdout) == (0, b""), outcome.stderr
    assert secret.read_text() == "the secret"


async def test_no_connection_leaves(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"""
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]})), (socket.AF_UNIX, "\\0x")):
    try:
        socket.socket(family).connect(address)
        print("connected")
    except OSError:
        pass
"""
        outcome = await attack(sandbox, source, Guarantee.NETWORK)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (outcome.code, outcome.stdout) == (0, b"")


async def test_memory_ends_at_the_limit(sandbox: Sandbox) -> None:
    outcome = await attack(sandbox, "hog = bytearray(2**30); print(len(hog))")
    assert (outcome.code, outcome.stdout) == (1, b"")
    assert b"MemoryError" in outcome.stderr


@pytest.mark.parametrize("stream", ["1", "2", "3"])
async def test_endless_output_is_cut_and_its_writer_killed(sandbox: Sandbox, stream: str) -> None:
    outcome = await attack(sandbox, f"import os\nfor _ in range(10**6): os.write({stream}, b'x' * 4096)")
    assert outcome.end is JobEnd.OUTPUT
    assert max(map(len, (outcome.stdout, outcome.stderr, outcome.result))) == QUICK.output_bytes


async def test_a_loop_that_ignores_every_signal_is_killed(sandbox: Sandbox) -> None:
    source = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""
    outcome = await sandbox.run(job(source, limits=replace(QUICK, wall_ms=600)))
    assert outcome.end is JobEnd.TIMEOUT
    assert survivors(sandbox) == set()


async def test_sleeping_runs_into_the_wall_clock(sandbox: Sandbox) -> None:
    limits = replace(QUICK, wall_ms=300)
    outcome = await sandbox.run(job("import time; print('a', flush=True); time.sleep(60)", limits=limits))
    assert (outcome.end, outcome.stdout) == (JobEnd.TIMEOUT, b"a\n")


async def test_files_end_at_the_limit(sandbox: Sandbox) -> None:
    source = """
import os
size = 0
with open("big", "wb", 0) as file:
    try:
        for _ in range(64):
            size += file.write(bytes(2**20))
    except OSError:
        pass
print(size)
"""
    outcome = await attack(sandbox, source)
    assert int(outcome.stdout) <= QUICK.file_bytes


async def test_nobody_else_can_be_signalled(sandbox: Sandbox) -> None:
    source = f"""
import os
for pid in (os.getppid(), 1, -1, {os.getpid()}):
    try:
        os.kill(pid, 0)
        print(pid)
    except OSError:
        pass
"""
    outcome = await attack(sandbox, source, Guarantee.SYSCALLS)
    assert (outcome.code, outcome.stdout) == (0, b"")


async def test_kernel_surfaces_are_closed(sandbox: Sandbox) -> None:
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
calls = {
    "unshare user": lambda: libc.unshare(0x10000000),
    "clone user": lambda: libc.syscall(56, 0x10000011, 0, 0, 0, 0),
    "ptrace": lambda: libc.ptrace(16, os.getppid(), 0, 0),
    "mount": lambda: libc.mount(b"none", b".", b"tmpfs", 0, 0),
    "chroot": lambda: libc.chroot(b"."),
    "bpf": lambda: libc.syscall(321, 0, 0, 0),
    "io_uring": lambda: libc.syscall(425, 1, 0),
    "keyctl": lambda: libc.syscall(250, 0, -3, 1),
    "memfd": lambda: libc.memfd_create(b"x", 0),
    "shmget": lambda: libc.shmget(0, 4096, 0o1600),
    "execve": lambda: os.execv("/bin/sh", ["sh", "-c", "echo shell"]),
    "prlimit": lambda: libc.prlimit(os.getppid(), 7, 0, 0),
    "setuid": lambda: libc.setresuid(0, 0, 0),
}
for name, call in calls.items():
    try:
        if call() >= 0:
            print(name)
    except OSError:
        pass
"""
    outcome = await attack(sandbox, source, Guarantee.SYSCALLS)
    assert (outcome.end, outcome.stdout) == (JobEnd.EXIT, b"")


async def test_limits_cannot_be_raised(sandbox: Sandbox) -> None:
    source = """
import resource
for name in ("AS", "CPU", "FSIZE", "NPROC", "NOFILE", "CORE"):
    limit = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(limit)
    try:
        resource.setrlimit(limit, (hard + 1, hard + 1))
        print(name)
    except (ValueError, OSError):
        pass
"""
    outcome = await attack(sandbox, source)
    assert (outcome.code, outcome.stdout) == (0, b"")


async def test_closing_every_descriptor_hurts_only_oneself(sandbox: Sandbox) -> None:
    outcome = await attack(sandbox, "import os; os.closerange(0, 1024); os._exit(0)")
    assert (outcome.end, outcome.code, outcome.result) == (JobEnd.EXIT, 0, b"")


async def test_a_printed_verdict_is_not_a_result(sandbox: Sandbox) -> None:
    outcome = await attack(sandbox, "print('exit 0'); print('1'); import sys; print('1', file=sys.stderr); sys.exit(7)")
    assert (outcome.end, outcome.code, outcome.result) == (JobEnd.EXIT, 7, b"")


async def test_the_next_job_is_served_after_every_attack(sandbox: Sandbox) -> None:
    outcome = await sandbox.run(job("print(input())", b"still here"))
    assert (outcome.code, outcome.stdout) == (0, b"still here\n")
