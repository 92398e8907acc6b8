"""NVIDIA GPUs as their driver lists them, and what other programs do on them. Needs nvidia-ml-py; others are for torch.

The library is asked anew each time: a list that was made once does not learn of a GPU that came or fell off the bus.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from prime_node.doctor.facts import GpuFacts, GpuListing
from prime_node.policy import GpuSeen

NOT_INSTALLED = "nvidia-ml-py is not installed"


class NoDriver(Exception):
    """There is nothing to ask; the text says what is missing."""


def load_nvml() -> Any | None:
    """The module, where it is installed."""
    try:
        return import_module("pynvml")
    except ImportError:
        return None


def list_gpus(nvml: Any | None) -> GpuListing:
    try:
        with _opened(nvml):
            assert nvml is not None
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            return GpuListing(tuple(_describe(nvml, number) for number in range(nvml.nvmlDeviceGetCount())), driver, "")
    except NoDriver as error:
        return GpuListing((), "", str(error))


def watch_gpus(nvml: Any | None, own_pids: Collection[int]) -> tuple[GpuSeen, ...]:
    """Every GPU that answers, with the share of it that others use."""
    try:
        with _opened(nvml):
            assert nvml is not None
            found = [_observe(nvml, number, own_pids) for number in range(nvml.nvmlDeviceGetCount())]
            return tuple(gpu for gpu in found if gpu is not None)
    except NoDriver:
        return ()


@contextmanager
def _opened(nvml: Any | None) -> Iterator[None]:
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


def _describe(nvml: Any, number: int) -> GpuFacts:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return GpuFacts(
            number=number,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(memory.total),
            free_bytes=int(memory.free),
        )
    except nvml.NVMLError as error:
        return GpuFacts(number=number, uuid="", name="unknown", memory_bytes=0, free_bytes=0, problem=str(error))


def _observe(nvml: Any, number: int, own_pids: Collection[int]) -> GpuSeen | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError:
        return None
    return GpuSeen(number=number, uuid=uuid, others_percent=_measure_others(nvml, handle, own_pids))


def _measure_others(nvml: Any, handle: Any, own_pids: Collection[int]) -> float | None:
    """Percent by processes that are not ours; None where the driver cannot tell."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except nvml.NVMLError_NotFound:
        return 0.0  # so it answers where no process used the GPU
    except nvml.NVMLError:
        return None
    newest: dict[int, Any] = {}
    for sample in samples:
        if sample.pid not in own_pids and (sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp):
            newest[sample.pid] = sample
    return float(min(100, sum(sample.smUtil for sample in newest.values())))


def _text(value: str | bytes) -> str:
    """Older drivers answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
