"""Chooses device and precision, and tells how much memory is free and which errors mean out of memory."""

import re
from pathlib import Path

import torch

from prime_protocol.errors import LocalError

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
NVIDIA_VERSION = Path("/proc/driver/nvidia/version")
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags for bfloat16 products on x86 and ARM. Without one of them a product takes 12 to 20 times as long."""
EMULATED_BF16 = "bfloat16-imitated"
"""bfloat16 at any cost: shows a machine without those instructions the rounding noise of one that has them."""
MEMORY_SHARE = 0.5
"""Share of the free memory for the KV cache. The rest is for activations and other programs."""


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU, else the CPU; `cuda` is the first GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    kind, colon, number = name.partition(":")
    if kind != "cuda" or number.isdecimal() != bool(colon):
        raise LocalError(f"device is {name!r}; use auto, cpu, cuda, or cuda:1 with the number of a GPU")
    number = number or "0"
    if int(number) >= torch.cuda.device_count():
        raise LocalError(f"there is no {name}: torch sees {torch.cuda.device_count()} GPUs; run prime-node doctor")
    return torch.device("cuda", int(number))


def choose_precision(wanted: str, device: torch.device) -> torch.dtype:
    """The requested precision, but float32 where the device would have to emulate bfloat16."""
    if wanted == EMULATED_BF16:
        return torch.bfloat16
    if wanted not in ("auto", "float32", "bfloat16"):
        raise LocalError(f"precision is {wanted!r}; use auto, float32 or bfloat16")
    if wanted == "float32" or not has_bf16(device):
        return torch.float32
    return torch.bfloat16


def has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return CPUINFO.exists() and names_bf16(CPUINFO.read_text())


def names_bf16(cpuinfo: str) -> bool:
    """Whether the processor lists one of BF16_FLAGS."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    flags = {flag for key, _, value in lines if key.strip() in ("flags", "Features") for flag in value.split()}
    return bool(flags & BF16_FLAGS)


def describe_device(device: torch.device) -> tuple[str, str]:
    """Model and driver. Of a CPU, the instructions that torch uses, and the processor: what it computes depends on
    the first only.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device), describe_driver()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"cpu {capability}", find_processor(CPUINFO.read_text()) if CPUINFO.exists() else ""


def describe_driver() -> str:
    """Version of CUDA or ROCm, and of NVIDIA's kernel module where it says one."""
    library = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    module = find_module_version(NVIDIA_VERSION.read_text()) if NVIDIA_VERSION.exists() else ""
    return f"{library}, driver {module}" if module else library


def find_module_version(text: str) -> str:
    found = re.search(r"Module[^0-9]*([0-9]+(?:\.[0-9]+)+)", text)
    return found[1] if found else ""


def find_processor(cpuinfo: str) -> str:
    found = re.search(r"^model name\s*:\s*([ -~]{1,100})", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else ""


def get_cache_bytes(device: torch.device) -> int | None:
    """Memory for the KV cache now; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * MEMORY_SHARE)
    if not MEMINFO.exists():
        return None
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(int(line.split()[1]) * 1024 * MEMORY_SHARE)
    return None


def is_out_of_memory(error: Exception) -> bool:
    """torch reports it in three ways: on a GPU, from Python, and from its CPU allocator."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
