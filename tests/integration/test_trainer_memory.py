"""A trainer's memory does not grow with its steps. It takes a minute or more: only with SLOW_TESTS=1."""

import asyncio
import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from prime_trainer import metrics as notes
from prime_trainer.app import WORKER_THREADS
from support.process_memory import read_anon_kb
from support.processes.killable_trainer import get_server, run
from support.processes.trainer import Scene, running_scene

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="takes minutes: SLOW_TESTS=1"),
]

STEPS, WARM = 90, 45
"""By the step WARM caches are filled: what is listed, what the log said of the last steps, one model for every try."""
SLOTS, SAMPLES, GROUPS = 16, 16, 12
OBJECTS_MAX = 3_000
"""A step learns from about 200 samples: kept, they would be 9,000 more after 45 steps. A few hundred come and go."""
ANON_MB_MAX = 10
HELD_OUT = (
    *("--evaluation-task-set", "sort-digits?seed=1", "--evaluation-every", "3"),
    *("--evaluation-tasks", "8", "--evaluation-tokens-max", "8"),
)
FLAGS = (*HELD_OUT, "--steps", str(STEPS), "--batch-groups", str(GROUPS))


def run_weighed(words: tuple[str, ...], log: Path, out: Path) -> None:
    """The command, writing down after every step what the process holds."""
    write = notes.MetricsLog.write_step

    def weigh(self: notes.MetricsLog, facts: dict[str, Any]) -> None:
        write(self, facts)
        gc.collect()
        workers = sum(thread.name.startswith("trainer") for thread in threading.enumerate())
        row = {
            "step": facts["step"],
            "objects": len(gc.get_objects()),
            "anon_mb": read_anon_kb() // 1024,
            "workers": workers,
        }
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    notes.MetricsLog.write_step = weigh  # type: ignore[method-assign]
    run(words, log)


def read_rows(out: Path) -> dict[int, dict[str, int]]:
    lines = out.read_text().splitlines() if out.exists() else []
    return {row["step"]: row for row in map(json.loads, lines)}


async def weigh_steps(scene: Scene, folder: Path) -> dict[int, dict[str, int]]:
    log, out = folder / "trainer.log", folder / "weighed.jsonl"
    process = get_server().Process(target=run_weighed, args=(scene.words(*FLAGS), log, out))
    process.start()
    while process.is_alive():
        await asyncio.sleep(0.2)
    assert process.exitcode == 0, log.read_text()[-3000:]
    return read_rows(out)


async def test_memory_of_a_trainer_does_not_grow_with_its_steps(tmp_path: Path) -> None:
    async with running_scene(tmp_path, slots_per_step=SLOTS, samples_per_slot=SAMPLES) as scene:
        rows = await weigh_steps(scene, tmp_path)
    warm = [rows[step] for step in range(WARM - 5, WARM + 1)]
    last = [rows[step] for step in range(STEPS - 5, STEPS + 1)]
    for name, limit in (("objects", OBJECTS_MAX), ("anon_mb", ANON_MB_MAX)):
        grown = min(row[name] for row in last) - min(row[name] for row in warm)
        assert grown <= limit, f"{grown} more {name} after {STEPS - WARM} steps: {warm[-1]}, {last[-1]}"
    assert max(row["workers"] for row in rows.values()) <= WORKER_THREADS
