"""System calls that Python 3.11 does not provide, as functions that raise OSError. isolation.py calls them."""

import ctypes
import os
import platform

MACHINE = platform.machine()
LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

MS_BIND = 0x1000
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_SETATTR = 442
"""The same number on every architecture, like all calls added since 2019."""

PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION_3 = 0x20080522


def checked(result: int, what: str) -> int:
    """The result of a call, or its OSError."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int | None, *arguments: object) -> int:
    """A call by number; None: the number is not known for this architecture."""
    if number is None:
        raise OSError(38, f"{what}: no number for {MACHINE}")
    return checked(LIBC.syscall(ctypes.c_long(number), *arguments), what)


def prctl(option: int, *values: object) -> None:
    padded = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in (*values, 0, 0, 0, 0)[:4]]
    checked(LIBC.prctl(option, *padded), f"prctl {option}")


def unshare(flags: int) -> None:
    checked(LIBC.unshare(flags), f"unshare {flags:#x}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, options)]
    call = LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    checked(call, f"mount {target}")


def set_mount_flags(target: str, flags: int, *, recursive: bool) -> None:
    """Add flags to a mount, and with `recursive` to all mounts below it."""
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    depth = AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    syscall("mount_setattr", MOUNT_SETATTR, AT_FDCWD, target.encode(), depth, ctypes.byref(attributes), size)


def pivot_root(new_root: str, put_old: str) -> None:
    syscall("pivot_root", PIVOT_ROOT.get(MACHINE), new_root.encode(), put_old.encode())


def unmount(target: str) -> None:
    checked(LIBC.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def drop_capabilities() -> None:
    """Drop all capabilities of this process."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    empty = (ctypes.c_uint32 * 6)()
    syscall("capset", CAPSET.get(MACHINE), ctypes.byref(header), ctypes.byref(empty))
