"""One job from request to last breath: the keeper outside the walls, the job's first process inside, and its program.

    zygote -> keeper (waits, holds the clock) -> init (pid 1 of the job) -> program (the job's code)

The keeper kills when the clock runs out or when the daemon lets go of the `alive` pipe, which a dead daemon does too.
When pid 1 goes, the kernel takes every process of its namespace along; where there is no such namespace, orphans
come to the keeper, which kills them until none is left.

The zygote: an interpreter with the libraries of one kind of job already loaded, which forks a keeper per request.

Importing sympy or reasoning-gym takes seconds, a fork milliseconds. The zygote itself never reads a request: what one
job brought is not in the memory that the next one inherits.
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

from prime_runtime.sandbox import isolation as walls
from prime_runtime.sandbox import syscalls
from prime_runtime.sandbox.isolation import SYSTEM_LIBRARIES, IsolationLayers, JobEnvironment

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
    """What the daemon asks for. A job without a source is a probe: it reports which walls stand."""

    source: str | None
    wanted: frozenset[str] | None
    wall_ms: int
    box: JobEnvironment


def read_request(fd: int, visible: tuple[str, ...]) -> JobRequest:
    with open(fd, "rb") as file:
        fields: dict[str, Any] = json.loads(file.read())
    wanted = None if fields["walls"] is None else frozenset(fields["walls"])
    # The kernel counts processes per user and user namespace. Only without either are there others in the count.
    shared = os.geteuid() != 0 and "user namespace" not in (wanted or ())
    box = JobEnvironment(
        visible=visible,
        work=fields["work"],
        uid=walls.UID_BASE + os.getpid(),
        cpu_s=fields["cpu_s"],
        memory_bytes=fields["memory_bytes"] + get_held_bytes(),
        file_bytes=fields["file_bytes"],
        processes=fields["processes"] + (count_user_processes() if shared else 0),
        open_files=fields["open_files"],
    )
    return JobRequest(fields["source"], wanted, fields["wall_ms"], box)


def get_held_bytes() -> int:
    """Address space this process has now: the interpreter and the preloaded libraries."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def count_user_processes() -> int:
    """Processes and threads that the kernel already counts against the limit."""
    uid, count = os.geteuid(), 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def supervise_job(pipes: JobDescriptors, visible: tuple[str, ...]) -> NoReturn:
    """Run one job and report its end. Never returns into the zygote's loop."""
    try:
        request = read_request(pipes.request, visible)
        os.setsid()
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        up = IsolationLayers(request.wanted)
        walls.isolate_before_fork(up)
        watched, held = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(held)
            run_init(request, up, pipes, watched)
        os.close(watched)
        write_status(pipes.status, wait_for_job(pid, pipes.alive, request.wall_ms))
    except RunJob:
        raise
    except BaseException as error:  # boundary: a keeper that failed is the daemon's LocalError, whatever the cause
        write_status(pipes.status, f"broken {error!r}")
    os._exit(0)


def write_status(status: int, line: str) -> None:
    """One line to the daemon. A daemon that is gone needs none."""
    with contextlib.suppress(OSError):
        os.write(status, line.replace("\n", " ").encode(errors="replace")[:2000] + b"\n")


def wait_for_job(pid: int, alive: int, wall_ms: int) -> str:
    """Until the job ends, the clock runs out or the daemon lets go. Nothing of the job is left afterwards."""
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
    """Kill and collect children, and the orphans that become children, until there are none."""
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
    """Everything below this process. Only needed where the job had no pid namespace of its own."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The name in brackets may hold anything; the fields after its last bracket are numbers.
            parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    for pid in parents:
        above = parents[pid]
        while above > 1 and above != root:
            above = parents.get(above, 0)
        if above == root:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def run_init(request: JobRequest, up: IsolationLayers, pipes: JobDescriptors, watched: int) -> NoReturn:
    """Pid 1 of the job: put up the outer walls, fork the program, report how it ended."""
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if select.select([watched], [], [], 0)[0]:
            os._exit(NEVER_RAN)  # the keeper died before the line above could bind us to it
        walls.isolate_init(up, request.box)
        pid = os.fork()
        if pid == 0:
            run_job(request, up, pipes)
        while True:
            ended, status = os.wait()
            if ended == pid:
                break
        code = os.waitstatus_to_exitcode(status)
        write_status(pipes.status, f"signal {-code}" if code < 0 else f"exit {code}")
    except RunJob:
        raise
    except BaseException as error:  # boundary: the job could not be started, which is never the job's fault
        write_status(pipes.status, f"broken {error!r}")
    os._exit(0)


def run_job(request: JobRequest, up: IsolationLayers, pipes: JobDescriptors) -> NoReturn:
    """The program's process: the last walls, then the job's code, which may do what it likes inside."""
    try:
        for signum in (signal.SIGINT, signal.SIGXFSZ, signal.SIGPIPE):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_IGN)
        arrange_descriptors(pipes)
        walls.isolate_program(up, request.box)
    except BaseException as error:  # boundary: see begin; the status pipe is still ours here
        write_status(FD_FLOOR, f"broken {error!r}")
        os._exit(NEVER_RAN)
    os.close(FD_FLOOR)
    if request.source is None:
        os.write(RESULT_FD, json.dumps(up.applied).encode())
        os._exit(0)
    raise RunJob(request.source)


def arrange_descriptors(pipes: JobDescriptors) -> None:
    """Descriptors 0 to 3 as the job expects them, the status pipe on a known number until the walls stand."""
    kept = [os.dup(fd) for fd in (pipes.stdin, pipes.stdout, pipes.stderr, pipes.result, pipes.status)]
    high = [os.dup2(fd, FD_FLOOR + 8 + place) for place, fd in enumerate(kept)]
    os.dup2(high[4], FD_FLOOR)
    for target, fd in enumerate(high[:4]):
        os.dup2(fd, target)
    os.closerange(4, FD_FLOOR)
    os.closerange(FD_FLOOR + 1, 1 << 20)


class RunJob(BaseException):
    """Unwinds the launcher's stack, so that the job's code runs with little above it and ends as any program does."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source


def run_program(source: str) -> int:
    """The job's code as the main module of this interpreter; the exit code a fresh interpreter would give."""
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
    except BaseException:  # boundary: the job's own failure is its exit code
        traceback.print_exc()
        return 1
    return 0


READY = b"ready"


def main() -> int:
    """Serve until the daemon closes the socket, which is descriptor 0."""
    setup: dict[str, Any] = json.loads(sys.argv[1])
    control = socket.socket(fileno=0)
    # The package's own folder was only needed to get here.
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
    """A keeper per request. In the keeper's descendants this only ever ends by a Job."""
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
