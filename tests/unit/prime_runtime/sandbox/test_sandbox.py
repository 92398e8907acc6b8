"""The daemon's side of the sandbox: what a job gets, what comes back, and what happens when something breaks."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from prime_protocol.constants import SIGNAL_CPU_TIME
from prime_protocol.errors import LocalError
from prime_protocol.tasks.family import JobEnd, SandboxJob
from prime_runtime.sandbox import isolation
from prime_runtime.sandbox import sandbox as sandbox_module
from prime_runtime.sandbox.sandbox import Sandbox
from support.processes.sandboxes import QUICK, job, processes_of, survivors

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).parents[4]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox


async def test_a_job_reads_stdin_and_its_outputs_come_back_apart(sandbox: Sandbox) -> None:
    source = "import os, sys; print(input()); print('err', file=sys.stderr); os.write(3, b'res'); sys.exit(3)"
    outcome = await sandbox.run(job(source, "grüße".encode()))
    assert (outcome.end, outcome.code) == (JobEnd.EXIT, 3)
    assert (outcome.stdout, outcome.stderr, outcome.result) == ("grüße\n".encode(), b"err\n", b"res")


async def test_a_program_ends_as_it_would_outside(sandbox: Sandbox) -> None:
    source = """
import atexit, threading, time
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
if __name__ == "__main__":
    print("main")
"""
    assert (await sandbox.run(job(source))).stdout == b"main\nthread\nat exit\n"
    assert (await sandbox.run(job("raise ValueError"))).code == 1
    assert (await sandbox.run(job("not python at all"))).code == 1
    assert (await sandbox.run(job("import os; os.abort()"))).end is JobEnd.SIGNAL


async def test_cpu_time_that_runs_out_is_told_by_its_signal(sandbox: Sandbox) -> None:
    outcome = await sandbox.run(job("while True: pass", limits=replace(QUICK, wall_ms=20_000)))
    assert (outcome.end, outcome.code) == (JobEnd.SIGNAL, SIGNAL_CPU_TIME)


async def test_the_standard_library_works_inside(sandbox: Sandbox) -> None:
    source = """
import asyncio, collections, decimal, fractions, heapq, itertools, json, re, sqlite3, statistics, tempfile, zlib
asyncio.run(asyncio.sleep(0))
tempfile.TemporaryFile().write(b"x")
print(json.dumps(str(decimal.Decimal(1) / 4)))
"""
    outcome = await sandbox.run(job(source))
    assert (outcome.code, outcome.stdout) == (0, b'"0.25"\n'), outcome.stderr


async def test_hashes_are_the_same_in_every_job(sandbox: Sandbox) -> None:
    first, second = [await sandbox.run(job("print(hash('swarm'), {'a', 'b', 'c'})")) for _ in range(2)]
    assert first.stdout == second.stdout


async def test_a_job_starts_in_an_empty_folder_and_leaves_none(sandbox: Sandbox) -> None:
    for _ in range(2):
        outcome = await sandbox.run(job("import os; print(os.listdir('.')); open('left', 'w').write('x')"))
        assert outcome.stdout == b"[]\n"


async def test_nothing_of_the_daemon_s_environment_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_SECRET", "the secret")
    async with Sandbox() as sandbox:
        outcome = await sandbox.run(job("import os; print('PRIME_SECRET' in os.environ, os.environ.get('PATH'))"))
    assert outcome.stdout == b"False None\n"


async def test_what_one_job_brought_the_next_does_not_find(sandbox: Sandbox) -> None:
    search = """
import gc
held = [item for found in gc.get_objects() if isinstance(found, (list, tuple, dict)) for item in
        (found.values() if isinstance(found, dict) else found)]
