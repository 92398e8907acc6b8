"""Tries every device that the engine could use, each in a child process, with the engine's own interpreter."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from prime_node.doctor.facts import DeviceFacts, EngineSeen

CHECK_S = 120
"""A first import of torch from a cold disk takes half a minute; a hung driver takes for ever."""
WORDS_MAX = 400


async def examine_engine(python: str, environment: Mapping[str, str]) -> EngineSeen:
    """The CPU first, which also tells what GPUs there are; then each of those."""
    first = await _run(python, environment, "cpu")
    devices = [_facts("cpu", first)] if first.get("torch") else []
    for gpu in first.get("gpus", ()):
        devices.append(_facts(str(gpu), await _run(python, environment, str(gpu))))
    problem = "" if first.get("torch") else str(first.get("problem", ""))
    return EngineSeen(python, str(first.get("torch", "")), str(first.get("vllm", "")), tuple(devices), problem)


def _facts(device: str, found: dict[str, Any]) -> DeviceFacts:
    return DeviceFacts(
        device=device,
        name=str(found.get("name", "")),
        is_good=not found.get("problem"),
        took_ms=int(found.get("took_ms", 0)),
        problem=str(found.get("problem", "")),
        memory_bytes=int(found.get("memory_bytes", 0)),
        free_bytes=int(found.get("free_bytes", 0)),
    )


async def _run(python: str, environment: Mapping[str, str], device: str) -> dict[str, Any]:
    """What the child said, or why it said nothing."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(python, "-m", "prime_node.doctor.device_check", device),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
        )
    except OSError as error:
        return {"problem": f"cannot run {python}: {error.strerror}"}
    try:
        async with asyncio.timeout(CHECK_S):
            said, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"problem": f"no answer within {CHECK_S} s: the device or its driver hangs"}
    if process.returncode:
        words = complaint.decode(errors="replace").strip().splitlines()
        return {
            "problem": f"the check ended with {process.returncode}: {words[-1][:WORDS_MAX] if words else 'silently'}"
        }
    try:
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found
    except (ValueError, IndexError):
        return {"problem": "the check said nothing that can be read"}
