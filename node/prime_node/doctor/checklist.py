"""Turns the facts of the probes into a checklist: what was checked, what was found, what is needed, what to do. Pure.

A result is good, worth a note, or missing something; only the last keeps a node from working. The memory and disk
factors are generous on purpose: a machine that is told it can work must not run out of memory an hour later.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from prime_node.doctor.classes import check_class
from prime_node.doctor.facts import CoordinatorFacts, MachineReport, SourceFacts
from prime_node.doctor.fit import describe_placement, list_usable_gpus, plan_gpus
from prime_node.planning.plan import COPIES_ON_DISK
from prime_protocol.constants import CLOCK_SKEW_MS_MAX, PROTOCOL_VERSION
from prime_runtime.checklist import CheckGrade, CheckResult, make_result
from prime_runtime.formatting import format_bytes

GB = 10**9

RUNTIME_BYTES = 2 * GB
"""Memory of torch, its kernels and the node, without weights."""
CACHE_SHARE = 0.25
"""KV cache of a small batch, relative to the weights; the engine shrinks its batch if there is less."""
FLOAT32_FACTOR = 2
"""A CPU without bf16 instructions holds the weights in float32, twice their published size."""
RELAY_BYTES = GB // 2
"""Memory of a relay: sendfile moves shards from disk to socket without copying them into the process."""
RATE_BYTES_PER_S_MIN = 1_000_000
"""Below this rate a checkpoint of a few gigabytes takes an hour, and work with it comes too late."""


@dataclass(frozen=True, slots=True)
class RoleNeeds:
    """Memory and disk that a role needs."""

    memory_bytes: int
    """Of the machine, or of the GPU if the engine runs on one."""
    disk_bytes: int


def compute_need(role: str, model_bytes: int | None, *, is_wide: bool) -> RoleNeeds:
    """`is_wide`: the engine computes in float32."""
    model = model_bytes or 0
    if role == "relay":
        return RoleNeeds(RELAY_BYTES, COPIES_ON_DISK * model)
    weights = model * (FLOAT32_FACTOR if is_wide else 1)
    return RoleNeeds(RUNTIME_BYTES + int(weights * (1 + CACHE_SHARE)), COPIES_ON_DISK * model)


DAY_MS = 24 * 3_600_000
CLOCK_NOTED_MS = 2_000
"""A machine with NTP is a hundred times more accurate; one without drifts this far in a week."""
WRITE_BYTES_PER_S_MIN = 20_000_000
"""A slower disk delays the building of checkpoints."""


def build_checklist(examined: MachineReport, role: str) -> list[CheckResult]:
    """All results for a node of this role."""
    return [
        *check_machine(examined, role),
        *check_devices(examined, role),
        *check_fit(examined, role),
        *check_coordinator(examined),
        *check_sources(examined.sources),
        *check_port(examined),
        *check_roles(examined),
    ]


# --- The machine ----------------------------------------------------------------------------------------------------


def build_run_checklist(reports: Mapping[str, MachineReport], role: str) -> list[CheckResult]:
    """The checklist of the first run, and of each other run what differs from it, with the run's name."""
    first, *others = [(run, build_checklist(examined, role)) for run, examined in reports.items()]
    differing = [
        replace(line, what=f"{line.what}, {run}") for run, lines in others for line in lines if line not in first[1]
    ]
    return [*first[1], *differing]


def check_machine(examined: MachineReport, role: str) -> Iterator[CheckResult]:
    cpu, memory, disk = examined.cpu, examined.memory, examined.disk
    features = ", ".join(cpu.features) or "no vector instructions that help"
    yield CheckResult(what="processor", found=f"{cpu.cores} cores of {cpu.model} ({features})", needed="1 core")
    need = compute_need(role, _get_model_bytes(examined), is_wide=not cpu.has_bf16)
    # With a GPU the weights live there, and pass through the machine's memory only.
    least = min(need.memory_bytes, RUNTIME_BYTES) if list_usable_gpus(examined) else need.memory_bytes
    yield make_result(
        what="memory",
        found=f"{format_bytes(memory.free_bytes)} free of {format_bytes(memory.total_bytes)}",
        needed=format_bytes(least),
        is_good=memory.free_bytes >= least,
        advice="close other programs, or run a relay: --role relay",
    )
    if disk.problem:
        yield CheckResult(
            what="disk",
            found=f"cannot write to {disk.folder}: {disk.problem}",
            needed="a folder that can be written to",
            advice="free space or fix permissions there, or choose another --folder",
            grade=CheckGrade.MISSING,
        )
        return
    yield make_result(
        what="disk",
        found=f"{format_bytes(disk.free_bytes)} free at {disk.folder}",
        needed=format_bytes(need.disk_bytes) if need.disk_bytes else "space for the weights",
        is_good=disk.free_bytes >= need.disk_bytes,
        advice="free disk space, or store the weights elsewhere: --weights-folder",
    )
    rate = disk.write_bytes_per_s or 0
    yield make_result(
        what="disk speed",
        found=f"{format_bytes(rate)}/s written",
        needed=f"{format_bytes(WRITE_BYTES_PER_S_MIN)}/s",
        is_good=rate >= WRITE_BYTES_PER_S_MIN,
        advice="a faster disk builds checkpoints sooner",
        worst=CheckGrade.NOTE,
    )


