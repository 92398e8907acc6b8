"""A coordinator's memory hardly grows with its log. It takes two minutes: only with SLOW_TESTS=1."""

import asyncio
import os
from pathlib import Path

import pytest

from support.process_memory import read_anon_kb
from support.processes.coordinator import party, publish
from support.processes.trainer import running_scene

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="takes minutes: SLOW_TESTS=1"),
]

STEPS, WARM = 400, 200
ENTRY_KB_MAX = 2.0
"""Of every step its checkpoint is remembered, and of every entry its hash."""


async def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, party(scene.coordinator, "trainer") as trainer:
        process, seen = scene.coordinator._process, {}
        assert process is not None
        for step in range(STEPS + 1):
            await publish(trainer, step)
            await asyncio.sleep(0.2)
            if step in (20, WARM, STEPS):
                url = f"{scene.coordinator.server.url}/api/v1/status"
                async with scene.hands.worker.session.get(url) as response:
                    entries = (await response.json())["entries"]
                seen[step] = (entries, read_anon_kb(process.pid))
    (early, early_kb), (half, half_kb), (end, end_kb) = seen.values()
    grown_kb = (end_kb - half_kb) / (end - half)
    print(f"{early_kb} kB with {early} entries, {half_kb} with {half}, {end_kb} with {end}: {grown_kb:.2f} kB an entry")
    assert grown_kb < ENTRY_KB_MAX
