"""The file tree that a job sees: the libraries, read-only, one small writable folder, and nothing else of the machine.

Called by pid 1 of the job, inside its own mount namespace, before privileges are dropped.
"""

import os

from prime_runtime.jail import syscalls
from prime_runtime.jail.syscalls import MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY

SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
WORK = "/box"
"""Where a job lives and the only place it can write."""

MOUNT_POINT = "/tmp"
OLD = "/.old"
FILES_MAX = 4096


def enter_new_root(visible: list[str], work_bytes: int) -> None:
    """Replace the whole tree. What is not listed here cannot be named any more, by any path."""
    # Symbolic links are followed while the old tree is still in place; an absolute one would point into the new tree.
    sources = [(path, os.path.realpath(path)) for path in visible]
    # The folders above what is shown can be passed through but not listed.
    os.umask(0o066)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", MOUNT_POINT, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=711,size=1m")
    os.mkdir(MOUNT_POINT + OLD)
    syscalls.pivot_root(MOUNT_POINT, MOUNT_POINT + OLD)
    os.chdir("/")
    for path, source in sources:
        show(path, source)
    for path in DEVICES:
        bind(path, path)
    os.mkdir(WORK)
    options = f"mode=777,size={work_bytes},nr_inodes={FILES_MAX}"
    syscalls.mount("tmpfs", WORK, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    os.umask(0o022)
    syscalls.unmount(OLD)
    os.rmdir(OLD)
    syscalls.set_mount_flags("/", MOUNT_ATTR_RDONLY, recursive=False)


def show(path: str, source: str) -> None:
    """Make one path of the machine visible, read-only. A folder inside one that is shown already needs no mount."""
    if os.path.exists(OLD + source) and not os.path.exists(path):
        bind(path, source)
        flags = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
        syscalls.set_mount_flags(path, flags, recursive=True)


def bind(path: str, source: str) -> None:
    """Mount `source` of the old tree at its new place, which is made first."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(OLD + source):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    syscalls.mount(OLD + source, path, None, syscalls.MS_BIND | syscalls.MS_REC)
