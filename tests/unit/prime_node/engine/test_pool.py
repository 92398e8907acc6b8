"""Several copies of a model in a node: real processes, a small engine behind the real pipe."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from prime_node.engine.config import EngineConfig, EngineKind, inherit_gpu_variables
from prime_node.engine.devices import EngineDevices, GpuMemory, describe_devices, list_devices, parse_devices
from prime_node.engine.interface import GenerateRequest, Sampling
from prime_node.engine.placement import ModelSize
from prime_node.engine.pool import EnginePool, list_visible_gpus, read_model_size
from prime_node.engine.process import EngineDied, build_environment
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import SystemClock
from prime_runtime.settings.schema import ConfigError
from prime_trainer.model.tiny import EOS_TOKEN, make_tiny_checkpoint

DOUBLE = str(Path(__file__).parents[3] / "support/fake_engine.py")
ROOT, OTHER = Digest(sha256(b"a checkpoint").digest()), Digest(sha256(b"another").digest())
SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=40)
REQUESTS = [GenerateRequest(number=n, prompt=np.array([1, 2, 3 + n], np.int32), seed=7 + n) for n in range(3)]
LONGEST = 64
"""Tokens of the longest sequence of these runs."""


def command(config: EngineConfig, precision: Precision) -> Sequence[str]:
    return [sys.executable, DOUBLE, "--precision", precision, "--tensor-parallel", str(config.tensor_parallel)]


class PoolFixture:
    """A pool, and a checkpoint folder whose behaviour can be set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.checkpoint = make_tiny_checkpoint(folder / "checkpoint", hidden=32, heads=4, kv_heads=4)
        self.pools: list[EnginePool] = []

    def open(self, devices: EngineDevices | None = None, **settings: object) -> EnginePool:
        config = EngineConfig(**{"start_ms": 30_000, "stall_ms": 20_000, **settings})  # type: ignore[arg-type]

        async def answer() -> EngineDevices:
            assert devices is not None
            return devices

        place = self._folder / f"engine-{len(self.pools)}"
        self.pools.append(EnginePool(config, place, SystemClock(), command=command, devices=answer))
        return self.pools[-1]

    async def run(self, pool: EnginePool, root: Digest = ROOT, checkpoint: Path | None = None) -> int:
        """Run a job; returns the process that did it."""
        place = checkpoint or self.checkpoint
        async with pool.acquire(root, place, Precision.FLOAT32, sequence_tokens=LONGEST) as session:
            found = await session.process.generate(REQUESTS, SAMPLING)
            assert len(found) == len(REQUESTS)
            return session.process.pid


@pytest.fixture
async def fixture(tmp_path: Path) -> AsyncIterator[PoolFixture]:
    made = PoolFixture(tmp_path)
    yield made
    for pool in made.pools:
        await pool.close()


async def test_callers_spread_over_the_replicas(fixture: PoolFixture) -> None:
    (fixture.checkpoint / "behaviour").write_text("slow")
    pool = fixture.open(replicas=2, device="cpu")
    running: list[int] = []
    pool.on_queue = lambda queue: running.append(queue.running)
    assert len(set(await asyncio.gather(*(fixture.run(pool) for _ in range(4))))) == 2
    assert max(running) > len(REQUESTS), "of both replicas together"
    status = pool.get_status()
    assert [copy["state"] for copy in status["replicas"]] == ["ready", "ready"]
    assert status["device"] == "cpu"


async def test_a_replica_that_dies_takes_only_its_own_jobs(fixture: PoolFixture) -> None:
    (fixture.checkpoint / "behaviour").write_text("slow")
    pool = fixture.open(replicas=2, device="cpu")
    jobs = [asyncio.create_task(fixture.run(pool)) for _ in range(2)]
    while not all(copy["state"] == "ready" for copy in pool.get_status()["replicas"]) or len(busy_pids(pool)) < 2:
        await asyncio.sleep(0.02)
    victim, survivor = busy_pids(pool)
    os.kill(victim, signal.SIGKILL)
    died, finished = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(died, EngineDied)
    assert finished == survivor
    assert not pool.is_broken()
    assert pool.get_retry_wait_ms() == 0, "the other one takes jobs"
    assert await fixture.run(pool) == survivor, "the job is done again there"
    assert pool.get_status()["restarts"] == 1
    assert "signal 9" in pool.get_status()["last_error"]
    await asyncio.sleep(0.6)
    assert len(set(await asyncio.gather(*(fixture.run(pool) for _ in range(2))))) == 2, "it has come back"


def busy_pids(pool: EnginePool) -> list[int]:
    return [copy["pid"] for copy in pool.get_status()["replicas"] if copy["pid"]]


def make_devices(model: ModelSize, *, count: int) -> EngineDevices:
    """GPUs of which one holds one sequence of this model, and no more."""
    spare = next(
        memory for memory in range(2 * 2**30, 3 * 2**30, 2**14) if model.get_kv_tokens(1, int(memory)) >= 32 * LONGEST
    )
    return EngineDevices((GpuMemory("card", int(spare / 0.85) + 2**12),) * count, has_vllm=True)


async def test_each_replica_sees_its_own_gpus_and_a_larger_model_is_split(fixture: PoolFixture, tmp_path: Path) -> None:
    larger = make_tiny_checkpoint(tmp_path / "larger", hidden=32, layers=3, heads=4, kv_heads=4)
    devices = make_devices(read_model_size(fixture.checkpoint, Precision.FLOAT32, EngineConfig()), count=4)
    pool = fixture.open(devices, gpus=("0", "2", "5", "7"))
    pids = set(await asyncio.gather(*(fixture.run(pool) for _ in range(4))))
    assert sorted(get_variable(pid, "CUDA_VISIBLE_DEVICES") for pid in pids) == ["0", "2", "5", "7"]
    assert pool.get_status()["device"] == "cuda:0,2,5,7"

    split = set(await asyncio.gather(*(fixture.run(pool, OTHER, larger) for _ in range(4))))
    assert sorted(get_variable(pid, "HIP_VISIBLE_DEVICES") for pid in split) == ["0,2", "5,7"]
    assert not any(is_running(pid) for pid in pids), "their GPUs are needed"
    assert pool.get_status()["tensor_parallel"] == 2


