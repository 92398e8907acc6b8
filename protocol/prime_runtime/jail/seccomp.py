"""The system calls that no job may make, as a kernel filter. A refused call fails with EPERM; the job goes on.

The list is the same on every machine, with or without namespaces, so that a program behaves alike at every validator.
"""

import ctypes
import errno
import struct

from prime_runtime.jail import syscalls

# Names with their numbers on x86_64 and aarch64; None where the call does not exist.
REFUSED: dict[str, tuple[int | None, int | None]] = {
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
    for numbers in REFUSED.values():
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


def refuse_calls() -> None:
    """Put the filter on this process and all its children, for good. Needs no_new_privs."""
    code = build_filter(syscalls.MACHINE)
    # The kernel wants a count and a pointer; ctypes aligns them as C does.
    program = SockFilterProgram(len(code) // 8, code)
    syscalls.prctl(syscalls.PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(program))
