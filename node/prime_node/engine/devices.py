"""Which GPUs the engine's interpreter sees, and which engine it would take. It runs in a process of its own.

    python -m prime_node.engine.devices

It prints one line of JSON. The daemon itself never imports torch, and a driver that hangs must not stop it.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prime_node.engine.placement import GPUS_MAX
from prime_protocol.errors import LocalError

DRIVER_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""One of these exists where a GPU of NVIDIA, of AMD, or of a Windows host can be used."""
OUTPUT_BYTES_MAX = 2**16


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU as torch sees it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class EngineDevices:
    """What an engine could run on."""

    gpus: tuple[GpuMemory, ...] = ()
    """In the order in which the process sees them."""
    has_vllm: bool = False


def has_gpu_driver() -> bool:
    """Whether it is worth asking torch, which takes seconds to import."""
    return any(os.path.exists(path) for path in DRIVER_FILES)


def describe_devices() -> dict[str, Any]:
    import torch

    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    gpus = [[device.name, device.total_memory] for device in found]
    return {"gpus": gpus, "has_vllm": find_spec("vllm") is not None}


async def list_devices(python: str, environment: Mapping[str, str], folder: Path, *, timeout_ms: int) -> EngineDevices:
    """Ask the engine's interpreter. LocalError if it does not answer."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        process = await asyncio.create_subprocess_exec(
            python,
            *("-m", "prime_node.engine.devices"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            cwd=folder,
        )
    except OSError as error:
        raise LocalError(f"cannot start {python}: {error.strerror}") from None
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            output, _ = await process.communicate()
    except TimeoutError:
        raise LocalError(f"{python} did not list its GPUs in {timeout_ms} ms: run prime-node doctor") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return parse_devices(output)


def parse_devices(output: bytes) -> EngineDevices:
    try:
        found = json.loads(output[:OUTPUT_BYTES_MAX])
        gpus = tuple(GpuMemory(str(name), int(memory)) for name, memory in found["gpus"])
        return EngineDevices(gpus[:GPUS_MAX], bool(found["has_vllm"]))
    except (ValueError, TypeError, KeyError):
        raise LocalError("the engine's interpreter did not list its GPUs: run prime-node doctor") from None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe_devices()) + "\n")
