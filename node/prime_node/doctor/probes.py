"""The probes of coordinator, weight servers and engine, and `probe_machine`, which runs all probes.

Engine devices are tested in child processes with the engine's own interpreter; probes run concurrently where they do
not disturb each other.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from prime_node.config import NodeConfig, NodeRole
from prime_node.doctor.facts import (
    CoordinatorFacts,
    DeviceFacts,
    EngineInstallFacts,
    GpuListing,
    MachineReport,
    PortFacts,
    SourceFacts,
)
from prime_node.doctor.machine import list_gpus, load_nvml, probe_disk, probe_port, read_cpu, read_memory
from prime_node.engine.process import build_environment
from prime_node.joining import CoordinatorInfo, ListedRun, choose_run, complete_config, parse_coordinator_info
from prime_node.reverse.dial_back import DialBackClient
from prime_node.reverse.reachability import Reachability
from prime_node.weights.connection import ConnectionBroken, ConnectionPool
from prime_protocol.constants import CLASS_CHARS_MAX, CLASSES_MAX, MANIFEST_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.weights.manifest import ManifestKind, ManifestShard, open_manifest
from prime_protocol.wire.ids import Digest, NetworkId, NodeId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.formatting import format_bytes
from prime_runtime.gossip.transport import GossipHttpClient
from prime_runtime.http.client import open_client
from prime_runtime.http.coordinator_api import open_json_client
from prime_runtime.http.server import HttpServer
from prime_runtime.shardcast.config import with_ports
from prime_runtime.shardcast.directory import ServerDirectory, ServerRecord


async def probe_coordinator(config: NodeConfig, clock: Clock) -> CoordinatorFacts:
    try:
        async with open_json_client(config.coordinator, config.authority) as client:
            await client.get("/status")  # opens the connection, so that the next call measures the round trip alone
            sent_ms, began_ms = clock.now_ms(), clock.monotonic_ms()
            answer = await client.get("/status")
            round_trip_ms = clock.monotonic_ms() - began_ms
            greeting = parse_coordinator_info(answer)
            run, problem = _find_run(config, greeting)
            row: dict[str, Any] = next((row for row in answer["runs"] if run and row["run"] == run.name), {})
            return CoordinatorFacts(
                url=config.coordinator,
                network=greeting.network,
                run=run.name if run else "",
                run_problem=problem,
                model=run.model if run else "",
                is_unpaid=run.is_unpaid if run else False,
                version_min=_to_int(row.get("version_min")),
                calibration=str(row.get("calibration", "")),
                calibrated_ms_ago=_get_age_ms(row.get("calibrated_at_ms"), sent_ms),
                engine_classes=_list_texts(row.get("engine_classes")),
                is_closed=row.get("is_closed") is True,
                round_trip_ms=round_trip_ms,
                skew_ms=_skew_ms(answer.get("now_ms"), sent_ms + round_trip_ms // 2),
            )
    except (LocalError, RemoteError, KeyError, TypeError, AttributeError) as error:
        return CoordinatorFacts(url=config.coordinator, problem=str(error))


def _list_texts(found: object) -> tuple[str, ...]:
    return tuple(str(each)[:CLASS_CHARS_MAX] for each in found[:CLASSES_MAX]) if isinstance(found, list) else ()


def _get_age_ms(at_ms: object, now_ms: int) -> int | None:
    """None where it never was."""
    known = _to_int(at_ms)
    return max(0, now_ms - known) if known else None


def _find_run(config: NodeConfig, greeting: CoordinatorInfo) -> tuple[ListedRun | None, str]:
    try:
        if not config.run:
            return choose_run(greeting), ""
    except LocalError as error:
        return None, str(error)
    named = next((run for run in greeting.runs if run.name == config.run), None)
    return named, "" if named else f"there is no run {config.run} on {greeting.network}"


def _skew_ms(theirs: Any, ours_ms: int) -> int | None:
    number = _to_int(theirs)
    return None if number is None else ours_ms - number


def _to_int(value: Any) -> int | None:
    return value if type(value) is int else None


SERVERS_TRIED_MAX = 3
SERVER_S = 10
"""Time limit for one server, manifest and shards together."""
SHARDS_BYTES_MAX = 16 * 2**20
"""Downloaded from one server: about two shards of the usual size."""


async def probe_sources(config: NodeConfig, clock: Clock) -> SourceFacts:
    """Uses a fresh random key: these requests need no identity."""
    directory = ServerDirectory()
    key = WalletKey.from_secret(secrets.token_bytes(32))
    try:
        async with open_client(
            key=key,
            network=config.network_id,
            clock=clock,
            limits=config.client,
            authority=config.authority,
        ) as client:
            guard = GossipGuard(config.network_id, is_trainer=lambda run, node: node == records.trainer)
            records = GossipHttpClient(
                client,
                config.server,
                network=config.network_id,
                run=config.run_id,
                clock=clock,
                guard=guard,
                deliver=directory.learn,
            )
            await records.poll()
    except (LocalError, RemoteError) as error:
        return SourceFacts(servers=0, reached=0, model_bytes=None, problem=str(error))
    assert records.trainer is not None, "an answer names the trainer"
    return await _probe_servers(config, directory, records.trainer, clock)


async def _probe_servers(config: NodeConfig, directory: ServerDirectory, trainer: NodeId, clock: Clock) -> SourceFacts:
    keyframes = [each for each in directory.announced() if each.kind is ManifestKind.KEYFRAME]
    served = directory.served()
    facts = SourceFacts(
        servers=len(directory), reached=0, model_bytes=keyframes[0].transport_bytes if keyframes else None
    )
    wanted = next((each.manifest for each in keyframes if each.manifest in served), served[0] if served else None)
    if wanted is None:
        return replace(facts, problem="no node serves weights of this run at the moment")
    links = ConnectionPool(allow_private=config.allows_private_addresses)
    servers = sorted(directory.servers(wanted), key=lambda each: -each.serving.slots_free)[:SERVERS_TRIED_MAX]
    try:
        for server in servers:
            facts = await _probe_server(config, links, server, wanted, trainer, facts, clock)
    finally:
        await links.close()
    return facts


async def _probe_server(
    config: NodeConfig,
    links: ConnectionPool,
    server: ServerRecord,
    wanted: Digest,
    trainer: NodeId,
    facts: SourceFacts,
    clock: Clock,
) -> SourceFacts:
    """The facts, updated with this server's results."""
    received, began_ms = 0, clock.monotonic_ms()
    try:
        async with asyncio.timeout(SERVER_S), links.borrow(server.serving.urls) as link:
            answer = await link.get(f"/manifests/{wanted}", {}, body_bytes_max=MANIFEST_BYTES_MAX)
            facts = replace(facts, reached=facts.reached + 1)
            signed = open_manifest(answer.body, network=config.network_id, run=config.run_id, trainer=trainer)
            began_ms = clock.monotonic_ms()
            for shard in choose_shards(signed.manifest.shards):
                answer = await link.get(f"/shards/{shard.digest}", {}, body_bytes_max=shard.length)
                received += len(answer.body) if answer.status == 200 else 0
    except (ConnectionBroken, TimeoutError, RemoteError) as error:
        facts = replace(facts, problem=f"{server.node}: {str(error) or 'too slow'}")
    took_ms = clock.monotonic_ms() - began_ms if received else 0
    return replace(facts, received_bytes=facts.received_bytes + received, took_ms=facts.took_ms + took_ms)


