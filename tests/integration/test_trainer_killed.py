"""kill -9 at every place that matters, and at random ones: no step is published twice, none is lost but the running."""

import asyncio
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from prime_protocol.wire.ids import Step
from prime_trainer.checkpoints import find_newest_checkpoint
from prime_trainer.publish.checkpoint_delta import open_checkpoint
from prime_trainer.publish.publisher import make_bf16_copy
from support.processes.coordinator import RUN
from support.processes.killable_trainer import get_server, run
from support.processes.swarm import WAIT_S
from support.processes.trainer import Scene, running_scene
from support.training_samples import flip_bit

PLACES = [
    "prime_trainer.train:save_checkpoint:before:1",  # the first checkpoint of all: nothing is on disk
    "prime_trainer.train:save_checkpoint:after:1",  # it is on disk, and nobody knows
    "prime_trainer.publish.publisher:write_to_store:after:1",  # it is in the store, not in the log
    "prime_trainer.train:save_checkpoint:before:1",  # a step was learnt, nothing of it is on disk
    "prime_trainer.checkpoints:fsync_tree:before:1",  # its checkpoint is half written
    "prime_trainer.train:save_checkpoint:after:1",
    "prime_trainer.publish.publisher:upload_file:after:1",  # the manifest is there, the entry is not
    "prime_trainer.publish.publisher:announce:before:2",  # the entry is there, and the trainer has not heard so
]
HEAD_WAITS = 50
RANDOM_KILLS = 2
SEED = 20_260_616


async def finish(process: ForkServerProcess, log: Path | None = None) -> int:
    """Its exit code."""
    began = time.monotonic()
    while process.is_alive():
        assert time.monotonic() - began < WAIT_S, log.read_text()[-3000:] if log else "it hangs"
        await asyncio.sleep(0.02)
    assert process.exitcode is not None
    return process.exitcode


async def check_disk(scene: Scene, where: str) -> int:
    """What is on disk is whole, and the log is at its step or at the one before."""
    published = [entry["step"] for entry in await scene.entries("CheckpointPublished")]
    assert published == list(range(len(published))), f"{where}: {published}"
    saved = find_newest_checkpoint(scene.trainer / "checkpoints").saved
    if saved is None:
        assert published == [], where
        return -1
    assert saved.state.step in (len(published) - 1, len(published)), f"{where}: {saved.state.step}, {published}"
    return saved.state.step


async def check_end(scene: Scene) -> None:
    saved = find_newest_checkpoint(scene.trainer / "checkpoints").saved
    assert saved is not None
    entries = await scene.entries("CheckpointPublished")
    for _ in range(HEAD_WAITS):
        if len(entries) > saved.state.step:
            break
        await asyncio.sleep(0.1)  # the entry is in the log, and no head covers it yet
        entries = await scene.entries("CheckpointPublished")
    assert [entry["step"] for entry in entries] == list(range(saved.state.step + 1))
    trained = [name for entry in entries for name in entry["trained_on"]]
    assert len(set(trained)) == len(trained)
    copy = make_bf16_copy(saved.model, scene.folder / "copy")
    root = open_checkpoint(copy, RUN, Step(saved.state.step)).manifest.root
    assert entries[-1]["root"] == str(root), "what stands in the log is what can be gone on from"
    assert [facts["step"] for facts in scene.steps()] == list(range(1, saved.state.step + 1)), "each once"


async def test_trainer_may_be_killed_anywhere(tmp_path: Path) -> None:
    server, log, dice = get_server(), tmp_path / "trainer.log", random.Random(SEED)
    async with running_scene(tmp_path) as scene:
        reached = -1
        for place in PLACES:
            process = server.Process(target=run, args=(scene.words(), log, place))
            process.start()
            assert await finish(process, log) == -signal.SIGKILL, f"{place}\n{log.read_text()[-3000:]}"
            step = await check_disk(scene, place)
            assert step >= reached, f"{place} has lost a step that was on disk"
            reached = step
        for _ in range(RANDOM_KILLS):
            process = server.Process(target=run, args=(scene.words(), log))
            process.start()
            await asyncio.sleep(dice.uniform(0.3, 2.0))
            process.kill()
            await finish(process, log)
            step = await check_disk(scene, f"at random, seed {SEED}")
            assert step >= reached, f"a step that was on disk is lost, seed {SEED}"
            reached = step
        process = server.Process(target=run, args=(scene.words("--steps", str(reached + 2)), log))
        process.start()
        assert await finish(process, log) == 0, log.read_text()[-3000:]
        await check_end(scene)


async def test_trainer_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(tmp_path: Path) -> None:
    """Whether its step was published or not: the log has every step once, and what stands in it can be gone on from."""
    server, log = get_server(), tmp_path / "trainer.log"
    async with running_scene(tmp_path) as scene:
        for place, damaged in (
            ("prime_trainer.publish.publisher:write_to_store:after:3", "step-00000002/optimizer.safetensors"),
            ("prime_trainer.publish.publisher:announce:before:2", "step-00000003/model/model.safetensors"),
        ):
            process = server.Process(target=run, args=(scene.words(), log, place))
            process.start()
            assert await finish(process, log) == -signal.SIGKILL, f"{place}\n{log.read_text()[-3000:]}"
            flip_bit(scene.trainer / "checkpoints" / damaged)
        process = server.Process(target=run, args=(scene.words("--steps", "5"), log))
        process.start()
        assert await finish(process, log) == 0, log.read_text()[-3000:]
        await check_end(scene)
        text = log.read_text()
        for name in ("step-00000002", "step-00000003"):
            assert f"checkpoints/{name} is damaged" in text
