"""Probes of this machine: processor, memory, disk, NVIDIA GPUs and the listening port.

GPUs are read through nvidia-ml-py; others are left to torch. NVML is initialised anew for each call: a list made once
does not notice a GPU that was added or has failed.
"""

import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from prime_node.config import NodeConfig
from prime_node.doctor.facts import CpuFacts, DiskFacts, GpuFacts, GpuListing, MemoryFacts, PortFacts
from prime_node.policy.policy import GpuUsage

FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
WRITE_BYTES = 32 * 2**20
"""More than the disk's own cache of a few megabytes, yet written in a second or two."""
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
    """Of the machine, or of this process's container."""
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
    """Free space, and the speed of a synced write. The test file is removed."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        return DiskFacts(folder=str(folder), free_bytes=0, write_bytes_per_s=None, problem=_error_text(error))
    probe = place / f".prime-node-probe-{os.getpid()}"
    try:
        began = time.monotonic()
        _write_synced(probe, write_bytes)
        rate = int(write_bytes / max(time.monotonic() - began, 1e-3))
        return DiskFacts(folder=str(folder), free_bytes=free_bytes, write_bytes_per_s=rate, problem="")
    except OSError as error:
        return DiskFacts(folder=str(folder), free_bytes=free_bytes, write_bytes_per_s=None, problem=_error_text(error))
    finally:
        probe.unlink(missing_ok=True)


def _write_synced(path: Path, count: int) -> None:
    block = os.urandom(2**20)
    with path.open("wb") as file:
        while count > 0:
            count -= file.write(block[:count])
        file.flush()
        os.fsync(file.fileno())


def _error_text(error: OSError) -> str:
    return error.strerror or type(error).__name__


NOT_INSTALLED = "nvidia-ml-py is not installed"


class NoDriver(Exception):
    """NVML is not available; the text says what is missing."""


def load_nvml() -> Any | None:
    """The module, if it is installed."""
    try:
        return import_module("pynvml")
    except ImportError:
        return None


def list_gpus(nvml: Any | None) -> GpuListing:
    try:
        with _open_nvml(nvml):
            assert nvml is not None
            driver = _decode_text(nvml.nvmlSystemGetDriverVersion())
            return GpuListing(
                tuple(_describe_gpu(nvml, number) for number in range(nvml.nvmlDeviceGetCount())), driver, ""
            )
    except NoDriver as error:
        return GpuListing((), "", str(error))


def observe_gpus(nvml: Any | None, own_pids: Collection[int]) -> tuple[GpuUsage, ...]:
    """Every GPU that answers, with the share that other processes use."""
    try:
        with _open_nvml(nvml):
            assert nvml is not None
            found = [_observe_gpu(nvml, number, own_pids) for number in range(nvml.nvmlDeviceGetCount())]
            return tuple(gpu for gpu in found if gpu is not None)
    except NoDriver:
        return ()


@contextmanager
def _open_nvml(nvml: Any | None) -> Iterator[None]:
    if nvml is None:
        raise NoDriver(NOT_INSTALLED)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoDriver(f"no NVIDIA driver: {error}") from None
    try:
        yield
    except nvml.NVMLError as error:
        raise NoDriver(f"the NVIDIA driver does not answer: {error}") from None
    finally:
        nvml.nvmlShutdown()


def _describe_gpu(nvml: Any, number: int) -> GpuFacts:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return GpuFacts(
            number=number,
            uuid=_decode_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_decode_text(nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(memory.total),
            free_bytes=int(memory.free),
        )
    except nvml.NVMLError as error:
        return GpuFacts(number=number, uuid="", name="unknown", memory_bytes=0, free_bytes=0, problem=str(error))


def _observe_gpu(nvml: Any, number: int, own_pids: Collection[int]) -> GpuUsage | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid = _decode_text(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError:
        return None
    return GpuUsage(number=number, uuid=uuid, others_percent=_measure_others(nvml, handle, own_pids))


def _measure_others(nvml: Any, handle: Any, own_pids: Collection[int]) -> float | None:
    """Percent used by other processes; None if the driver cannot tell."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except nvml.NVMLError_NotFound:
        return 0.0  # NVML's answer if no process used the GPU
    except nvml.NVMLError:
        return None
    newest: dict[int, Any] = {}
    for sample in samples:
        if sample.pid not in own_pids and (sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp):
            newest[sample.pid] = sample
    return float(min(100, sum(sample.smUtil for sample in newest.values())))


def _decode_text(value: str | bytes) -> str:
    """Older drivers return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def probe_port(config: NodeConfig, *, is_running: bool) -> PortFacts:
    """`is_running`: our own node holds the port, so it is not tested."""
    listen = config.listen
    problem = "" if is_running or not config.announce else find_bind_problem(listen.host, listen.port)
    return PortFacts(
        announce=config.announce,
        listen=f"{listen.host} port {listen.port or 'any'}",
        problem=problem,
        is_ours=is_running,
    )


def find_bind_problem(host: str, port: int) -> str:
    """Why the port cannot be bound; empty if it can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with closing(socket.socket(*found[0][:3])) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""
