"""Room for files of weights: taken before the first byte comes, so that a full disk is no surprise half-way.

A disk gives blocks for the asking. In memory (tmpfs) to have a page is to fill it with zeros, and gigabytes of that
would keep a node waiting: there it is only looked whether there is room, and it is taken as it is written.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

from prime_protocol.errors import LocalError


def is_in_memory(folder: Path) -> bool:
    """The folder is on a file system that has no disk behind it."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    # Fields of a line: id, parent, device, ..., a dash, type, source, options.
    return any(line.split()[2] == wanted and " - tmpfs " in line for line in lines)


def open_plain(path: Path, mode: str) -> BinaryIO:
    """The file itself, and OSError where a symbolic link is in its place.

    A folder of weights may be shared with others on the machine. What one of them links to must be neither sent to
    strangers nor written over.
    """
    return cast(BinaryIO, open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o644)))


def allocate(path: Path, size: int) -> None:
    """A file of this size, of zeros. LocalError: there is no room for it."""
    try:
        with open_plain(path, "wb") as file:
            if not is_in_memory(path.parent):
                os.posix_fallocate(file.fileno(), 0, size)
            elif count_free_bytes(path.parent) >= size:
                os.truncate(file.fileno(), size)
            else:
                raise OSError("not enough memory is free")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LocalError(
            f"no room for {size} bytes of weights in {path.parent}: {error}; make room there, or choose another folder"
        ) from None


def count_bytes(folder: Path) -> int:
    """What the files below a folder take at full size; one of two names counts once."""
    sizes: dict[int, int] = {}
    # Files and folders may be removed meanwhile: os.walk passes over a folder that is not there any more.
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(place, name))
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def count_free_bytes(folder: Path) -> int:
    """What may be written there; in memory no more than the machine has left."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    return min(free, read_available_bytes()) if is_in_memory(folder) else free


def read_available_bytes() -> int:
    """Memory that programs can still have, as the kernel guesses."""
    text = Path("/proc/meminfo").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable:"))
