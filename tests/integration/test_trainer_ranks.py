"""Two processes that train together (FSDP2 over gloo) learn what one learns, and start, follow and end as one."""

import json
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from integration.test_trainer_killed import check_end, finish
from prime_lab.devnet.tiny_models import make_tiny_checkpoint
from prime_trainer.model.distributed import RankGroup
from support.processes.killable_trainer import get_server, run_rank
from support.processes.trainer import running_scene
from support.processes.trainer_ranks import STEPS, learn_and_resume, learn_in_rank

SAME = ("tokens", "loss", "entropy", "mismatch_kl", "kl", "gradient_norm", "clipped")


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_two_ranks_learn_what_one_learns_and_resume_as_one_does(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path / "model", hidden=32, layers=2)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    server, port = get_server(), find_port()
    pair = [server.Process(target=learn_in_rank, args=(tmp_path / "two", rank, 2, port)) for rank in range(2)]
    for process in pair:
        process.start()
    alone = learn_and_resume(tmp_path / "one", RankGroup())
    for process in pair:
        assert await finish(process) == 0
    together = json.loads((tmp_path / "two" / "facts.json").read_text())
    assert len(together) == len(alone) == 2 * STEPS
    for step, (one, two) in enumerate(zip(alone, together, strict=True), 1):
        assert {name: two[name] for name in SAME} == pytest.approx(
            {name: one[name] for name in SAME}, rel=1e-3, abs=1e-5
        ), f"step {step}"
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        mine, theirs = (load_file(tmp_path / each / f"step-{2 * STEPS:08}" / name) for each in ("one", "two"))
        assert mine.keys() == theirs.keys()
        for tensor in mine:
            torch.testing.assert_close(theirs[tensor], mine[tensor], rtol=1e-3, atol=1e-4, msg=tensor)


async def test_trainer_of_two_ranks_publishes_as_one(tmp_path: Path) -> None:
    server, port = get_server(), find_port()
    async with running_scene(tmp_path) as scene:
        logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
        pair = [
            server.Process(target=run_rank, args=(scene.words("--steps", "3"), logs[rank], rank, 2, port))
            for rank in range(2)
        ]
        for process in pair:
            process.start()
        for process, log in zip(pair, logs, strict=True):
            assert await finish(process, log) == 0, log.read_text()[-3000:]
        await check_end(scene)
    assert len(scene.steps()) == 3
