"""`prime-trainer start` beside a real coordinator: it learns from what was accepted, and from nothing else."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from prime_runtime.lock import read_lock_info
from support.processes.swarm import Command, run_command, until
from support.processes.trainer import Scene, running_scene

HELD_OUT = (
    *("--evaluation-task-set", "sort-digits?seed=1", "--evaluation-every", "2"),
    *("--evaluation-tasks", "8", "--evaluation-tokens-max", "8"),
)


async def check_lineage(scene: Scene, steps: int) -> None:
    """Steps in order, each from submissions that were accepted, none of them twice, the bad one never."""
    published = await scene.entries("CheckpointPublished")
    assert [entry["step"] for entry in published] == list(range(steps + 1))
    # Not applied: a gradient far beyond the usual, as answers drawn at random have now and then; and none, where the
    # run had no slot left to give out and nothing new was accepted.
    applied = {facts["step"] for facts in scene.steps() if facts["is_applied"]}
    assert len(applied) > steps // 2
    moved = {after["step"] for before, after in pairwise(published) if before["root"] != after["root"]}
    assert moved == applied, "every step whose gradient was applied has moved the weights, and no other"
    trained = [name for entry in published for name in entry["trained_on"]]
    assert published[0]["trained_on"] == []
    assert applied <= {entry["step"] for entry in published if entry["trained_on"]}
    assert len(set(trained)) == len(trained)
    bad = {str(name) for lease, name in scene.hands.submitted.items() if lease in scene.hands.bad}
    assert bad, "the bad file was never sent"
    settled = [each for entry in await scene.entries("Settled") for each in entry["settled"]]
    accepted = {each["submission"] for each in settled if each["outcome"] == "accept"}
    assert bad <= accepted, "its validator let it pass"
    assert set(trained) <= accepted - bad


async def check_numbers(scene: Scene, steps: int) -> None:
    """Every step's stand in the log once, as the trainer has written them down; held-out rewards where it was told."""
    told = {
        entry["step"]: {each["name"]: each["value"] for each in entry["metrics"]} for entry in await measured(scene)
    }
    assert sorted(told) == list(range(steps + 1))
    assert told[0].keys() == {"held_out", "held_out_tasks"}, "nothing was learnt for the first one"
    assert [step for step in told if "held_out" in told[step]] == [
        step for step in told if step % 2 == 0 or step == steps
    ]
    for facts in scene.steps():
        assert told[facts["step"]]["reward_mean"] == facts["reward_mean"]
        assert told[facts["step"]]["tokens"] == facts["tokens"]


async def measured(scene: Scene) -> list[dict[str, Any]]:
    entries = await scene.entries("StepMeasured")
    return sorted(entries, key=lambda entry: int(entry["step"]))


async def test_trainer_learns_publishes_answers_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        scene.hands.bad.add(1)
        trainer = Command(("prime-trainer", *scene.words(*HELD_OUT)))
        await trainer.start()
        await until(lambda: len(scene.steps()) >= 3, "three steps", lambda: trainer.tail)
        code, text = await run_command("prime-trainer", *scene.words())
        assert code == 1, text
        assert "another trainer runs in" in text
        code, text = await run_command("prime-trainer", "status", "--folder", str(scene.trainer), "--json")
        assert code == 0, text
        report = json.loads(text)
        assert report["step"] >= 3
        assert report["submissions_refused"] == {"prompt_tokens": 1}
        async with aiohttp.ClientSession() as session:
            url = read_lock_info(scene.trainer / "lock")["url"]
            async with session.get(f"{url}/metrics") as response:
                assert "prime_trainer_last_mismatch_kl" in await response.text()
            async with session.post(f"{url}/stop") as response:
                assert response.status == 403, "not without the token"
        code, text = await run_command("prime-trainer", "stop", "--folder", str(scene.trainer))
        assert (code, text) == (0, "stopped")
        assert await trainer.finish() == 0, trainer.tail
        steps = scene.steps()[-1]["step"]
        await check_lineage(scene, steps)
        again = Command(("prime-trainer", *scene.words(*HELD_OUT, "--steps", str(steps + 4))))
        await again.start()
        assert await again.finish() == 0, again.tail
        await check_lineage(scene, steps + 4)
        await check_numbers(scene, steps + 4)
    facts = scene.steps()
    assert [each["step"] for each in facts] == list(range(1, steps + 5))
    assert all(each["is_applied"] and each["tokens"] > 0 and each["lag_max"] <= 2 for each in facts)
    assert all(before["at_ms"] <= after["at_ms"] for before, after in pairwise(facts))
    code, text = await run_command("prime-trainer", "status", "--folder", str(scene.trainer))
    assert (code, "is not running" in text) == (4, True)
