"""From what was found to a checklist: what, found, needed, what to do. Pure.

A line is good, worth a note, or missing something. Only the last kind keeps a node from working.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from prime_node.doctor.facts import Examined, LineFacts, SourceFacts
from prime_node.doctor.needs import RATE_BYTES_PER_S_MIN, RUNTIME_BYTES, compute_need
from prime_protocol.constants import CLOCK_SKEW_MS_MAX, PROTOCOL_VERSION
from prime_runtime.wording import show_bytes

CLOCK_NOTED_MS = 2_000
"""A machine with NTP is a hundred times better than this; one without drifts past it in a week."""
WRITE_BYTES_PER_S_MIN = 20_000_000
"""A disk slower than this holds up the building of checkpoints."""


class Grade(StrEnum):
    """How good a line is."""

    GOOD = "good"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was looked at."""

    what: str
    found: str
    needed: str = ""
    advice: str = ""
    """What to do; empty where nothing has to be done."""
    grade: Grade = Grade.GOOD


def judge(examined: Examined, role: str) -> list[Line]:
    """Every line for a node of this role."""
    return [
        *judge_machine(examined, role),
        *judge_devices(examined, role),
        *judge_line(examined.line),
        *judge_sources(examined.sources),
        *judge_port(examined),
        *judge_roles(examined),
    ]


# --- The machine ----------------------------------------------------------------------------------------------------


def judge_machine(examined: Examined, role: str) -> Iterator[Line]:
    cpu, memory, disk = examined.cpu, examined.memory, examined.disk
    features = ", ".join(cpu.features) or "no vector instructions that help"
    yield Line(what="processor", found=f"{cpu.cores} cores of {cpu.model} ({features})", needed="1 core")
    need = compute_need(role, _model_bytes(examined), is_wide=not cpu.has_bf16)
    # On a GPU the weights are there, and the machine's own memory only passes them on.
    least = min(need.memory_bytes, RUNTIME_BYTES) if _good_gpus(examined) else need.memory_bytes
    yield check(
        what="memory",
        found=f"{show_bytes(memory.free_bytes)} free of {show_bytes(memory.total_bytes)}",
        needed=show_bytes(least),
        is_good=memory.free_bytes >= least,
        advice="close other programs, or take part as a relay: --role relay",
    )
    if disk.problem:
        yield Line(
            what="disk",
            found=f"cannot write to {disk.folder}: {disk.problem}",
            needed="a folder that can be written to",
            advice="make room or rights there, or choose another --folder",
            grade=Grade.MISSING,
        )
        return
    yield check(
        what="disk",
        found=f"{show_bytes(disk.free_bytes)} free at {disk.folder}",
        needed=show_bytes(need.disk_bytes) if need.disk_bytes else "room for the weights",
        is_good=disk.free_bytes >= need.disk_bytes,
        advice="make room, or put the weights elsewhere: --weights-folder",
    )
    rate = disk.write_bytes_per_s or 0
    yield check(
        what="disk speed",
        found=f"{show_bytes(rate)}/s written",
        needed=f"{show_bytes(WRITE_BYTES_PER_S_MIN)}/s",
        is_good=rate >= WRITE_BYTES_PER_S_MIN,
        advice="a faster disk builds checkpoints sooner",
        worst=Grade.NOTE,
    )


def judge_devices(examined: Examined, role: str) -> Iterator[Line]:
    listing, engine = examined.listing, examined.engine
    for gpu in listing.gpus:
        yield check(
            what=f"GPU {gpu.number}",
            found=gpu.problem or f"{gpu.name}, {show_bytes(gpu.free_bytes)} free of {show_bytes(gpu.memory_bytes)}",
            is_good=not gpu.problem,
            advice="restart the machine, or the driver: the GPU does not answer it",
        )
    if not listing.gpus:
        yield Line(what="GPU", found=listing.problem or "none", needed="none, but it is many times faster")
    if engine is None:
        return
    is_needed = role != "relay"
    if not engine.torch:
        yield check(
            what="engine",
            found=engine.problem or "torch is not installed",
            needed="torch" if is_needed else "nothing for a relay",
            is_good=not is_needed,
            advice=f"pip install 'prime-swarm[node]' into the environment of {engine.python}",
        )
        return
    also = f", vllm {engine.vllm}" if engine.vllm else ""
    yield Line(what="engine", found=f"torch {engine.torch}{also}", needed="torch")
    for device in engine.devices:
        yield check(
            what=f"device {device.device}",
            found=device.problem or f"multiplied in {device.took_ms} ms{f' on {device.name}' if device.name else ''}",
            needed="a right product",
            is_good=device.is_good,
            advice="update the driver and torch so that they fit each other, or leave it out",
        )
    if listing.gpus and not any(device.device.startswith("cuda") for device in engine.devices):
        yield Line(
            what="GPU in torch",
            found="the driver lists GPUs, torch sees none",
            needed="a torch that was built for this driver",
            advice="install torch with CUDA: see pytorch.org; without it the CPU is used",
            grade=Grade.NOTE,
        )


# --- The network ----------------------------------------------------------------------------------------------------