async def test_runs_whose_models_are_placed_alike_share_the_processes(fixture: PoolFixture, tmp_path: Path) -> None:
    larger = make_tiny_checkpoint(tmp_path / "larger", hidden=32, layers=3, heads=4, kv_heads=4)
    card = EngineDevices((GpuMemory("card", 80 * 2**30),) * 2, has_vllm=True)
    pool = fixture.open(card, gpus=("0", "1"))
    await fixture.run(pool)
    pids = set(busy_pids(pool))
    assert len(pids) == 1
    await fixture.run(pool, OTHER, larger)
    assert pids <= set(busy_pids(pool)), "their caches hold different numbers of tokens, and that is no reason to stop"


async def test_runs_with_different_placements_take_turns_and_all_finish(fixture: PoolFixture, tmp_path: Path) -> None:
    larger = make_tiny_checkpoint(tmp_path / "larger", hidden=32, layers=3, heads=4, kv_heads=4)
    devices = make_devices(read_model_size(fixture.checkpoint, Precision.FLOAT32, EngineConfig()), count=2)
    pool = fixture.open(devices, gpus=("0", "1"))
    both = [fixture.run(pool), fixture.run(pool, OTHER, larger), fixture.run(pool), fixture.run(pool, OTHER, larger)]
    assert len(await asyncio.gather(*both)) == 4


async def test_what_does_not_fit_is_said_in_one_sentence(fixture: PoolFixture) -> None:
    small = EngineDevices((GpuMemory("card", 2**30),) * 2, has_vllm=True)
    with pytest.raises(LocalError, match="a sequence of 64 tokens does not fit: over 2 of 2 GPUs"):
        await fixture.run(fixture.open(small, gpus=("0", "1")))
    with pytest.raises(LocalError, match="torch sees none"):
        await fixture.run(fixture.open(EngineDevices(), gpus=("0",)))
    card = EngineDevices((GpuMemory("card", 80 * 2**30),) * 2, has_vllm=False)
    with pytest.raises(LocalError, match="only 2 fit on the GPUs"):
        await fixture.run(fixture.open(card, gpus=("0", "1"), replicas=3))
    with pytest.raises(LocalError, match="the torch engine does not split a model"):
        await fixture.run(fixture.open(card, gpus=("0", "1"), engine=EngineKind.TORCH, tensor_parallel=2))


def test_drivers_and_schedulers_reach_the_engine_and_nothing_else_does(tmp_path: Path) -> None:
    node = {
        "CUDA_VISIBLE_DEVICES": "3,4",
        "LD_LIBRARY_PATH": "/opt/cuda/lib64",
        "ROCR_VISIBLE_DEVICES": "0",
        "PRIME_PASSWORD": "secret",
        "HTTPS_PROXY": "http://user:secret@proxy",
    }
    config = inherit_gpu_variables(EngineConfig(variables=("ROCR_VISIBLE_DEVICES=7",)), node)
    found = build_environment(config, tmp_path)
    assert found["CUDA_VISIBLE_DEVICES"] == "3,4"
    assert found["LD_LIBRARY_PATH"] == "/opt/cuda/lib64"
    assert found["ROCR_VISIBLE_DEVICES"] == "7", "a setting counts more than what is inherited"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "secret" not in " ".join(found.values())
    given = build_environment(config, tmp_path, ("4",))
    assert given["CUDA_VISIBLE_DEVICES"] == given["HIP_VISIBLE_DEVICES"] == "4"


def test_gpus_are_named_by_the_settings_else_by_the_environment_else_by_number() -> None:
    uuid = "GPU-5b1e2a6c-1111-2222-3333-444455556666"
    inherited = inherit_gpu_variables(EngineConfig(), {"HIP_VISIBLE_DEVICES": "5, 6"})
    assert list_visible_gpus(EngineConfig(gpus=("6", uuid)), 2) == ("6", uuid)
    assert list_visible_gpus(inherited, 2) == ("5", "6")
    assert list_visible_gpus(EngineConfig(), 3) == ("0", "1", "2")


@pytest.mark.parametrize(
    "bad", [{"gpus": ("all",)}, {"gpus": ("0", "0")}, {"gpus": ("0",), "device": "cpu"}, {"gpus": ("$(x)",)}]
)
def test_settings_of_gpus_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="gpus"):
        EngineConfig(**bad)  # type: ignore[arg-type]


async def test_the_interpreter_lists_what_torch_sees(tmp_path: Path) -> None:
    environment = build_environment(EngineConfig(), tmp_path)
    found = await list_devices(sys.executable, environment, tmp_path, timeout_ms=60_000)
    assert len(found.gpus) == len(describe_devices()["gpus"])
    for output in (b"", b"[]", b'{"gpus": [["a"]], "has_vllm": true}', b'{"gpus": 3, "has_vllm": true}'):
        with pytest.raises(LocalError, match="did not list its GPUs"):
            parse_devices(output)
    with pytest.raises(LocalError, match="cannot start"):
        await list_devices(str(tmp_path / "no-python"), environment, tmp_path, timeout_ms=1000)


def get_variable(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(line.decode().split("=", 1) for line in lines if line)[name]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