def choose_shards(shards: tuple[ManifestShard, ...]) -> list[ManifestShard]:
    """The largest shards within SHARDS_BYTES_MAX; at least one."""
    chosen: list[ManifestShard] = []
    for shard in sorted(shards, key=lambda each: -each.length):
        if not chosen or sum(each.length for each in chosen) + shard.length <= SHARDS_BYTES_MAX:
            chosen.append(shard)
        else:
            break
    return chosen


CHECK_S = 120
"""A first import of torch from a cold disk takes half a minute; a hung driver never answers."""
STDERR_CHARS_MAX = 400


async def probe_engine(python: str, environment: Mapping[str, str]) -> EngineInstallFacts:
    """Test the CPU first, which also lists the GPUs; then each of those."""
    first = await _run_device_check(python, environment, "cpu")
    devices = [_build_device_facts("cpu", first)] if first.get("torch") else []
    for gpu in first.get("gpus", ()):
        devices.append(_build_device_facts(str(gpu), await _run_device_check(python, environment, str(gpu))))
    problem = "" if first.get("torch") else str(first.get("problem", ""))
    return EngineInstallFacts(python, str(first.get("torch", "")), str(first.get("vllm", "")), tuple(devices), problem)


def _build_device_facts(device: str, found: dict[str, Any]) -> DeviceFacts:
    return DeviceFacts(
        device=device,
        name=str(found.get("name", "")),
        is_good=not found.get("problem"),
        took_ms=int(found.get("took_ms", 0)),
        problem=str(found.get("problem", "")),
        memory_bytes=int(found.get("memory_bytes", 0)),
        free_bytes=int(found.get("free_bytes", 0)),
    )