def check_devices(examined: MachineReport, role: str) -> Iterator[CheckResult]:
    listing, engine = examined.gpu_listing, examined.engine
    for gpu in listing.gpus:
        yield make_result(
            what=f"GPU {gpu.number}",
            found=gpu.problem or f"{gpu.name}, {format_bytes(gpu.free_bytes)} free of {format_bytes(gpu.memory_bytes)}",
            is_good=not gpu.problem,
            advice="restart the machine or the driver: the GPU does not answer",
        )
    if not listing.gpus:
        yield CheckResult(what="GPU", found=listing.problem or "none", needed="none, but it is many times faster")
    if engine is None:
        return
    is_needed = role != "relay"
    if not engine.torch:
        yield make_result(
            what="engine",
            found=engine.problem or "torch is not installed",
            needed="torch" if is_needed else "nothing for a relay",
            is_good=not is_needed,
            advice=f"pip install 'prime-swarm[node]' into the environment of {engine.python}",
        )
        return
    also = f", vllm {engine.vllm}" if engine.vllm else ""
    yield CheckResult(what="engine", found=f"torch {engine.torch}{also}", needed="torch")
    for device in engine.devices:
        yield make_result(
            what=f"device {device.device}",
            found=device.problem or f"multiplied in {device.took_ms} ms{f' on {device.name}' if device.name else ''}",
            needed="a correct product",
            is_good=device.is_good,
            advice="install matching versions of driver and torch, or do not use this device",
        )
    if listing.gpus and not any(device.device.startswith("cuda") for device in engine.devices):
        yield CheckResult(
            what="GPU in torch",
            found="the driver lists GPUs, torch sees none",
            needed="a torch that was built for this driver",
            advice="install torch with CUDA: see pytorch.org; without it the CPU is used",
            grade=CheckGrade.NOTE,
        )


def check_fit(examined: MachineReport, role: str) -> Iterator[CheckResult]:
    """How the run's model goes on the GPUs. One that does not fit there may still fit the processor's memory."""
    plan = plan_gpus(examined) if role != "relay" else None
    if plan is None:
        return
    need = compute_need(role, plan.weight_bytes, is_wide=not examined.cpu.has_bf16)
    yield make_result(
        what="model on GPUs",
        found=plan.problem or describe_placement(plan),
        needed="one copy",
        is_good=not plan.problem,
        advice="use GPUs with more memory, or run a relay: --role relay; prime-node plan shows what fits",
        worst=CheckGrade.NOTE if examined.memory.free_bytes >= need.memory_bytes else CheckGrade.MISSING,
    )


# --- The network ----------------------------------------------------------------------------------------------------


def check_coordinator(examined: MachineReport) -> Iterator[CheckResult]:
    line = examined.coordinator
    if line is None:
        advice = "ask the operator of the network for its URL: prime-node doctor --coordinator URL"
        yield CheckResult(
            what="coordinator", found="none given", needed="its URL", advice=advice, grade=CheckGrade.NOTE
        )
        return
    if line.problem:
        advice = "check the URL and this machine's network"
        yield CheckResult(
            what="coordinator", found=line.problem, needed="an answer", advice=advice, grade=CheckGrade.MISSING
        )
        return
    yield CheckResult(
        what="coordinator",
        found=f"{line.url}, network {line.network}, answers in {line.round_trip_ms} ms",
        needed="an answer",
    )
    yield make_result(
        what="run",
        found=line.run_problem or f"{line.run}, model {line.model}",
        needed="one that is active",
        is_good=not line.run_problem,
        advice="choose one with --run, or ask the operator",
    )
    if line.run:
        yield make_result(
            what="pay",
            found="the run's pool cannot pay a step" if line.is_unpaid else "the run's pool pays",
            needed="a pool that pays",
            is_good=not line.is_unpaid,
            advice="accepted work earns nothing until the operator funds the run",
            worst=CheckGrade.NOTE,
        )
    yield from _judge_clock(line)
    if line.version_min is not None:
        yield make_result(
            what="version",
            found=f"this program speaks version {PROTOCOL_VERSION}",
            needed=f"{line.version_min} or later",
            is_good=line.version_min <= PROTOCOL_VERSION,
            advice="pip install --upgrade prime-swarm",
        )
    if line.run:
        yield _judge_calibration(line)
        if (own := check_class(examined, line)) is not None:
            yield own


