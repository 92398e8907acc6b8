"""The doctor's probes: on this machine where it has the thing, on stand-ins for drivers where it has not."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prime_node.config import NodeConfig
from prime_node.doctor.facts import GpuFacts, GpuListing
from prime_node.doctor.machine import (
    find_bind_problem,
    list_gpus,
    load_nvml,
    observe_gpus,
    probe_disk,
    probe_port,
    read_cpu,
    read_memory,
)
from prime_node.doctor.probes import SHARDS_BYTES_MAX, choose_shards, describe_hardware, probe_engine
from prime_protocol.weights.manifest import ManifestShard
from prime_protocol.wire.ids import Digest
from prime_runtime.http.config import ListenConfig

ENVIRONMENT = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}

# --- Processor, memory, disk, ports ---------------------------------------------------------------------------------


def test_processor_and_memory_are_read(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A\nflags\t\t: fpu avx2 amx_bf16\nmodel name\t: B\n")
    cpu = read_cpu(info)
    assert (cpu.model, cpu.features, cpu.has_bf16) == ("A", ("avx2", "amx_bf16"), True)
    assert cpu.cores >= 1
    bare = read_cpu(tmp_path / "absent")
    assert (bare.model, bare.features, bare.has_bf16) == ("unknown", (), False)
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  500 kB\n")
    assert read_memory(meminfo, limit).free_bytes == 512_000
    limit.write_text("max\n")
    assert read_memory(meminfo, limit).total_bytes == 1_024_000
    limit.write_text("300000\n")
    contained = read_memory(meminfo, limit)
    assert (contained.total_bytes, contained.free_bytes) == (300_000, 300_000)
    assert 0 < read_memory().free_bytes <= read_memory().total_bytes


def test_a_disk_is_tried_by_writing_and_left_as_it_was(tmp_path: Path) -> None:
    found = probe_disk(tmp_path / "not" / "yet", write_bytes=3 * 2**20 + 5)
    assert found.problem == ""
    assert found.free_bytes > 0
    assert found.write_bytes_per_s is not None
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_to_says_so() -> None:
    found = probe_disk(Path("/proc/1"))
    assert found.write_bytes_per_s is None
    assert found.problem


def test_a_port_that_is_taken_is_found_before_the_start_does() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "in use" in find_bind_problem("127.0.0.1", port)
        config = NodeConfig(
            folder=Path("/n"), announce=("http://a.example:1",), listen=ListenConfig(host="127.0.0.1", port=port)
        )
        assert "in use" in probe_port(config, is_running=False).problem
        assert probe_port(config, is_running=True).problem == ""
    assert find_bind_problem("127.0.0.1", 0) == ""
    assert find_bind_problem("no.such.name.invalid", 1) != ""
    assert probe_port(NodeConfig(folder=Path("/n")), is_running=False).problem == "", "it would not listen at all"


# --- GPUs -----------------------------------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


class NotFound(NVMLError):
    pass


@dataclass
class Driver:
    """Stands in for pynvml: the functions that are used, over GPUs that a test makes up."""

    names: list[str]
    lost: set[int] = field(default_factory=set)
    samples: dict[int, Any] = field(default_factory=dict)
    is_down: bool = False
    opened: int = 0
    NVMLError = NVMLError
    NVMLError_NotFound = NotFound

    def nvmlInit(self) -> None:
        if self.is_down:
            raise NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.54"

    def nvmlDeviceGetCount(self) -> int:
        if "!" in self.names:
            raise NVMLError("Unknown Error")
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        if number in self.lost:
            raise NVMLError("GPU is lost")
        return number

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=24_000, free=20_000)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.names[handle]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> Any:
        samples = self.samples.get(handle, NotFound("Not Found"))
        if isinstance(samples, Exception):
            raise samples
        return samples


def test_gpus_are_listed_and_one_that_is_lost_is_named() -> None:
    driver = Driver(["RTX", "RTX"], lost={1})
    listing = list_gpus(driver)
    assert (listing.driver, listing.problem) == ("550.54", "")
    assert listing.gpus[0] == GpuFacts(number=0, uuid="GPU-0", name="RTX", memory_bytes=24_000, free_bytes=20_000)
    assert listing.gpus[1].problem == "GPU is lost"
    assert driver.opened == 0
    assert [gpu.number for gpu in observe_gpus(driver, ())] == [0]


def test_no_driver_is_no_gpu_with_a_reason() -> None:
    assert list_gpus(None) == GpuListing((), "", "nvidia-ml-py is not installed")
    down = Driver(["RTX"], is_down=True)
    assert list_gpus(down) == GpuListing((), "", "no NVIDIA driver: Driver Not Loaded")
    assert observe_gpus(down, ()) == ()
    mute = Driver(["!"])
    assert list_gpus(mute).problem == "the NVIDIA driver does not answer: Unknown Error"
    assert mute.opened == 0


def test_this_machine_answers_whether_it_has_a_driver() -> None:
    listing = list_gpus(load_nvml())
    assert bool(listing.problem) != bool(listing.driver)


def sample(pid: int, at: int, percent: int) -> Any:
    return SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent)


def test_what_others_use_of_a_gpu_leaves_our_own_work_out() -> None:
    samples = [sample(7, 1, 90), sample(7, 3, 20), sample(7, 2, 50), sample(8, 1, 10), sample(99, 1, 60)]
    driver = Driver(["RTX"], samples={0: samples})
    assert observe_gpus(driver, {99})[0].others_percent == 30
    assert observe_gpus(driver, ())[0].others_percent == 90
    driver.samples[0] = [sample(1, 1, 80), sample(2, 1, 80)]
    assert observe_gpus(driver, ())[0].others_percent == 100
    driver.samples.clear()
    assert observe_gpus(driver, ())[0].others_percent == 0, "so it answers where nobody is at work"
    driver.samples[0] = NVMLError("Not Supported")
    assert observe_gpus(driver, ())[0].others_percent is None


def test_the_line_about_the_hardware_names_gpus_or_cores() -> None:
    gpu = GpuFacts(number=0, uuid="", name="RTX 4090", memory_bytes=25_757_220_864, free_bytes=0)
    assert describe_hardware(GpuListing((gpu,), "", "")) == "RTX 4090 25.8 GB"
    assert " cores, " in describe_hardware(GpuListing((), "", ""))


# --- The engine's devices -------------------------------------------------------------------------------------------


async def test_the_cpu_multiplies_in_a_process_of_its_own() -> None:
    seen = await probe_engine(sys.executable, ENVIRONMENT)
    assert seen.torch
    assert seen.devices[0].device == "cpu"
    assert seen.devices[0].is_good, seen.devices[0].problem


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'RuntimeError: no kernel' >&2; exit 3", "ended with 3: RuntimeError: no kernel"),
        ("exit 1", "ended with 1: silently"),
        ("kill -9 $$", "ended with -9"),
        ("echo warning", "no valid JSON"),
        ("true", "no valid JSON"),
        ('echo \'{"torch": "", "problem": "torch cannot be imported"}\'', "torch cannot be imported"),
    ],
)
async def test_a_check_that_dies_is_a_finding(script: str, problem: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o700)
    seen = await probe_engine(str(python), ENVIRONMENT)
    assert (seen.torch, seen.devices) == ("", ())
    assert problem in seen.problem


async def test_a_gpu_that_fails_does_not_hide_the_others(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/sh
case "$3" in
cpu) echo '{"torch": "2.13", "vllm": "", "gpus": ["cuda:0", "cuda:1"], "problem": "", "took_ms": 1}' ;;
cuda:0) echo 'CUDA error: device-side assert' >&2; exit 1 ;;
*) echo '{"torch": "2.13", "problem": "", "took_ms": 2, "name": "RTX", "free_bytes": 5, "memory_bytes": 9}' ;;
esac
"""
    )
    python.chmod(0o700)
    seen = await probe_engine(str(python), ENVIRONMENT)
    assert [(each.device, each.is_good) for each in seen.devices] == [
        ("cpu", True),
        ("cuda:0", False),
        ("cuda:1", True),
    ]
    assert "device-side assert" in seen.devices[1].problem
    assert (seen.devices[2].name, seen.devices[2].free_bytes) == ("RTX", 5)


async def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    seen = await probe_engine(str(tmp_path / "absent"), ENVIRONMENT)
    assert "cannot run" in seen.problem


def test_the_trial_download_is_bounded() -> None:
    def shards(*lengths: int) -> tuple[ManifestShard, ...]:
        return tuple(
            ManifestShard(file=0, offset=0, length=length, digest=Digest(bytes([number] * 32)))
            for number, length in enumerate(lengths)
        )

    half = SHARDS_BYTES_MAX // 2
    assert [shard.length for shard in choose_shards(shards(1, half, half, half))] == [half, half]
    assert [shard.length for shard in choose_shards(shards(5 * half, 1))] == [5 * half]
    assert len(choose_shards(shards(*[10] * 50))) == 50