def judge_line(line: LineFacts | None) -> Iterator[Line]:
    if line is None:
        advice = "ask whoever runs the network for its URL: prime-node doctor --coordinator URL"
        yield Line(what="coordinator", found="none given", needed="its URL", advice=advice, grade=Grade.NOTE)
        return
    if line.problem:
        advice = "check the URL and this machine's network"
        yield Line(what="coordinator", found=line.problem, needed="an answer", advice=advice, grade=Grade.MISSING)
        return
    yield Line(
        what="coordinator",
        found=f"{line.url}, network {line.network}, answers in {line.round_trip_ms} ms",
        needed="an answer",
    )
    yield check(
        what="run",
        found=line.run_problem or f"{line.run}, model {line.model}",
        needed="one that is active",
        is_good=not line.run_problem,
        advice="choose one with --run, or ask the operator",
    )
    yield from _judge_clock(line)
    if line.version_min is not None:
        yield check(
            what="version",
            found=f"this program speaks version {PROTOCOL_VERSION}",
            needed=f"{line.version_min} or later",
            is_good=line.version_min <= PROTOCOL_VERSION,
            advice="pip install --upgrade prime-swarm",
        )


def _judge_clock(line: LineFacts) -> Iterator[Line]:
    if line.skew_ms is None:
        return
    off_ms, direction = abs(line.skew_ms), "ahead of" if line.skew_ms > 0 else "behind"
    grade = Grade.MISSING if off_ms > CLOCK_SKEW_MS_MAX else Grade.NOTE
    yield check(
        what="clock",
        found=f"{off_ms / 1000:.1f} s {direction} the coordinator's",
        needed=f"at most {CLOCK_SKEW_MS_MAX // 1000} s off",
        is_good=off_ms <= CLOCK_NOTED_MS,
        advice="set the clock by NTP: timedatectl set-ntp true",
        worst=grade,
    )


def judge_sources(sources: SourceFacts | None) -> Iterator[Line]:
    if sources is None:
        return
    if sources.bytes_per_s is None:
        reached = f"{sources.servers} nodes serve weights, {sources.reached} were reached" if sources.servers else ""
        yield Line(
            what="weights",
            found="; ".join(part for part in (reached, sources.problem) if part),
            needed="somebody to fetch from",
            advice="none is needed if the run has just begun; else look whether a firewall stops outgoing connections",
            grade=Grade.NOTE,
        )
        return
    rate = sources.bytes_per_s
    took = f"{show_bytes(sources.received_bytes)} from {sources.reached} of {sources.servers} nodes"
    yield check(
        what="weights",
        found=f"{show_bytes(rate)}/s ({took})",
        needed=f"{show_bytes(RATE_BYTES_PER_S_MIN)}/s",
        is_good=rate >= RATE_BYTES_PER_S_MIN,
        advice="a faster line; work with large models would come too late",
        worst=Grade.NOTE,
    )


def judge_port(examined: Examined) -> Iterator[Line]:
    port = examined.port
    if not port.announce:
        yield Line(
            what="reached from outside",
            found="announce is empty: this node calls out only, and serves nobody",
            needed="nothing; but a node that serves helps the others",
        )
        return
    where = ", ".join(port.announce)
    yield check(
        what="reached from outside",
        found=port.problem
        or f"{port.listen} is {'held by our node' if port.is_ours else 'free'}, told others: {where}",
        needed="a port that is free here and forwarded to this machine",
        is_good=not port.problem,
        advice="choose another --listen-port, and --announce with it",
    )


# --- Roles ----------------------------------------------------------------------------------------------------------


def judge_roles(examined: Examined) -> Iterator[Line]:
    """Which roles this machine can take for the run's model, where that is known."""
    model_bytes = _model_bytes(examined)
    if model_bytes is None:
        return
    can = [role for role in ("worker", "validator", "relay") if _can(examined, role, model_bytes)]
    yield check(
        what="roles",
        found=f"with a model of {show_bytes(model_bytes)} it can be: {', '.join(can) or 'nothing'}",
        needed="one",
        is_good=bool(can),
        advice="free memory or disk; see the lines above",
    )


def _can(examined: Examined, role: str, model_bytes: int) -> bool:
    need = compute_need(role, model_bytes, is_wide=not examined.cpu.has_bf16)
    if examined.disk.problem or examined.disk.free_bytes < need.disk_bytes:
        return False
    if role == "relay":
        return examined.memory.free_bytes >= need.memory_bytes
    narrow = compute_need(role, model_bytes, is_wide=False)
    if any(free >= narrow.memory_bytes for free in _good_gpus(examined)):
        return True
    engine = examined.engine
    has_cpu = engine is not None and any(each.device == "cpu" and each.is_good for each in engine.devices)
    return has_cpu and examined.memory.free_bytes >= need.memory_bytes


def _good_gpus(examined: Examined) -> list[int]:
    """Free bytes of each GPU that multiplied rightly."""
    devices = examined.engine.devices if examined.engine else ()
    return [each.free_bytes for each in devices if each.is_good and each.device != "cpu"]


def _model_bytes(examined: Examined) -> int | None:
    return examined.sources.model_bytes if examined.sources else None


def check(*, what: str, found: str, needed: str = "", is_good: bool, advice: str, worst: Grade = Grade.MISSING) -> Line:
    """A line that is good, or has this advice and grade."""
    if is_good:
        return Line(what=what, found=found, needed=needed)
    return Line(what=what, found=found, needed=needed, advice=advice, grade=worst)
