"""The doctor's judgement: from plain facts to lines that say what is missing and what to do about it."""

from dataclasses import replace
from typing import Any

import pytest

from prime_node.doctor.checklist import build_checklist, build_run_checklist, compute_need
from prime_node.doctor.facts import (
    CoordinatorFacts,
    CpuFacts,
    DeviceFacts,
    DiskFacts,
    EngineInstallFacts,
    GpuFacts,
    GpuListing,
    MachineReport,
    MemoryFacts,
    PortFacts,
    SourceFacts,
)
from prime_protocol.constants import PROTOCOL_VERSION
from prime_runtime.checklist import CheckGrade, CheckResult

GB = 10**9
CPU = DeviceFacts(device="cpu", name="", is_good=True, took_ms=5, problem="")
GPU = replace(CPU, device="cuda:0", name="RTX", memory_bytes=24 * GB, free_bytes=23 * GB)
LISTED = GpuFacts(number=0, uuid="GPU-1", name="RTX", memory_bytes=24 * GB, free_bytes=23 * GB)
GOOD = MachineReport(
    cpu=CpuFacts(model="EPYC", cores=8, features=("avx2", "avx512_bf16")),
    memory=MemoryFacts(total_bytes=32 * GB, free_bytes=30 * GB),
    disk=DiskFacts(folder="/n", free_bytes=100 * GB, write_bytes_per_s=10**9, problem=""),
    gpu_listing=GpuListing((), "", "no NVIDIA driver"),
    engine=EngineInstallFacts("/py", "2.13", "", (CPU,), ""),
    coordinator=CoordinatorFacts(
        url="http://c:1",
        network="devnet",
        run="demo",
        model="tiny",
        version_min=1,
        calibration="two machines",
        calibrated_ms_ago=3 * 86_400_000,
        skew_ms=20,
    ),
    sources=SourceFacts(servers=3, reached=2, model_bytes=3 * GB, received_bytes=10**7, took_ms=1000),
    port=PortFacts(announce=(), listen="127.0.0.1 port any", problem="", is_ours=False),
)


def lines_of(role: str = "worker", **changes: Any) -> dict[str, CheckResult]:
    return {line.what: line for line in build_checklist(replace(GOOD, **changes), role)}


def test_a_good_machine_has_nothing_to_do() -> None:
    lines = lines_of()
    assert {line.grade for line in lines.values()} == {CheckGrade.GOOD}
    assert not any(line.advice for line in lines.values())
    assert lines["roles"].found == "with a model of 3.0 GB it can be: worker, validator, relay"
    assert lines["calibration"].found == "two machines, 3 days ago"
    assert lines["weights"].found == "10.0 MB/s (10.0 MB from 2 of 3 nodes)"
    assert list(lines) == [
        *("processor", "memory", "disk", "disk speed", "GPU", "engine", "device cpu"),
        *("coordinator", "run", "pay", "clock", "version", "calibration"),
        *("weights", "reached from outside", "roles"),
    ]


OWN_CLASS = "cpu-avx2/torch-2.13/prime/float32/tp1"
H100_CLASSES = ("nvidia-h100/torch-2.13/sdpa/bfloat16/tp1", "nvidia-h100/vllm-0.33/flash-attn/bfloat16/tp1")


def test_a_machine_is_told_its_classes_and_whether_the_run_has_bounds_for_them() -> None:
    engine = replace(GOOD.engine, torch="2.13.0+cpu", devices=(replace(CPU, name="cpu AVX2"),))
    for classes, is_closed, grade, found, advice in (
        ((OWN_CLASS, *H100_CLASSES), True, CheckGrade.GOOD, f"{OWN_CLASS}: calibrated", ""),
        (H100_CLASSES, False, CheckGrade.NOTE, "cpu-avx2/torch-2.13: none of the run's 2 classes", "by the default"),
        (H100_CLASSES, True, CheckGrade.MISSING, "cpu-avx2/torch-2.13: none", "the run takes no work of it"),
    ):
        coordinator = replace(GOOD.coordinator, engine_classes=classes, is_closed=is_closed)
        line = lines_of(engine=engine, coordinator=coordinator)["engine class"]
        assert (line.grade, line.found.startswith(found), advice in line.advice) == (grade, True, True)
    both = replace(engine, vllm="0.33.1", devices=(*engine.devices, replace(GPU, name="NVIDIA H100")))
    line = lines_of(engine=both, coordinator=replace(GOOD.coordinator, engine_classes=H100_CLASSES))["engine class"]
    assert line.found == f"{', '.join(H100_CLASSES)}: calibrated"
    for changes in ({"engine": None}, {"engine": replace(engine, torch="")}):
        assert "engine class" not in lines_of(coordinator=coordinator, **changes)


