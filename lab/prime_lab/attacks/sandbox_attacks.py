"""Code answers that attack the machine that grades them, run in the real sandbox.

Each program also limits itself, so that a hole in the sandbox fails the suite and does not harm the machine.

"""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    PROGRAM_ATTACKS,
)
from prime_protocol.tasks.family import JobEnd, SandboxJob, SandboxLimits, SandboxOutcome
from prime_runtime.sandbox.sandbox import Sandbox

LIMITS = SandboxLimits(wall_ms=3_000, cpu_s=1, memory_bytes=256 * 2**20, file_bytes=2**20, output_bytes=2**18)
SILENT_EXIT = (JobEnd.EXIT, 0, b"")
"""The outcome of a program that could reach nothing."""
REAP_S, POLL_S = 3.0, 0.02
"""How long the kernel may take to reap the last process of a finished job, and the polling interval."""

FORKS = """
import os, time
made = 0
for _ in range(200):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    made += 1
print(made, flush=True)
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        time.sleep(30)
    os._exit(0)
os.wait()
print("left")
"""
CALL = """
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, "\\0x")):
    try:
        socket.socket(family).connect(address)
        print("connected")
    except OSError:
        pass
"""
READ = """
import os
for path in ({secret!r}, "/etc/shadow", "/etc/passwd", "/proc/1/environ", "/proc/self/environ"):
    try:
        print(open(path, "rb").read(1))
    except OSError:
        pass
"""
LOOP = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""
KILL = """
import os
for pid in (os.getppid(), 1, {pid}):
    try:
        os.kill(pid, 0)
        print(pid)
    except OSError:
        pass
"""
PICKLE = """
import os, pickle
class Answer:
    def __reduce__(self):
        return (os.system, ("touch {mark}",))
os.write(1, pickle.dumps(Answer()))
"""


@dataclass(frozen=True, slots=True)
class SandboxTargets:
    """What the programs try to reach."""

    secret: Path
    mark: Path
    """A file that only a program that escaped can write."""
    port: int


@dataclass(frozen=True, slots=True)
class HostileProgram:
    """One program, and how to tell that it achieved nothing."""

    source: Callable[[SandboxTargets], str]
    is_held: Callable[[SandboxOutcome, SandboxTargets], bool]


def is_silent(found: SandboxOutcome, targets: SandboxTargets) -> bool:
    return (found.end, found.code, found.stdout) == SILENT_EXIT


HOSTILE_PROGRAMS: dict[str, HostileProgram] = {
    "fork-bomb": HostileProgram(
        lambda targets: FORKS, lambda found, _: found.end is JobEnd.EXIT and int(found.stdout) <= LIMITS.processes
    ),
    "daemon": HostileProgram(
        lambda targets: DAEMON, lambda found, _: (found.end, found.stdout) == (JobEnd.EXIT, b"left\n")
    ),
    "network": HostileProgram(lambda targets: CALL.format(port=targets.port), is_silent),
    "file-reads": HostileProgram(lambda targets: READ.format(secret=str(targets.secret)), is_silent),
    "memory": HostileProgram(
        lambda targets: "print(len(bytearray(2**30)))", lambda found, _: b"MemoryError" in found.stderr
    ),
    "endless-output": HostileProgram(
        lambda targets: "import os\nfor _ in range(10**6): os.write(1, b'x' * 4096)",
        lambda found, _: found.end is JobEnd.OUTPUT and len(found.stdout) <= LIMITS.output_bytes,
    ),
    "endless-loop": HostileProgram(lambda targets: LOOP, lambda found, _: found.end in (JobEnd.TIMEOUT, JobEnd.SIGNAL)),
    "signals": HostileProgram(lambda targets: KILL.format(pid=os.getpid()), is_silent),
    "printed-verdict": HostileProgram(lambda targets: "print('exit 0\\n1')", lambda found, _: found.result == b""),
    "pickle": HostileProgram(
        lambda targets: PICKLE.format(mark=targets.mark),
        lambda found, targets: found.result == b"" and not targets.mark.exists(),
    ),
}


async def attack_graders() -> AsyncIterator[tuple[Attack, AttackResult]]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        os.chmod(folder, 0o755)
        targets = SandboxTargets(Path(folder) / "secret", Path(folder) / "mark", server.getsockname()[1])
        targets.secret.write_text("the secret")
        targets.secret.chmod(0o644)
        async with Sandbox() as sandbox:
            for attack in PROGRAM_ATTACKS:
                yield attack, await attack_grader(sandbox, HOSTILE_PROGRAMS[attack.name], targets, attack)


async def attack_grader(
    sandbox: Sandbox, program: HostileProgram, targets: SandboxTargets, attack: Attack
) -> AttackResult:
    """Run one program; then look for processes that it left, and grade the next answer."""
    found = await sandbox.run(SandboxJob(program.source(targets), b"", LIMITS))
    left = await find_survivors(sandbox)
    after = await sandbox.run(SandboxJob("print(input())", b"still here", LIMITS))
    is_held = program.is_held(found, targets) and not left and after.stdout == b"still here\n"
    return AttackResult(
        verdict=AttackVerdict.HARMLESS if is_held else None,
        checks=attack.caught_by if is_held else (),
        reason=f"{found.end} {found.code}, {len(found.stdout)} bytes said, {len(left)} processes left",
    )


async def find_survivors(sandbox: Sandbox) -> set[int]:
    """Processes of finished jobs."""
    zygotes = {zygote.process.pid for zygote in sandbox.zygotes.values()}
    homes = [str(zygote.home) for zygote in sandbox.zygotes.values()]
    ends_s = asyncio.get_running_loop().time() + REAP_S
    while (left := list_processes(homes) - zygotes) and asyncio.get_running_loop().time() < ends_s:
        await asyncio.sleep(POLL_S)
    return left


def list_processes(homes: Sequence[str]) -> set[int]:
    """Every process whose environment names one of these home folders, whatever its parent."""
    marks = [f"HOME={home}\0".encode() for home in homes]
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes() + b"\0"
            except OSError:
                continue
            if any(mark in environment for mark in marks):
                found.add(int(entry.name))
    return found
