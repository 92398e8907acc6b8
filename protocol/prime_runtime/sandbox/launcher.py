"""The processes of a sandbox on the far side of the socket. Runs with the standard library alone.

    zygote -> supervisor (waits, enforces the time limit) -> init (pid 1 of the job) -> program (the code of the job)

The zygote is an interpreter that has imported the libraries of one kind of job: importing sympy or reasoning-gym takes
seconds, a fork takes milliseconds. It forks a supervisor per request and never reads a request itself, so that no job
inherits memory of another job.

The supervisor kills the job when the time is up or when the daemon closes the `alive` pipe, which a dead daemon does
too. When pid 1 ends, the kernel kills every process of its namespace. Without a pid namespace, orphans become children
of the supervisor, which kills them until none is left.
"""

import contextlib
import io
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import types
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from prime_runtime.sandbox import syscalls
from prime_runtime.sandbox.isolation import (
    SYSTEM_LIBRARIES,
    UID_BASE,
    IsolationLayers,
    JobEnvironment,
    isolate_before_fork,
    isolate_init,
    isolate_program,
)

FD_FLOOR = 64
RESULT_FD = 3
REAP_S = 5.0
NEVER_RAN = 125


class JobDescriptors(NamedTuple):
    """The descriptors of one request, in the order in which they are sent."""

    request: int
    stdin: int
    stdout: int
    stderr: int
    result: int
    status: int
    alive: int


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request of the daemon. A job without a source is a probe: it reports which layers work."""

    source: str | None
    wanted: frozenset[str] | None
    wall_ms: int
    environment: JobEnvironment


def read_request(fd: int, visible: tuple[str, ...]) -> JobRequest:
    with open(fd, "rb") as file:
        fields: dict[str, Any] = json.loads(file.read())
    wanted = None if fields["layers"] is None else frozenset(fields["layers"])
    # The kernel counts processes per user and user namespace. A shared user and namespace includes other processes.
    shared = os.geteuid() != 0 and "user namespace" not in (wanted or ())
    environment = JobEnvironment(
        visible=visible,
        work=fields["work"],
        uid=UID_BASE + os.getpid(),
        cpu_s=fields["cpu_s"],
        memory_bytes=fields["memory_bytes"] + get_held_bytes(),
        file_bytes=fields["file_bytes"],
        processes=fields["processes"] + (count_user_processes() if shared else 0),
        open_files=fields["open_files"],
    )
    return JobRequest(fields["source"], wanted, fields["wall_ms"], environment)


def get_held_bytes() -> int:
    """Current address space of this process: the interpreter and the preloaded libraries."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def count_user_processes() -> int:
    """Processes and threads that already count towards the limit."""
    uid, count = os.geteuid(), 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def supervise_job(fds: JobDescriptors, visible: tuple[str, ...]) -> NoReturn:
    """Run one job and report its end. Never returns to the loop of the zygote."""
    try:
        request = read_request(fds.request, visible)
        os.setsid()
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        layers = IsolationLayers(request.wanted)
        isolate_before_fork(layers)
        watched, held = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(held)
            run_init(request, layers, fds, watched)
        os.close(watched)
        write_status(fds.status, wait_for_job(pid, fds.alive, request.wall_ms))
    except RunJob:
        raise
    except BaseException as error:  # boundary: a failed supervisor is a LocalError of the daemon, whatever the cause
        write_status(fds.status, f"broken {error!r}")
    os._exit(0)


def write_status(status: int, line: str) -> None:
    """Send one line to the daemon, if it still runs."""
    with contextlib.suppress(OSError):
        os.write(status, line.replace("\n", " ").encode(errors="replace")[:2000] + b"\n")


def wait_for_job(pid: int, alive: int, wall_ms: int) -> str:
    """Wait until the job ends, the time is up or the daemon closes the pipe; then kill everything that is left."""
    poll = select.poll()
    process = os.pidfd_open(pid)
    poll.register(process, select.POLLIN)
    poll.register(alive, select.POLLHUP)
    ready = dict(poll.poll(wall_ms))
    end = "over" if process in ready else "dropped" if ready else "timeout"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return end if reap_all() else "broken processes of the job survived"