@pytest.mark.parametrize(
    ("changes", "what", "grade", "found", "advice"),
    [
        (
            {"memory": MemoryFacts(total_bytes=4 * GB, free_bytes=3 * GB)},
            "memory",
            CheckGrade.MISSING,
            "3.0 GB free of 4.0 GB",
            "--role relay",
        ),
        (
            {"disk": DiskFacts(folder="/n", free_bytes=8 * GB, write_bytes_per_s=10**9, problem="")},
            "disk",
            CheckGrade.MISSING,
            "8.0 GB free",
            "--weights-folder",
        ),
        (
            {"disk": DiskFacts(folder="/n", free_bytes=0, write_bytes_per_s=None, problem="Read-only file system")},
            "disk",
            CheckGrade.MISSING,
            "cannot write to /n: Read-only file system",
            "--folder",
        ),
        (
            {"disk": DiskFacts(folder="/n", free_bytes=100 * GB, write_bytes_per_s=10**6, problem="")},
            "disk speed",
            CheckGrade.NOTE,
            "1.0 MB/s",
            "faster disk",
        ),
        (
            {"engine": EngineInstallFacts("/py", "", "", (), "torch cannot be imported")},
            "engine",
            CheckGrade.MISSING,
            "torch cannot be imported",
            "pip install 'prime-swarm[node]' into the environment of /py",
        ),
        (
            {"engine": EngineInstallFacts("/py", "2.13", "", (replace(CPU, is_good=False, problem="SIGILL"),), "")},
            "device cpu",
            CheckGrade.MISSING,
            "SIGILL",
            "install matching versions",
        ),
        (
            {"gpu_listing": GpuListing((replace(LISTED, problem="GPU is lost"),), "550", "")},
            "GPU 0",
            CheckGrade.MISSING,
            "GPU is lost",
            "restart the machine",
        ),
        (
            {"gpu_listing": GpuListing((LISTED,), "550", "")},
            "GPU in torch",
            CheckGrade.NOTE,
            "torch sees none",
            "install torch with CUDA",
        ),
        ({"coordinator": None, "sources": None}, "coordinator", CheckGrade.NOTE, "none given", "--coordinator URL"),
        (
            {"coordinator": CoordinatorFacts(url="http://c:1", problem="cannot reach http://c:1"), "sources": None},
            "coordinator",
            CheckGrade.MISSING,
            "cannot reach",
            "check the URL",
        ),
        (
            {"coordinator": replace(GOOD.coordinator, calibration="", calibrated_ms_ago=None)},
            "calibration",
            CheckGrade.NOTE,
            "default bounds",
            "ask the operator",
        ),
        (
            {"coordinator": replace(GOOD.coordinator, is_unpaid=True)},
            "pay",
            CheckGrade.NOTE,
            "cannot pay a step",
            "funds the run",
        ),
        (
            {"coordinator": replace(GOOD.coordinator, run="", run_problem="2 runs are active")},
            "run",
            CheckGrade.MISSING,
            "2 runs are active",
            "--run",
        ),
        (
            {"coordinator": replace(GOOD.coordinator, skew_ms=3_600_000)},
            "clock",
            CheckGrade.MISSING,
            "3600.0 s ahead of",
            "NTP",
        ),
        ({"coordinator": replace(GOOD.coordinator, skew_ms=-5_000)}, "clock", CheckGrade.NOTE, "5.0 s behind", "NTP"),
        (
            {"coordinator": replace(GOOD.coordinator, version_min=9)},
            "version",
            CheckGrade.MISSING,
            f"speaks version {PROTOCOL_VERSION}",
            "--upgrade",
        ),
        (
            {"sources": SourceFacts(servers=0, reached=0, model_bytes=None, problem="no node serves")},
            "weights",
            CheckGrade.NOTE,
            "no node serves",
            "if the run has just started",
        ),
        (
            {"sources": SourceFacts(servers=6, reached=0, model_bytes=None, problem="urls: lead into a private")},
            "weights",
            CheckGrade.NOTE,
            "6 nodes serve weights, 0 were reached; urls: lead into a private",
            "firewall",
        ),
        (
            {"sources": replace(GOOD.sources, received_bytes=1000)},
            "weights",
            CheckGrade.NOTE,
            "1.0 kB/s",
            "too late",
        ),
        (
            {"port": PortFacts(announce=("http://a:1",), listen="0.0.0.0 port 1", problem="in use", is_ours=False)},
            "reached from outside",
            CheckGrade.MISSING,
            "in use",
            "--listen-port",
        ),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(
    changes: dict[str, Any], what: str, grade: CheckGrade, found: str, advice: str
) -> None:
    line = lines_of(**changes)[what]
    assert line.grade is grade
    assert found in line.found
    assert advice in line.advice


def test_a_relay_needs_no_engine_and_little_memory() -> None:
    small = MemoryFacts(total_bytes=GB, free_bytes=GB)
    lines = lines_of("relay", memory=small, engine=None)
    assert {line.grade for line in lines.values()} == {CheckGrade.GOOD}
    assert lines["roles"].found.endswith("it can be: relay")
    without = lines_of("relay", engine=EngineInstallFacts("/py", "", "", (), "none"))["engine"]
    assert (without.grade, without.needed) == (CheckGrade.GOOD, "nothing for a relay")


def test_a_gpu_with_room_makes_up_for_little_memory() -> None:
    small = MemoryFacts(total_bytes=4 * GB, free_bytes=3 * GB)
    engine = EngineInstallFacts("/py", "2.13", "0.32", (CPU, GPU), "")
    lines = lines_of(memory=small, engine=engine, gpu_listing=GpuListing((LISTED,), "550", ""))
    assert {line.grade for line in lines.values()} == {CheckGrade.GOOD}
    assert lines["engine"].found == "torch 2.13, vllm 0.32"
    assert lines["device cuda:0"].found == "multiplied in 5 ms on RTX"
    assert "worker" in lines["roles"].found
    full = EngineInstallFacts("/py", "2.13", "", (CPU, replace(GPU, free_bytes=GB)), "")
    assert lines_of(memory=small, engine=full)["roles"].found.endswith("it can be: relay")


def test_a_machine_without_room_can_be_nothing() -> None:
    lines = lines_of(disk=replace(GOOD.disk, free_bytes=GB))
    assert (lines["roles"].grade, lines["roles"].found[-7:]) == (CheckGrade.MISSING, "nothing")


def test_a_port_that_our_own_node_holds_is_well_held() -> None:
    port = PortFacts(announce=("http://a:1",), listen="0.0.0.0 port 1", problem="", is_ours=True)
    assert "held by our node" in lines_of(port=port)["reached from outside"].found


def test_a_cpu_without_bf16_needs_twice_the_memory_for_weights() -> None:
    narrow, wide = (compute_need("worker", 10 * GB, is_wide=is_wide) for is_wide in (False, True))
    assert wide.memory_bytes - narrow.memory_bytes == 12.5 * GB
    assert narrow.disk_bytes == wide.disk_bytes == 30 * GB


def test_each_further_run_adds_what_differs_from_the_first() -> None:
    assert GOOD.coordinator is not None
    newer = replace(GOOD.coordinator, run="two", version_min=PROTOCOL_VERSION + 1)
    lines = build_run_checklist({"one": GOOD, "same": GOOD, "two": replace(GOOD, coordinator=newer)}, "validator")
    own = build_checklist(GOOD, "validator")
    assert lines[: len(own)] == own
    added = lines[len(own) :]
    assert added
    assert all(line.what.endswith(", two") for line in added)
    assert any(line.grade is CheckGrade.MISSING for line in added), "this program is too old for that run"


def test_a_port_that_the_coordinator_cannot_reach_is_noted_with_what_would_help() -> None:
    port = PortFacts(announce=("http://a:8450",), listen="0.0.0.0 port 8450", problem="", is_ours=False)
    closed = lines_of(port=replace(port, is_reached=False, outside_problem="no connection"))["reached from outside"]
    assert closed.grade is CheckGrade.NOTE
    assert "no connection" in closed.found
    assert "forward TCP 8450 in the router" in closed.advice
    reached = lines_of(port=replace(port, is_reached=True))["reached from outside"]
    assert (reached.grade, reached.found) == (CheckGrade.GOOD, "the coordinator connected to http://a:8450")
