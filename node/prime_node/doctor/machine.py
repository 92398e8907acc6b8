"""Looks at the processor, the memory and the disk of this machine."""

import os
import shutil
import time
from pathlib import Path

from prime_node.doctor.facts import CpuFacts, DiskFacts, MemoryFacts

FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
WRITE_BYTES = 32 * 2**20
"""Enough to see past the disk's own cache of a few megabytes, little enough to be done in a second or two."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def read_cpu(info: Path = Path("/proc/cpuinfo")) -> CpuFacts:
    fields = _read_fields(info)
    flags = fields.get("flags", fields.get("features", "")).split()
    return CpuFacts(
        model=fields.get("model name", "unknown"),
        cores=len(os.sched_getaffinity(0)),
        features=tuple(name for name in FEATURES if name in flags),
    )


def read_memory(info: Path = Path("/proc/meminfo"), limit: Path = CGROUP_LIMIT) -> MemoryFacts:
    """Of the machine, or of the container that this process lives in."""
    fields = _read_fields(info)
    total, free = (int(fields.get(name, "0").split()[0]) * 1024 for name in ("memtotal", "memavailable"))
    try:
        cap = int(limit.read_text())
    except (OSError, ValueError):
        cap = total
    return MemoryFacts(total_bytes=min(total, cap), free_bytes=min(free, cap))


def _read_fields(path: Path) -> dict[str, str]:
    """The first value of each `name : value`."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip().lower(), value.strip())
    return found


def probe_disk(folder: Path, write_bytes: int = WRITE_BYTES) -> DiskFacts:
    """Free room, and how fast bytes get to the disk for good. Leaves nothing behind."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        return DiskFacts(folder=str(folder), free_bytes=0, write_bytes_per_s=None, problem=_text(error))
    probe = place / f".prime-node-probe-{os.getpid()}"
    try:
        began = time.monotonic()
        _write(probe, write_bytes)
        rate = int(write_bytes / max(time.monotonic() - began, 1e-3))
        return DiskFacts(folder=str(folder), free_bytes=free_bytes, write_bytes_per_s=rate, problem="")
    except OSError as error:
        return DiskFacts(folder=str(folder), free_bytes=free_bytes, write_bytes_per_s=None, problem=_text(error))
    finally:
        probe.unlink(missing_ok=True)


def _write(path: Path, count: int) -> None:
    block = os.urandom(2**20)
    with path.open("wb") as file:
        while count > 0:
            count -= file.write(block[:count])
        file.flush()
        os.fsync(file.fileno())


def _text(error: OSError) -> str:
    return error.strerror or type(error).__name__