def reap_all() -> bool:
    """Kill and reap children, and the orphans that become children, until there are none."""
    stop = time.monotonic() + REAP_S
    while time.monotonic() < stop:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            kill_descendants(os.getpid())
    return False


def kill_descendants(root: int) -> None:
    """Kill all descendants of a process. Only needed if the job had no pid namespace of its own."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The name in brackets may contain anything; the fields after its last bracket are numbers.
            parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    for pid in parents:
        above = parents[pid]
        while above > 1 and above != root:
            above = parents.get(above, 0)
        if above == root:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def run_init(request: JobRequest, layers: IsolationLayers, fds: JobDescriptors, watched: int) -> NoReturn:
    """Pid 1 of the job: apply the outer layers, fork the program, report how it ended."""
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if select.select([watched], [], [], 0)[0]:
            os._exit(NEVER_RAN)  # the supervisor died before the line above took effect
        isolate_init(layers, request.environment)
        pid = os.fork()
        if pid == 0:
            run_job(request, layers, fds)
        while True:
            ended, status = os.wait()
            if ended == pid:
                break
        code = os.waitstatus_to_exitcode(status)
        write_status(fds.status, f"signal {-code}" if code < 0 else f"exit {code}")
    except RunJob:
        raise
    except BaseException as error:  # boundary: a job that cannot start is never at fault
        write_status(fds.status, f"broken {error!r}")
    os._exit(0)


def run_job(request: JobRequest, layers: IsolationLayers, fds: JobDescriptors) -> NoReturn:
    """The process of the program: apply the last layers, then run the code of the job."""
    try:
        for signum in (signal.SIGINT, signal.SIGXFSZ, signal.SIGPIPE):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_IGN)
        arrange_descriptors(fds)
        isolate_program(layers, request.environment)
    except BaseException as error:  # boundary: see run_init; the status pipe is still open here
        write_status(FD_FLOOR, f"broken {error!r}")
        os._exit(NEVER_RAN)
    os.close(FD_FLOOR)
    if request.source is None:
        os.write(RESULT_FD, json.dumps(layers.applied).encode())
        os._exit(0)
    raise RunJob(request.source)


def arrange_descriptors(fds: JobDescriptors) -> None:
    """Put descriptors 0 to 3 in place; keep the status pipe at a known number until the layers are applied."""
    kept = [os.dup(fd) for fd in (fds.stdin, fds.stdout, fds.stderr, fds.result, fds.status)]
    high = [os.dup2(fd, FD_FLOOR + 8 + place) for place, fd in enumerate(kept)]
    os.dup2(high[4], FD_FLOOR)
    for target, fd in enumerate(high[:4]):
        os.dup2(fd, target)
    os.closerange(4, FD_FLOOR)
    os.closerange(FD_FLOOR + 1, 1 << 20)


class RunJob(BaseException):
    """Unwinds the stack of the launcher, so that the job runs near its top and ends like any program."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source


def run_program(source: str) -> int:
    """Run the code as the main module of this interpreter; returns the exit code of a fresh interpreter."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = ["program.py"]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "replace")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "replace", write_through=True)
    try:
        exec(compile(source, "program.py", "exec"), main.__dict__)
    except SystemExit:
        raise
    except BaseException:  # boundary: a failure of the job is its exit code
        traceback.print_exc()
        return 1
    return 0


READY = b"ready"


def main() -> int:
    """The zygote: serve until the daemon closes the socket, which is descriptor 0."""
    setup: dict[str, Any] = json.loads(sys.argv[1])
    control = socket.socket(fileno=0)
    # The folder of our package was only needed to import this module.
    sys.path[:] = [path for path in sys.path if os.path.exists(path) and path != setup["package"]] + setup["path"]
    exec(compile(setup["prepare"], "prepare.py", "exec"), {"__name__": "prepare"})
    visible = (*SYSTEM_LIBRARIES, *sys.path, os.path.join(sys.base_prefix, "lib"))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(READY)
    try:
        serve_requests(control, visible)
        return 0
    except RunJob as job:
        source = job.source
    return run_program(source)


def serve_requests(control: socket.socket, visible: tuple[str, ...]) -> None:
    """Fork a supervisor per request. In its descendants this only ends by RunJob."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, len(JobDescriptors._fields))
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            supervise_job(JobDescriptors(*fds), visible)
        for fd in fds:
            os.close(fd)
