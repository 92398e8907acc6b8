"""What the isolation layers guarantee, what the seccomp filter contains, and that an ordinary user gets the same."""

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from prime_protocol.errors import LocalError
from prime_runtime.sandbox import isolation
from prime_runtime.sandbox import sandbox as sandbox_module
from prime_runtime.sandbox.sandbox import REQUIRED_GUARANTEES, Guarantee, SandboxCapabilities

ROOT = Path(__file__).parents[4]
SYSTEM_PYTHON = "/usr/bin/python3"


def test_guarantees_follow_from_layers() -> None:
    assert SandboxCapabilities(()).guarantees == frozenset()
    assert SandboxCapabilities(("seccomp",)).guarantees == {Guarantee.NETWORK, Guarantee.SYSCALLS}
    assert SandboxCapabilities(("landlock", "seccomp")).guarantees == REQUIRED_GUARANTEES
    assert SandboxCapabilities(("own user", "pid namespace")).guarantees == {Guarantee.IDENTITY, Guarantee.PROCESSES}


@pytest.mark.parametrize("status", ["", "over\n", "dropped\n"])
def test_a_job_without_an_end_is_our_fault(status: str) -> None:
    with pytest.raises(LocalError, match="lost"):
        sandbox_module.parse_outcome(status, flooded=False)


def test_the_call_table_names_each_number_once() -> None:
    for column in (0, 1):
        numbers = [row[column] for row in isolation.REFUSED_CALLS.values() if row[column] is not None]
        assert len(numbers) == len(set(numbers))
        assert max(numbers) <= isolation.NEWEST_REVIEWED_CALL
    with pytest.raises(OSError, match="vax"):
        isolation.build_filter("vax")
    assert len(isolation.build_filter(platform.machine())) % 8 == 0


def test_the_filter_s_jumps_land_inside_it() -> None:
    for machine in isolation.ARCHITECTURES:
        code = isolation.build_filter(machine)
        steps = [code[at : at + 8] for at in range(0, len(code), 8)]
        for place, step in enumerate(steps):
            assert place + 1 + max(step[2], step[3]) <= len(steps) - (step[0] != isolation.RETURN)


UNPRIVILEGED = """
import asyncio, json, os
from prime_protocol.tasks.family import SandboxJob, SandboxLimits
from prime_runtime.sandbox.sandbox import Sandbox
LIMITS = SandboxLimits(wall_ms=4_000, cpu_s=1, file_bytes=2**20)
NAMESPACES = frozenset(name + " namespace" for name in ("user", "pid", "net", "ipc", "mount"))
FORKS = '''
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
os.mkdir("closed"); open("closed/file", "w").close(); os.chmod("closed", 0); os.symlink("/etc", "link")
print(made, end="")
'''
TRIES = '''
import os, socket
for attack in (lambda: open("/etc/passwd"), lambda: socket.socket(), lambda: os.kill(os.getppid(), 0)):
    try:
        attack()
        print("worked", end="")
    except OSError:
        pass
'''
async def main():
    for without in (frozenset(), NAMESPACES):
        async with Sandbox(without=without) as sandbox:
            found = await sandbox.capabilities()
            jobs = [SandboxJob(source, b"", LIMITS) for source in ("print(end='hello')", FORKS, TRIES)]
            outcomes = [await sandbox.run(job) for job in jobs]
            homes = [zygote.home for zygote in sandbox.zygotes.values()]
            print(json.dumps([sorted(found.guarantees), *[outcome.stdout.decode() for outcome in outcomes]]))
        assert not any(map(os.path.exists, homes))
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test here is run unprivileged already")
def test_an_ordinary_user_gets_the_same_guarantees_with_and_without_namespaces() -> None:
    """The system's interpreter, because this one may lie in root's home."""
    probe = subprocess.run([SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True)
    if probe.stdout.strip() != b"True":
        pytest.skip(f"{SYSTEM_PYTHON} is older than 3.11")
    environment = {"PYTHONPATH": str(ROOT / "protocol"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [SYSTEM_PYTHON, "-c", UNPRIVILEGED],
        env=environment, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        guarantees, hello, forks, tries = json.loads(line)
        assert set(REQUIRED_GUARANTEES) <= set(guarantees)
        assert (hello, tries) == ("hello", "")
        assert 0 < int(forks) <= 16
