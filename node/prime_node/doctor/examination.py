"""The whole examination: every probe, side by side where they do not disturb each other."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from prime_node.config import NodeConfig, NodeRole
from prime_node.doctor.coordinator_line import examine_line
from prime_node.doctor.engine_devices import examine_engine
from prime_node.doctor.facts import EngineSeen, Examined, GpuListing, LineFacts, SourceFacts
from prime_node.doctor.gpus import list_gpus, load_nvml
from prime_node.doctor.machine import probe_disk, read_cpu, read_memory
from prime_node.doctor.ports import examine_port
from prime_node.doctor.sources import examine_sources
from prime_node.engine.process import environment_of
from prime_node.joining import complete, read_greeting
from prime_protocol.errors import LocalError, RemoteError
from prime_runtime.clock import Clock
from prime_runtime.json_client import open_json_client
from prime_runtime.wording import show_bytes


async def examine(config: NodeConfig, scratch: Path, clock: Clock, *, is_running: bool) -> Examined:
    """`scratch` is for what the engine's interpreter writes; nothing stays in the node's folder."""
    line, engine, listing = await asyncio.gather(
        _examine_line(config, clock), _examine_engine(config, scratch), asyncio.to_thread(list_gpus, load_nvml())
    )
    return Examined(
        cpu=read_cpu(),
        memory=read_memory(),
        disk=await asyncio.to_thread(probe_disk, config.weights.folder or config.folder),
        listing=listing,
        engine=engine,
        line=line,
        sources=await _examine_sources(config, line, clock),
        port=examine_port(config, is_running=is_running),
    )


async def _examine_line(config: NodeConfig, clock: Clock) -> LineFacts | None:
    return await examine_line(config, clock) if config.coordinator else None


async def _examine_engine(config: NodeConfig, scratch: Path) -> EngineSeen | None:
    if config.role is NodeRole.RELAY:
        return None
    python = str(config.engine.python or sys.executable)
    return await examine_engine(python, environment_of(config.engine, scratch))


async def _examine_sources(config: NodeConfig, line: LineFacts | None, clock: Clock) -> SourceFacts | None:
    if line is None or line.problem or not line.run:
        return None
    try:
        async with open_json_client(config.coordinator, config.authority) as client:
            found = complete(replace(config, run=line.run), read_greeting(await client.get("/status")))
    except (LocalError, RemoteError) as error:
        return SourceFacts(servers=0, reached=0, model_bytes=None, problem=str(error))
    return await examine_sources(found, clock)


def describe_hardware(listing: GpuListing) -> str:
    """One line about the machine, for everybody: the log shows it."""
    cpu, memory = read_cpu(), read_memory()
    if listing.gpus:
        return ", ".join(f"{gpu.name} {show_bytes(gpu.memory_bytes)}" for gpu in listing.gpus)
    return f"{cpu.cores} cores, {show_bytes(memory.total_bytes)}"
