"""The walls around one job, in the order in which they go up, and what each of them keeps out.

`Probe` tries every wall once and reports those that stand. A job then names the walls it relies on, and fails to start
if one of them does not stand: never silently with less.
"""

import errno
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass

from prime_runtime.jail import filesystem, landlock, seccomp, syscalls

UID_BASE = 0x40000000
"""Each job of a root daemon runs under a user id of its own, this plus the keeper's pid: jobs cannot signal each other,
and the process limit, which the kernel counts per user, is theirs alone."""

NOBODY = 65534
STACK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Box:
    """What a job may use, as the keeper reads it from the request."""

    visible: tuple[str, ...]
    work: str
    """The writable folder: made by the caller where there is no mount namespace, else filesystem.WORK."""
    uid: int
    cpu_s: int
    memory_bytes: int
    """Address space of one process, with what the interpreter holds before the job starts."""
    file_bytes: int
    processes: int
    """With those that the kernel counts against the same user already."""
    open_files: int


class Walls:
    """Which walls to put up. While probing, one that does not stand is left out; else it stops the job."""

    def __init__(self, wanted: frozenset[str] | None) -> None:
        self.wanted = wanted
        self.standing: list[str] = []

    def put_up(self, name: str, build: Callable[[], None]) -> None:
        if self.wanted is not None and name not in self.wanted:
            return
        try:
            build()
        except OSError:
            if self.wanted is not None:
                raise
            return
        self.standing.append(name)


def enter_user_namespace() -> None:
    """A user of one: our own id, under the name of nobody, with power over nothing but the new namespaces."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
    write("/proc/self/gid_map", f"{NOBODY} {gid} 1")


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def before_fork(walls: Walls) -> None:
    """The keeper's part: what only takes effect for its children."""
    if os.geteuid() != 0:
        walls.put_up("user namespace", enter_user_namespace)
    walls.put_up("pid namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWPID))


def around_init(walls: Walls, box: Box) -> None:
    """The part of the job's first process, which keeps its privileges and runs nothing of the job's."""
    walls.put_up("net namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWNET))
    walls.put_up("ipc namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS))
    walls.put_up("mount namespace", lambda: replace_tree(box))


def replace_tree(box: Box) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    filesystem.enter_new_root(list(box.visible), box.file_bytes)


def around_program(walls: Walls, box: Box) -> None:
    """The last part, in the process that will run the job. Nothing after this line can undo it."""
    work = filesystem.WORK if "mount namespace" in walls.standing else box.work
    os.chdir(work)
    if os.geteuid() == 0:
        walls.put_up("own user", lambda: become(box.uid))
    # The kernel does not hold root to its process limit: a fork bomb would take the whole machine.
    if os.geteuid() == 0 and walls.wanted is not None:
        raise OSError(errno.EPERM, "a job would run as root")
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    devices = filesystem.DEVICES
    walls.put_up("landlock", lambda: landlock.restrict_files(readable=(*box.visible, *devices), writable=(".",)))
    syscalls.drop_capabilities()
    set_limits(box)
    walls.put_up("seccomp", seccomp.refuse_calls)


def become(uid: int) -> None:
    """Give up root for an id that owns only the folder we are in. Inside a container with few ids, for nobody."""
    os.setgroups([])
    for candidate in (uid, NOBODY):
        try:
            os.chown(".", candidate, candidate)
            os.setresgid(candidate, candidate, candidate)
            os.setresuid(candidate, candidate, candidate)
            return
        except OSError:
            continue
    raise OSError(1, "setresuid: this root may not become anyone else")


def set_limits(box: Box) -> None:
    """Kernel limits, each per process."""
    hard = {
        resource.RLIMIT_AS: box.memory_bytes,
        resource.RLIMIT_FSIZE: box.file_bytes,
        resource.RLIMIT_NPROC: box.processes,
        resource.RLIMIT_NOFILE: box.open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in hard.items():
        _, ceiling = resource.getrlimit(limit)
        value = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(limit, (value, value))
    # A second between the two: SIGXCPU tells the reader that it was the clock, SIGKILL ends those who ignore it.
    resource.setrlimit(resource.RLIMIT_CPU, (box.cpu_s, box.cpu_s + 1))