async def _run_device_check(python: str, environment: Mapping[str, str], device: str) -> dict[str, Any]:
    """The child's answer, or why there is none."""
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
        last = words[-1][:STDERR_CHARS_MAX] if words else "silently"
        return {"problem": f"the check ended with {process.returncode}: {last}"}
    try:
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found
    except (ValueError, IndexError):
        return {"problem": "the check printed no valid JSON"}


async def probe_machine(config: NodeConfig, scratch: Path, clock: Clock, *, is_running: bool) -> MachineReport:
    """`scratch` holds what the engine's interpreter writes; the node's folder is not changed."""
    line, engine, listing = await asyncio.gather(
        _probe_coordinator_if_set(config, clock),
        _probe_engine_if_needed(config, scratch),
        asyncio.to_thread(list_gpus, load_nvml()),
    )
    return MachineReport(
        cpu=read_cpu(),
        memory=read_memory(),
        disk=await asyncio.to_thread(probe_disk, config.weights.folder or config.folder),
        gpu_listing=listing,
        engine=engine,
        coordinator=line,
        sources=await _probe_sources_if_joined(config, line, clock),
        port=await _probe_outside(config, line, probe_port(config, is_running=is_running), clock),
    )


async def _probe_outside(config: NodeConfig, line: CoordinatorFacts | None, port: PortFacts, clock: Clock) -> PortFacts:
    """Let the coordinator connect to the announced address, where this program can answer there."""
    if line is None or line.problem or not config.announce or port.problem or port.is_ours:
        return port
    key, network = WalletKey.from_secret(secrets.token_bytes(32)), NetworkId(line.network)
    http = HttpServer(key, network, clock=clock, limits=config.limits)
    urls: tuple[str, ...] = ()
    async with (
        open_json_client(config.coordinator, config.authority) as client,
        open_client(key=key, network=network, clock=clock, limits=config.client, authority=config.authority) as caller,
    ):
        try:
            found = complete_config(replace(config, run=line.run), parse_coordinator_info(await client.get("/status")))
            dial_back = DialBackClient(
                caller,
                http,
                found.server,
                clock=clock,
                rng=Random(),
                allow_private=config.allows_private_addresses,
                trusted_proxies=config.limits.trusted_proxies,
                list_servers=dict,
                get_url=lambda: urls[0],
            )
            urls = with_ports(config.announce, await http.start(config.listen))
        except (LocalError, RemoteError):
            return port
        try:
            await dial_back.update()
        finally:
            await http.stop()
    is_reached = {Reachability.OPEN: True, Reachability.CLOSED: False}.get(dial_back.state)
    return replace(port, is_reached=is_reached, outside_problem=dial_back.problem)


async def probe_runs(config: NodeConfig, scratch: Path, clock: Clock, *, is_running: bool) -> dict[str, MachineReport]:
    """A report for each run that the settings name; one, without a name, where they name none."""
    first, *others = [config.for_run(run) for run in config.runs] or [config]
    reports = {first.run: await probe_machine(first, scratch, clock, is_running=is_running)}
    for other in others:
        line = await _probe_coordinator_if_set(other, clock)
        sources = await _probe_sources_if_joined(other, line, clock)
        reports[other.run] = replace(reports[first.run], coordinator=line, sources=sources)
    return reports


async def _probe_coordinator_if_set(config: NodeConfig, clock: Clock) -> CoordinatorFacts | None:
    return await probe_coordinator(config, clock) if config.coordinator else None


async def _probe_engine_if_needed(config: NodeConfig, scratch: Path) -> EngineInstallFacts | None:
    if config.role is NodeRole.RELAY:
        return None
    python = str(config.engine.python or sys.executable)
    return await probe_engine(python, build_environment(config.engine, scratch))


async def _probe_sources_if_joined(
    config: NodeConfig, line: CoordinatorFacts | None, clock: Clock
) -> SourceFacts | None:
    if line is None or line.problem or not line.run:
        return None
    try:
        async with open_json_client(config.coordinator, config.authority) as client:
            found = complete_config(replace(config, run=line.run), parse_coordinator_info(await client.get("/status")))
    except (LocalError, RemoteError) as error:
        return SourceFacts(servers=0, reached=0, model_bytes=None, problem=str(error))
    return await probe_sources(found, clock)


def describe_hardware(listing: GpuListing) -> str:
    """One line about the machine. It becomes public in the log."""
    cpu, memory = read_cpu(), read_memory()
    if listing.gpus:
        return ", ".join(f"{gpu.name} {format_bytes(gpu.memory_bytes)}" for gpu in listing.gpus)
    return f"{cpu.cores} cores, {format_bytes(memory.total_bytes)}"
