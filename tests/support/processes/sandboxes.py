"""What the sandbox tests share: a job from a program's text, and the processes that a sandbox left behind."""

import os
import time

from prime_lab.attacks.sandbox_attacks import list_processes
from prime_protocol.tasks.family import SandboxJob, SandboxLimits
from prime_runtime.sandbox.sandbox import Sandbox

QUICK = SandboxLimits(wall_ms=4_000, cpu_s=1, memory_bytes=256 * 2**20, file_bytes=2**20, output_bytes=2**18)
SECONDS_TO_VANISH = 3.0


def job(source: str, stdin: bytes = b"", limits: SandboxLimits = QUICK) -> SandboxJob:
    return SandboxJob(source, stdin, limits)


def processes_of(sandbox: Sandbox) -> set[int]:
    """Every process that carries the environment of one of the sandbox's zygotes, wherever it hangs in the tree."""
    return list_processes([str(zygote.home) for zygote in sandbox.zygotes.values()])


def survivors(sandbox: Sandbox) -> set[int]:
    """Processes of jobs that are over. The kernel takes a moment to bury the last one."""
    zygotes = {zygote.process.pid for zygote in sandbox.zygotes.values()}
    stop = time.monotonic() + SECONDS_TO_VANISH
    while (left := processes_of(sandbox) - zygotes) and time.monotonic() < stop:
        os.sched_yield()
    return left