print(sum(isinstance(item, (str, bytes)) and item[:6] in ("marker", b"marker") and len(item) > 6 for item in held))
"""
    await sandbox.run(job("x = ['marker' + '7' * 50]", b"marker" * 100))
    assert (await sandbox.run(job(search))).stdout == b"0\n"


async def test_jobs_run_side_by_side(sandbox: Sandbox) -> None:
    outcomes = await asyncio.gather(*(sandbox.run(job(f"print({number})")) for number in range(12)))
    assert [int(outcome.stdout) for outcome in outcomes] == list(range(12))
    assert survivors(sandbox) == set()


async def test_cancelling_kills_the_job_before_it_returns(sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(
        sandbox.run(job("import time; time.sleep(60)", limits=replace(QUICK, wall_ms=60_000)))
    )
    while not survivors_now(sandbox):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert survivors(sandbox) == set()
    assert (await sandbox.run(job("print(1)"))).stdout == b"1\n"


def survivors_now(sandbox: Sandbox) -> set[int]:
    return processes_of(sandbox) - {zygote.process.pid for zygote in sandbox.zygotes.values()}


async def test_no_descriptor_is_left_open(sandbox: Sandbox) -> None:
    await sandbox.run(job("pass"))
    before = len(os.listdir("/proc/self/fd"))
    for source in ("pass", "import os; os.write(1, bytes(2**20))", "1/0"):
        await sandbox.run(job(source))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_zygote_that_was_killed_is_replaced() -> None:
    async with Sandbox() as sandbox:
        await sandbox.run(job("pass"))
        first = sandbox.zygotes[""].process
        first.kill()
        await first.wait()
        assert (await sandbox.run(job("print(1)"))).stdout == b"1\n"
        assert sandbox.zygotes[""].process.pid != first.pid


async def test_a_job_sent_to_a_dying_zygote_is_our_fault() -> None:
    async with Sandbox() as sandbox:
        layers = (await sandbox.capabilities()).layers
        dying = sandbox.zygotes[""]
        dying.process.kill()
        await dying.process.wait()
        with pytest.raises(LocalError, match="gone"):
            await dying.run(job("pass"), layers)


async def test_what_cannot_be_prepared_is_our_fault() -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(LocalError, match="no_such_module"):
            await sandbox.run(SandboxJob("pass", b"", prepare="import no_such_module"))


async def test_prepared_libraries_are_there_and_only_there(sandbox: Sandbox) -> None:
    prepared = SandboxJob("print(msgpack.packb(1))", b"", prepare="import msgpack")
    bare = await sandbox.run(job("import msgpack"))
    assert bare.code == 1
    outcome = await sandbox.run(replace(prepared, source="import msgpack; " + prepared.source))
    assert outcome.stdout == b"b'\\x01'\n"


async def test_a_wall_that_does_not_stand_stops_the_job_and_is_no_grade(sandbox: Sandbox) -> None:
    found = await sandbox.capabilities()
    running = sandbox.zygotes[""]
    without_user = tuple(layer for layer in found.layers if layer != "own user")
    if os.geteuid() == 0:
        with pytest.raises(LocalError, match="as root"):
            await running.run(job("pass"), without_user)
    with pytest.raises(LocalError, match="could not run"):
        # A limit that the kernel refuses is one way to fail inside the sandbox.
        await running.run(replace(job("pass"), limits=replace(QUICK, open_files=-5)), found.layers)


async def test_root_without_a_user_for_the_job_runs_nothing() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
    async with Sandbox(require=frozenset(), without=frozenset({"own user"})) as sandbox:
        with pytest.raises(LocalError, match="as root"):
            await sandbox.run(job("pass"))


async def test_the_report_is_what_jobs_get(sandbox: Sandbox) -> None:
    async with Sandbox(require=frozenset()) as other:
        assert await other.capabilities() == await sandbox.capabilities()


async def test_a_guarantee_that_is_required_and_missing_refuses_every_job() -> None:
    async with Sandbox(without=frozenset({"seccomp"})) as sandbox:
        with pytest.raises(LocalError, match="syscalls"):
            await sandbox.run(job("pass"))


DAEMON = """
import asyncio, sys
from prime_protocol.tasks.family import SandboxJob, SandboxLimits
from prime_runtime.sandbox.sandbox import Sandbox
async def main():
    async with Sandbox() as sandbox:
        await sandbox.capabilities()
        print(sandbox.zygotes[""].home, flush=True)
        source = "import os, time; os.write(1, b'x'); os.fork(); time.sleep(60)"
        await sandbox.run(SandboxJob(source, b"", SandboxLimits(wall_ms=60_000)))
asyncio.run(main())
"""


async def test_a_killed_daemon_takes_its_jobs_along() -> None:
    environment = {"PYTHONPATH": str(ROOT / "protocol"), "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, env=environment, text=True) as daemon:
        assert daemon.stdout is not None
        home = daemon.stdout.readline().strip()
        stand_in = Sandbox()
        stand_in.zygotes[""] = sandbox_module.Zygote(Gone(), None, home)  # type: ignore[arg-type]
        while len(processes_of(stand_in)) < 4:
            await asyncio.sleep(0)
        daemon.send_signal(signal.SIGKILL)
    assert survivors(stand_in) == set()
    os.rmdir(home)


class Gone:
    """Stands for a zygote's process where only its environment matters."""

    pid = 0


CALLS = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number):
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(number), -1, 0, 0, 0) < 0 else 0
numbers = json.load(sys.stdin)
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
print(json.dumps([call(number) for number in numbers]))
"""


async def test_calls_that_nobody_has_reviewed_do_not_exist_inside(sandbox: Sandbox) -> None:
    """Also in a child of the job, and also where this machine's kernel has them."""
    reviewed, first_later = isolation.REFUSED_CALLS["memfd_secret"][0], isolation.NEWEST_REVIEWED_CALL + 1
    later = [first_later, first_later + 1, 467, 600, isolation.X32_BIT - 1]
    outcome = await sandbox.run(SandboxJob(CALLS, json.dumps([reviewed, *later]).encode()))
    assert outcome.stderr == b""
    expected = [errno.EPERM, *[errno.ENOSYS] * len(later)]
    assert [json.loads(line) for line in outcome.stdout.splitlines()] == [expected, expected]
