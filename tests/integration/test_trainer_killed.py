"""kill -9 at every place that matters, and at random ones: no step is published twice, none is lost but the running."""

import asyncio
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from safetensors.torch import save_file

from prime_protocol.wire.ids import Step
from prime_trainer.checkpoints import find_newest_checkpoint
from prime_trainer.data.batch_log import BatchLog
from prime_trainer.publish.checkpoint_delta import open_checkpoint
from support.processes.coordinator import RUN
from support.processes.killable_trainer import get_server, run
from support.processes.swarm import WAIT_S
from support.processes.trainer import Scene, running_scene
from support.processes.trainer_ranks import read_tensors
from support.training_samples import flip_bit

PLACES = [
    "prime_trainer.saver:write_checkpoint:before:1",  # the first checkpoint of all: nothing is on disk
    "prime_trainer.saver:write_checkpoint:after:1",  # it is on disk, and nobody knows
    "prime_trainer.saver:write_weights:before:1",  # its weights are not
    "prime_trainer.publish.publisher:write_to_store:after:1",  # step 0 is in the store, not in the log
    "prime_trainer.data.batch_log:fsync_path:before:1",  # a batch is on disk, nothing was learnt from it
    "prime_trainer.saver:write_weights:after:1",  # a step was learnt, and only its weights are on disk
    "prime_trainer.publish.outgoing:fsync_tree:before:1",  # its weights are half written
    "prime_trainer.checkpoints:fsync_tree:before:1",  # a checkpoint is half written
    "prime_trainer.publish.publisher:write_to_store:after:1",
    "prime_trainer.saver:write_checkpoint:after:1",
    "prime_trainer.publish.publisher:upload_file:after:1",  # the manifest is there, the entry is not
    "prime_trainer.publish.publisher:announce:before:2",  # the entry is there, and the trainer has not heard so
]
SAVING = ("--save-every-steps", "2")
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
    """The log has every step once, and the disk leads to its newest one: a checkpoint, and the batches since."""
    published = [entry["step"] for entry in await scene.entries("CheckpointPublished")]
    assert published == list(range(len(published))), f"{where}: {published}"
    latest = len(published) - 1
    saved = find_newest_checkpoint(scene.trainer / "checkpoints", max(latest, 0)).saved
    if saved is None:
        assert published == [], where
        return -1
    batches = BatchLog(scene.trainer / "batches")
    for step in range(saved.state.step + 1, latest + 1):
        assert batches.read(step) is not None, f"{where}: of step {step} there is no batch"
    return latest


async def check_end(scene: Scene) -> None:
    """What the log names last is what training goes on from, and no submission was trained on twice."""
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
    tensors = read_tensors(saved.folder)
    weights = {name.removeprefix("model."): each for name, each in tensors.items() if name.startswith("model.")}
    copy = scene.folder / "copy"
    copy.mkdir()
    save_file({name: each.bfloat16() for name, each in weights.items()}, copy / "model.safetensors")
    root = open_checkpoint(copy, RUN, Step(saved.state.step)).manifest.root
    assert entries[-1]["root"] == str(root), "what stands in the log is what can be gone on from"
    assert [facts["step"] for facts in scene.steps()] == list(range(1, saved.state.step + 1)), "each once"
    for log in scene.folder.glob("*.log"):
        assert "differ from those of step" not in log.read_text(), "the same bits each time"


async def test_trainer_may_be_killed_anywhere(tmp_path: Path) -> None:
    server, log, dice = get_server(), tmp_path / "trainer.log", random.Random(SEED)
    async with running_scene(tmp_path) as scene:
        reached = -1
        for place in PLACES:
            process = server.Process(target=run, args=(scene.words(*SAVING), log, place))
            process.start()
            assert await finish(process, log) == -signal.SIGKILL, f"{place}\n{log.read_text()[-3000:]}"
            step = await check_disk(scene, place)
            assert step >= reached, f"{place} has lost a step that was published"
            reached = step
        for _ in range(RANDOM_KILLS):
            process = server.Process(target=run, args=(scene.words(*SAVING), log))
            process.start()
            await asyncio.sleep(dice.uniform(0.3, 2.0))
            process.kill()
            await finish(process, log)
            step = await check_disk(scene, f"at random, seed {SEED}")
            assert step >= reached, f"a step that was published is lost, seed {SEED}"
            reached = step
        process = server.Process(target=run, args=(scene.words(*SAVING, "--steps", str(reached + 2)), log))
        process.start()
        assert await finish(process, log) == 0, log.read_text()[-3000:]
        await check_end(scene)


async def test_trainer_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(tmp_path: Path) -> None:
    """The log has every step once, and the steps since the older checkpoint come out bit by bit."""
    server, log = get_server(), tmp_path / "trainer.log"
    async with running_scene(tmp_path) as scene:
        words = scene.words("--save-every-steps", "1")
        process = server.Process(target=run, args=(words, log, "prime_trainer.publish.publisher:announce:before:4"))
        process.start()
        assert await finish(process, log) == -signal.SIGKILL, log.read_text()[-3000:]
        # Step 3 is in the log by then, and may not be in a signed head yet.
        saved = find_newest_checkpoint(scene.trainer / "checkpoints", 3).saved
        assert saved is not None
        flip_bit(saved.folder / "tensors" / "__0_0.distcp")
        process = server.Process(target=run, args=(scene.words("--steps", "5"), log))
        process.start()
        assert await finish(process, log) == 0, log.read_text()[-3000:]
        await check_end(scene)
        assert f"checkpoints/{saved.folder.name} is damaged" in log.read_text()
