"""The isolation layers around a job: file tree, namespaces, Landlock, seccomp, user id, resource limits.

Runs in the child with the standard library alone. A probe applies every layer once and reports those that work on this
machine. A job names the layers it relies on, and does not start if one of them fails: it never runs with less.

- A new file tree in a mount namespace shows the libraries, read-only, and one small writable folder.
- Landlock (Linux 5.13, no privilege) restricts file access by an allow-list: the second layer where the mount namespace
  works, the only one where it does not.
- seccomp refuses dangerous system calls with EPERM. It answers ENOSYS to calls that are newer than its list, as a
  kernel without them does. The list is the same on every machine, with or without namespaces, so that a program behaves
  alike at every validator.
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
"""The working folder of a job, and the only place where it can write."""

MOUNT_POINT = "/tmp"
OLD_ROOT = "/.old"
WORK_FILES_MAX = 4096


def enter_new_root(visible: list[str], work_bytes: int) -> None:
    """Replace the whole tree, as pid 1 of the job before it drops privileges. Nothing else has a path any more."""
    # Resolve symbolic links while the old tree is in place: later an absolute link would point into the new tree.
    sources = [(path, os.path.realpath(path)) for path in visible]
    # The parent folders of exposed paths can be traversed but not listed.
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
    """Expose one path of the machine, read-only. A folder inside an exposed folder needs no mount."""
    if os.path.exists(OLD_ROOT + source) and not os.path.exists(path):
        bind_mount(path, source)
        flags = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
        syscalls.set_mount_flags(path, flags, recursive=True)


def bind_mount(path: str, source: str) -> None:
    """Create the path in the new tree and mount `source` of the old tree there."""
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
    """struct landlock_path_beneath_attr, packed in the kernel."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def handled_rights(version: int) -> int:
    """All file rights that this version of Landlock can refuse."""
    rights = FIRST_VERSION_RIGHTS
    rights |= REFER if version >= 2 else 0
    rights |= TRUNCATE if version >= 3 else 0
    rights |= IOCTL_DEVICE if version >= 5 else 0
    return rights


def restrict_files(*, readable: Iterable[str], writable: Iterable[str]) -> None:
    """From now on only these paths can be opened."""
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
    """Add a rule. A path that does not exist grants nothing."""
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
    # Communication with the outside. socketpair is allowed: an asyncio loop needs one.
    "socket": (41, 198),
    # Executing another program, or accessing another process.
    "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    # Changing the view of the process: namespaces and mounts.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "personality": (135, 92),
    # Memory outside the address-space limit.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    # Large kernel attack surfaces that no task needs.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "vhangup": (153, 58), "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column in the table above, and the AUDIT_ARCH constant."""

CLONE = (56, 220)
PRLIMIT = (302, 261)
"""Allowed on the calling process only: libc implements getrlimit with it."""

NEWEST_REVIEWED_CALL = 450
"""The newest call that the table above was compared with: set_mempolicy_home_node, of Linux 5.17. A later call may do
what the table refuses, as open_tree_attr (467) does, so none passes before it was reviewed. Python and libc need none:
they fall back. Calls since 424 have the same number on x86_64 and aarch64."""

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
    """The filter as BPF instructions of eight bytes each."""
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: no call table for {machine}")
    column, architecture = ARCHITECTURES[machine]
    steps: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_OFFSET),
        # The x32 ABI has its own numbers for the same calls.
        (AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, REFUSE),
        (AT_LEAST, 0, 1, NEWEST_REVIEWED_CALL + 1),
        (RETURN, 0, 0, ABSENT),
    ]
    for numbers in REFUSED_CALLS.values():
        number = numbers[column]
        if number is not None:
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    steps += [
        # clone3 passes its flags by pointer, which a filter cannot read. With ENOSYS libc falls back to clone.
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
    """Install the filter for this process and its children. It cannot be removed. Needs no_new_privs."""
    code = build_filter(syscalls.MACHINE)
    program = SockFilterProgram(len(code) // 8, code)
    syscalls.prctl(syscalls.PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(program))


UID_BASE = 0x40000000
"""Under a root daemon each job has its own user id, this plus the pid of its supervisor: jobs cannot signal each other,
and the kernel counts the process limit per user."""

NOBODY = 65534
STACK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """What a job may see and use."""

    visible: tuple[str, ...]
    work: str
    """The writable folder: WORK_FOLDER in a mount namespace, else a folder that the caller created."""
    uid: int
    cpu_s: int
    memory_bytes: int
    """Address space of one process, including what the interpreter holds before the job starts."""
    file_bytes: int
    processes: int
    """Including those that the kernel already counts for the same user."""
    open_files: int


class IsolationLayers:
    """The layers to apply. A probe (`wanted` is None) skips a layer that fails; a job does not start without it."""

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
    """Map our own id to nobody. The process has privileges only over its new namespaces."""
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


def isolate_before_fork(layers: IsolationLayers) -> None:
    """In the supervisor: what takes effect only for its children."""
    if os.geteuid() != 0:
        layers.apply("user namespace", enter_user_namespace)
    layers.apply("pid namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWPID))


def isolate_init(layers: IsolationLayers, environment: JobEnvironment) -> None:
    """In pid 1 of the job, which keeps its privileges and runs no code of the job."""
    layers.apply("net namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWNET))
    layers.apply("ipc namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS))
    layers.apply("mount namespace", lambda: replace_root(environment))


def replace_root(environment: JobEnvironment) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    enter_new_root(list(environment.visible), environment.file_bytes)


def isolate_program(layers: IsolationLayers, environment: JobEnvironment) -> None:
    """In the process that runs the job. Nothing afterwards can undo it."""
    work = WORK_FOLDER if "mount namespace" in layers.applied else environment.work
    os.chdir(work)
    if os.geteuid() == 0:
        layers.apply("own user", lambda: become_user(environment.uid))
    # The kernel does not apply the process limit to root: a fork bomb would take down the machine.
    if os.geteuid() == 0 and layers.wanted is not None:
        raise OSError(errno.EPERM, "a job would run as root")
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    devices = DEVICES
    layers.apply("landlock", lambda: restrict_files(readable=(*environment.visible, *devices), writable=(".",)))
    syscalls.drop_capabilities()
    set_limits(environment)
    layers.apply("seccomp", install_seccomp_filter)


def become_user(uid: int) -> None:
    """Switch from root to an id that owns only the current folder; to nobody in a container with few ids."""
    os.setgroups([])
    for candidate in (uid, NOBODY):
        try:
            os.chown(".", candidate, candidate)
            os.setresgid(candidate, candidate, candidate)
            os.setresuid(candidate, candidate, candidate)
            return
        except OSError:
            continue
    raise OSError(1, "setresuid: root may not switch to another user here")


def set_limits(environment: JobEnvironment) -> None:
    """Kernel limits; all but the number of processes are per process."""
    hard = {
        resource.RLIMIT_AS: environment.memory_bytes,
        resource.RLIMIT_FSIZE: environment.file_bytes,
        resource.RLIMIT_NPROC: environment.processes,
        resource.RLIMIT_NOFILE: environment.open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in hard.items():
        _, ceiling = resource.getrlimit(limit)
        value = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(limit, (value, value))
    # SIGXCPU at the soft limit shows the cause; SIGKILL one second later ends a job that ignores it.
    resource.setrlimit(resource.RLIMIT_CPU, (environment.cpu_s, environment.cpu_s + 1))
