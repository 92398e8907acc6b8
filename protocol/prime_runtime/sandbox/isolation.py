"""The file tree that a job sees: the libraries, read-only, one small writable folder, and nothing else of the machine.

Called by pid 1 of the job, inside its own mount namespace, before privileges are dropped.

File access by an allow-list that the process puts on itself. Needs no privilege, only Linux 5.13 or later.

The second wall where the mount namespace works, the only one where it does not.

The system calls that no job may make, as a kernel filter. A refused call fails with EPERM; the job goes on.

The list is the same on every machine, with or without namespaces, so that a program behaves alike at every validator.

The walls around one job, in the order in which they go up, and what each of them keeps out.

`Probe` tries every wall once and reports those that stand. A job then names the walls it relies on, and fails to start
if one of them does not stand: never silently with less.
"""

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prime_runtime.sandbox import syscalls
from prime_runtime.sandbox.syscalls import MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY

SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
WORK_FOLDER = "/box"
"""Where a job lives and the only place it can write."""

MOUNT_POINT = "/tmp"
OLD_ROOT = "/.old"
WORK_FILES_MAX = 4096


def enter_new_root(visible: list[str], work_bytes: int) -> None:
    """Replace the whole tree. What is not listed here cannot be named any more, by any path."""
    # Symbolic links are followed while the old tree is still in place; an absolute one would point into the new tree.
    sources = [(path, os.path.realpath(path)) for path in visible]
    # The folders above what is shown can be passed through but not listed.
    os.umask(0o066)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", MOUNT_POINT, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=711,size=1m")
    os.mkdir(MOUNT_POINT + OLD_ROOT)
    syscalls.pivot_root(MOUNT_POINT, MOUNT_POINT + OLD_ROOT)
    os.chdir("/")
    for path, source in sources:
        expose_path(path, source)
    for path in DEVICES:
        bind_mount(path, path)
    os.mkdir(WORK_FOLDER)
    options = f"mode=777,size={work_bytes},nr_inodes={WORK_FILES_MAX}"
    syscalls.mount("tmpfs", WORK_FOLDER, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    os.umask(0o022)
    syscalls.unmount(OLD_ROOT)
    os.rmdir(OLD_ROOT)
    syscalls.set_mount_flags("/", MOUNT_ATTR_RDONLY, recursive=False)


def expose_path(path: str, source: str) -> None:
    """Make one path of the machine visible, read-only. A folder inside one that is shown already needs no mount."""
    if os.path.exists(OLD_ROOT + source) and not os.path.exists(path):
        bind_mount(path, source)
        flags = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
        syscalls.set_mount_flags(path, flags, recursive=True)


def bind_mount(path: str, source: str) -> None:
    """Mount `source` of the old tree at its new place, which is made first."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(OLD_ROOT + source):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    syscalls.mount(OLD_ROOT + source, path, None, syscalls.MS_BIND | syscalls.MS_REC)


CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG = 1
RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
FIRST_VERSION_RIGHTS = (1 << 13) - 1
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
TCP_BIND_AND_CONNECT = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class PathBeneath(ctypes.Structure):
    """struct landlock_path_beneath_attr, which the kernel packs."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def handled_rights(version: int) -> int:
    """Everything this kernel can refuse for files."""
    rights = FIRST_VERSION_RIGHTS
    rights |= REFER if version >= 2 else 0
    rights |= TRUNCATE if version >= 3 else 0
    rights |= IOCTL_DEVICE if version >= 5 else 0
    return rights


def restrict_files(*, readable: Iterable[str], writable: Iterable[str]) -> None:
    """From here on only these paths can be opened: the first to read, the second to read and write."""
    version = syscalls.syscall("landlock", CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG)
    handled = handled_rights(version)
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = (ctypes.c_uint64 * 3)(handled, TCP_BIND_AND_CONNECT, ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = syscalls.syscall("landlock", CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    try:
        for path in readable:
            allow_path(ruleset, path, READ_FILE | READ_DIR)
        for path in writable:
            allow_path(ruleset, path, handled & ~EXECUTE)
        syscalls.syscall("landlock", RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def allow_path(ruleset: int, path: str, rights: int) -> None:
    """One rule. A path that does not exist grants nothing."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= WRITE_FILE | READ_FILE
        rule = PathBeneath(rights, fd)
        syscalls.syscall("landlock", ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)


# Names with their numbers on x86_64 and aarch64; None where the call does not exist.
REFUSED_CALLS: dict[str, tuple[int | None, int | None]] = {
    # Talking to anything outside. socketpair stays, because an asyncio loop needs one.
    "socket": (41, 198),
    # Becoming another program, or reaching into another process.
    "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "process_madvise": (440, 440),
    # Changing what the process sees.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "personality": (135, 92),
    # Memory that the address-space limit does not see.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    # Large kernel surfaces that no task needs.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "vhangup": (153, 58), "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column in the table above, and the kernel's name for the architecture."""

CLONE = (56, 220)
PRLIMIT = (302, 261)
"""Allowed on oneself only: getrlimit is made of it."""

CLONE3 = 435
NAMESPACE_FLAGS = 0x7E020080
"""Every CLONE_NEW flag, time namespaces included."""

LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
NUMBER_OFFSET, ARCHITECTURE_OFFSET, FIRST_ARGUMENT_OFFSET = 0, 4, 16
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE = 0x00050000 | errno.EPERM
ABSENT = 0x00050000 | errno.ENOSYS
X32_BIT = 0x40000000
FILTER_MODE = 2


class SockFilterProgram(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def build_filter(machine: str) -> bytes:
    """The filter as BPF instructions, eight bytes each."""
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: no call table for {machine}")
    column, architecture = ARCHITECTURES[machine]
    steps: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_OFFSET),
        # The second x86 ABI has its own numbers for the same calls.
        (AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, REFUSE),
    ]
    for numbers in REFUSED_CALLS.values():
        number = numbers[column]
        if number is not None:
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    steps += [
        # clone3 hides its flags behind a pointer. Told that it is absent, libc falls back to clone.
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, ABSENT),
        (EQUAL, 0, 4, CLONE[column]),
        (LOAD, 0, 0, FIRST_ARGUMENT_OFFSET),
        (AND, 0, 0, NAMESPACE_FLAGS),
        (EQUAL, 5, 0, 0),
        (RETURN, 0, 0, REFUSE),
        (EQUAL, 0, 3, PRLIMIT[column]),
        (LOAD, 0, 0, FIRST_ARGUMENT_OFFSET),
        (EQUAL, 1, 0, 0),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def install_seccomp_filter() -> None:
    """Put the filter on this process and all its children, for good. Needs no_new_privs."""
    code = build_filter(syscalls.MACHINE)
    # The kernel wants a count and a pointer; ctypes aligns them as C does.
    program = SockFilterProgram(len(code) // 8, code)
    syscalls.prctl(syscalls.PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(program))


UID_BASE = 0x40000000
"""Each job of a root daemon runs under a user id of its own, this plus the keeper's pid: jobs cannot signal each other,
and the process limit, which the kernel counts per user, is theirs alone."""

NOBODY = 65534
STACK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """What a job may use, as the keeper reads it from the request."""

    visible: tuple[str, ...]
    work: str
    """The writable folder: made by the caller where there is no mount namespace, else WORK."""
    uid: int
    cpu_s: int
    memory_bytes: int
    """Address space of one process, with what the interpreter holds before the job starts."""
    file_bytes: int
    processes: int
    """With those that the kernel counts against the same user already."""
    open_files: int


class IsolationLayers:
    """Which walls to put up. While probing, one that does not stand is left out; else it stops the job."""

    def __init__(self, wanted: frozenset[str] | None) -> None:
        self.wanted = wanted
        self.applied: list[str] = []

    def apply(self, name: str, build: Callable[[], None]) -> None:
        if self.wanted is not None and name not in self.wanted:
            return
        try:
            build()
        except OSError:
            if self.wanted is not None:
                raise
            return
        self.applied.append(name)


def enter_user_namespace() -> None:
    """A user of one: our own id, under the name of nobody, with power over nothing but the new namespaces."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    write_proc_file("/proc/self/setgroups", "deny")
    write_proc_file("/proc/self/uid_map", f"{NOBODY} {uid} 1")
    write_proc_file("/proc/self/gid_map", f"{NOBODY} {gid} 1")


def write_proc_file(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def isolate_before_fork(walls: IsolationLayers) -> None:
    """The keeper's part: what only takes effect for its children."""
    if os.geteuid() != 0:
        walls.apply("user namespace", enter_user_namespace)
    walls.apply("pid namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWPID))


def isolate_init(walls: IsolationLayers, box: JobEnvironment) -> None:
    """The part of the job's first process, which keeps its privileges and runs nothing of the job's."""
    walls.apply("net namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWNET))
    walls.apply("ipc namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS))
    walls.apply("mount namespace", lambda: replace_root(box))


def replace_root(box: JobEnvironment) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    enter_new_root(list(box.visible), box.file_bytes)


def isolate_program(walls: IsolationLayers, box: JobEnvironment) -> None:
    """The last part, in the process that will run the job. Nothing after this line can undo it."""
    work = WORK_FOLDER if "mount namespace" in walls.applied else box.work
    os.chdir(work)
    if os.geteuid() == 0:
        walls.apply("own user", lambda: become_user(box.uid))
    # The kernel does not hold root to its process limit: a fork bomb would take the whole machine.
    if os.geteuid() == 0 and walls.wanted is not None:
        raise OSError(errno.EPERM, "a job would run as root")
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    devices = DEVICES
    walls.apply("landlock", lambda: restrict_files(readable=(*box.visible, *devices), writable=(".",)))
    syscalls.drop_capabilities()
    set_limits(box)
    walls.apply("seccomp", install_seccomp_filter)


def become_user(uid: int) -> None:
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


def set_limits(box: JobEnvironment) -> None:
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
