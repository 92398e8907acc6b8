"""One multiplication on one device, in a process of its own: a crash or a hang here affects nothing else.

    python -m prime_node.doctor.device_check cpu
    python -m prime_node.doctor.device_check cuda:1

It may run in another interpreter than the node's, so it imports nothing but torch. It prints one line of JSON.
"""

import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

SIZE = 512


def check_device(device: str) -> dict[str, Any]:
    """Installed versions, the GPUs that torch sees, and the result of a multiplication on this device."""
    found: dict[str, Any] = {"torch": "", "vllm": _version("vllm"), "gpus": [], "problem": ""}
    try:
        import torch
    except Exception as error:  # boundary: a broken installation of torch can raise anything
        return {**found, "problem": f"torch cannot be imported: {type(error).__name__}: {error}"}
    found["torch"] = torch.__version__
    try:
        found["gpus"] = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        found.update(_multiply(torch, device))
    except Exception as error:  # boundary: drivers can raise anything, and the error is the result here
        found["problem"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
    return found


def _multiply(torch: Any, device: str) -> dict[str, Any]:
    """Ones times ones: every element of the product is SIZE, exactly, in any precision."""
    began = time.monotonic()
    for dtype in (torch.float32, torch.bfloat16):
        ones = torch.ones((SIZE, SIZE), dtype=dtype, device=device)
        product = ones @ ones
        if not bool((product.float().cpu() == SIZE).all()):
            return {"problem": f"a product in {dtype} came out wrong"}
    capability = torch.backends.cpu.get_cpu_capability()
    facts: dict[str, Any] = {"name": f"cpu {capability}", "took_ms": int(1000 * (time.monotonic() - began))}
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(device)
        facts.update(name=torch.cuda.get_device_name(device), free_bytes=free, memory_bytes=total)
    return facts


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check_device(sys.argv[1])) + "\n")