def _judge_calibration(line: CoordinatorFacts) -> CheckResult:
    age_ms = line.calibrated_ms_ago
    days = "" if age_ms is None else f", {age_ms // DAY_MS} days ago"
    return make_result(
        what="calibration",
        found=f"{line.calibration}{days}" if line.calibration else "none: the run uses default bounds",
        needed="bounds measured on this kind of machine",
        is_good=bool(line.calibration),
        advice="ask the operator for a calibrated run",
        worst=CheckGrade.NOTE,
    )


def _judge_clock(line: CoordinatorFacts) -> Iterator[CheckResult]:
    if line.skew_ms is None:
        return
    off_ms, direction = abs(line.skew_ms), "ahead of" if line.skew_ms > 0 else "behind"
    grade = CheckGrade.MISSING if off_ms > CLOCK_SKEW_MS_MAX else CheckGrade.NOTE
    yield make_result(
        what="clock",
        found=f"{off_ms / 1000:.1f} s {direction} the coordinator's",
        needed=f"at most {CLOCK_SKEW_MS_MAX // 1000} s off",
        is_good=off_ms <= CLOCK_NOTED_MS,
        advice="set the clock by NTP: timedatectl set-ntp true",
        worst=grade,
    )


def check_sources(sources: SourceFacts | None) -> Iterator[CheckResult]:
    if sources is None:
        return
    if sources.bytes_per_s is None:
        reached = f"{sources.servers} nodes serve weights, {sources.reached} were reached" if sources.servers else ""
        yield CheckResult(
            what="weights",
            found="; ".join(part for part in (reached, sources.problem) if part),
            needed="a node to fetch from",
            advice="normal if the run has just started; else check whether a firewall blocks outgoing connections",
            grade=CheckGrade.NOTE,
        )
        return
    rate = sources.bytes_per_s
    took = f"{format_bytes(sources.received_bytes)} from {sources.reached} of {sources.servers} nodes"
    yield make_result(
        what="weights",
        found=f"{format_bytes(rate)}/s ({took})",
        needed=f"{format_bytes(RATE_BYTES_PER_S_MIN)}/s",
        is_good=rate >= RATE_BYTES_PER_S_MIN,
        advice="use a faster connection; work with large models would come too late",
        worst=CheckGrade.NOTE,
    )


def check_port(examined: MachineReport) -> Iterator[CheckResult]:
    port = examined.port
    if not port.announce:
        yield CheckResult(
            what="reached from outside",
            found="others cannot connect: announce is empty; it serves weights on connections that it opens itself",
            needed="nothing; with a port forwarded to this machine and announce set, all nodes can fetch from it",
        )
        return
    where = ", ".join(port.announce)
    if port.is_reached is False and not port.problem:
        yield CheckResult(
            what="reached from outside",
            found=f"the coordinator cannot connect to {port.announce[0]}: {port.outside_problem}",
            needed="a port that is forwarded to this machine",
            advice=f"forward TCP {port.announce[0].rpartition(':')[2]} in the router and open it in the firewall; until"
            " then the node serves weights on connections that it opens itself",
            grade=CheckGrade.NOTE,
        )
        return
    yield make_result(
        what="reached from outside",
        found=port.problem
        or (f"the coordinator connected to {port.announce[0]}" if port.is_reached else "")
        or f"{port.listen} is {'held by our node' if port.is_ours else 'free'}, announced as {where}",
        needed="a port that is free and forwarded to this machine",
        is_good=not port.problem,
        advice="choose another --listen-port, and --announce with it",
    )


# --- Roles ----------------------------------------------------------------------------------------------------------


def check_roles(examined: MachineReport) -> Iterator[CheckResult]:
    """The roles that this machine can take for the run's model, if its size is known."""
    model_bytes = _get_model_bytes(examined)
    if model_bytes is None:
        return
    can = [role for role in ("worker", "validator", "relay") if _can_take_role(examined, role, model_bytes)]
    yield make_result(
        what="roles",
        found=f"with a model of {format_bytes(model_bytes)} it can be: {', '.join(can) or 'nothing'}",
        needed="one",
        is_good=bool(can),
        advice="free memory or disk; see the lines above",
    )


def _can_take_role(examined: MachineReport, role: str, model_bytes: int) -> bool:
    need = compute_need(role, model_bytes, is_wide=not examined.cpu.has_bf16)
    if examined.disk.problem or examined.disk.free_bytes < need.disk_bytes:
        return False
    if role == "relay":
        return examined.memory.free_bytes >= need.memory_bytes
    plan = plan_gpus(examined)
    if plan is not None and not plan.problem:
        return True
    engine = examined.engine
    has_cpu = engine is not None and any(each.device == "cpu" and each.is_good for each in engine.devices)
    return has_cpu and examined.memory.free_bytes >= need.memory_bytes


def _get_model_bytes(examined: MachineReport) -> int | None:
    return examined.sources.model_bytes if examined.sources else None
