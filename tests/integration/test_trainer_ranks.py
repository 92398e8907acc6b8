"""Two processes that train together (FSDP2 over gloo) learn what one learns, and start, follow and end as one."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from integration.test_trainer_killed import check_end, finish
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.processes.killable_trainer import get_server, run_rank
from support.processes.swarm import WAIT_S
from support.processes.trainer import running_scene
from support.processes.trainer_ranks import STEPS, learn_and_resume, learn_in_rank, load_in_rank, read_tensors

SAME = ("tokens", "loss", "entropy", "mismatch_kl", "kl", "gradient_norm", "clipped")


REPLICAS, CONTEXT = 2, 2


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_ranks(
    folder: Path, size: int, work: Callable[..., None] = learn_in_rank, *options: int
) -> list[ForkServerProcess]:
    folder.mkdir()
    server, port = get_server(), find_port()
    ranks = [server.Process(target=work, args=(folder, rank, size, port, *options)) for rank in range(size)]
    for process in ranks:
        process.start()
    return ranks


async def check_same(alone: list[dict[str, Any]], one: Path, many: Path) -> None:
    """The numbers of every step and the last checkpoint are those of one rank."""
    together = json.loads((many / "facts.json").read_text())
    assert len(together) == len(alone) == 2 * STEPS
    for step, (mine, theirs) in enumerate(zip(alone, together, strict=True), 1):
        assert {name: theirs[name] for name in SAME} == pytest.approx(
            {name: mine[name] for name in SAME}, rel=1e-3, abs=1e-5
        ), f"step {step} of {many.name}"
    pairs = (
        [read_tensors(each / f"step-{2 * STEPS:08}") for each in (one, many)],
        [load_file(each / f"published-{2 * STEPS}" / "model.safetensors") for each in (one, many)],
    )
    for wanted, found in pairs:
        assert wanted.keys() == found.keys()
        for tensor in wanted:
            torch.testing.assert_close(found[tensor], wanted[tensor], rtol=1e-2, atol=1e-4, msg=tensor)


async def test_many_ranks_learn_what_one_learns_and_resume_as_one_does(tmp_path: Path) -> None:
    """The default group is one for cuda only, as with NCCL.

    Two ranks share the model, or each pack too; four hold two replicas of it, and two of them share a pack.
    """
    make_tiny_checkpoint(tmp_path / "model", hidden=32, layers=2)
    (tmp_path / "one").mkdir()
    two = start_ranks(tmp_path / "two", 2)
    alone = learn_and_resume(tmp_path / "one", RankGroup())
    for process in two:
        assert await finish(process) == 0
    await check_same(alone, tmp_path / "one", tmp_path / "two")
    for name, size, options in (
        ("context", 2, (1, CONTEXT)),
        ("four", 4, (REPLICAS, 1)),
        ("all", 4, (REPLICAS, CONTEXT)),
    ):
        for process in start_ranks(tmp_path / name, size, learn_in_rank, *options):
            assert await finish(process) == 0
        await check_same(alone, tmp_path / "one", tmp_path / name)


MALLOC_BYTES = 2 * 2**20
"""What the allocator and Python keep for themselves."""


@pytest.mark.parametrize("size", [2, 4])
async def test_rank_loads_no_more_than_its_shard_and_one_layer(tmp_path: Path, size: int) -> None:
    make_tiny_checkpoint(tmp_path / "model", hidden=512, layers=16)
    make_tiny_checkpoint(tmp_path / "small", hidden=32, layers=1)
    for process in start_ranks(tmp_path / "ranks", size, load_in_rank):
        assert await finish(process) == 0
    for rank in range(size):
        facts = json.loads((tmp_path / "ranks" / f"memory-{rank}.json").read_text())
        assert facts["shard"] > 4 * facts["layer"] / size, "the model is large enough to tell"
        assert facts["grown"] <= facts["shard"] + facts["layer"] + MALLOC_BYTES, f"rank {rank} of {size}: {facts}"


OUTAGE_S, COLLECTIVE_S = 8, 3
"""An outage several times as long as ranks wait in a collective of the device, as 15 minutes are for NCCL's ten."""


async def test_trainer_of_two_ranks_outlasts_an_outage_and_publishes_as_one(tmp_path: Path) -> None:
    server, port = get_server(), find_port()
    async with running_scene(tmp_path) as scene:
        logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
        words = scene.words("--steps", "4", "--ranks-collective-timeout-s", str(COLLECTIVE_S))
        pair = [server.Process(target=run_rank, args=(words, logs[rank], rank, 2, port)) for rank in range(2)]
        for process in pair:
            process.start()
        began = time.monotonic()
        while len(scene.steps()) < 1:
            assert time.monotonic() - began < WAIT_S, logs[0].read_text()[-3000:]
            await asyncio.sleep(0.02)
        scene.coordinator.freeze(is_frozen=True)
        await asyncio.sleep(OUTAGE_S)
        scene.coordinator.freeze(is_frozen=False)
        for process, log in zip(pair, logs, strict=True):
            assert await finish(process, log) == 0, log.read_text()[-3000:]
        await check_end(scene)
    assert len(scene.steps()) == 4
