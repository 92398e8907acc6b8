"""The devnet, as `make demo` runs it, every party a process of its own. It takes minutes: only with SLOW_TESTS=1."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="takes minutes: SLOW_TESTS=1"),
]


async def play(folder: Path, *words: str) -> dict[str, float]:
    """The numbers of the last line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "prime_coordinator.cli.main", "devnet", "--folder", str(folder), "--exit", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    text = (await process.communicate())[0].decode()
    assert process.returncode == 0, text[-3000:]
    last = text.splitlines()[-1]
    assert last.startswith("RESULT "), text[-3000:]
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", last)}


async def test_the_demonstration_keeps_what_it_promises(tmp_path: Path) -> None:
    found = await play(tmp_path / "net")
    assert found["reward_before"] < 0.3
    assert found["reward_after"] > 0.8
    assert (found["dishonest_trained"], found["honest_slashed"], found["cheaters_slashed"]) == (0, 0, 1)
    assert found["log_verified"] == 1


async def test_a_recurrent_model_is_generated_audited_and_trained(tmp_path: Path) -> None:
    """No keys and values anywhere: workers and validators carry the state of the recurrence from token to token."""
    folder = tmp_path / "net"
    found = await play(folder, "--model", "recurrent", "--steps", "4", "--slots", "16", "--nodes", "2")
    assert (found["dishonest_trained"], found["honest_slashed"], found["cheaters_slashed"]) == (0, 0, 1)
    steps = [json.loads(line) for line in (folder / "trainer" / "steps.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert all(step["is_applied"] and step["mismatch_kl"] < 0.1 for step in steps), "log-probs are those of the worker"
    last = folder / "trainer" / "checkpoints" / "step-00000004" / "model"
    assert json.loads((last / "config.json").read_text())["architectures"] == ["MambaForCausalLM"]
