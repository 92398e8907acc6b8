"""File access by an allow-list that the process puts on itself. Needs no privilege, only Linux 5.13 or later.

The second wall where the mount namespace works, the only one where it does not.
"""

import ctypes
import os
from collections.abc import Iterable

from prime_runtime.jail import syscalls

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
            allow(ruleset, path, READ_FILE | READ_DIR)
        for path in writable:
            allow(ruleset, path, handled & ~EXECUTE)
        syscalls.syscall("landlock", RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
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
