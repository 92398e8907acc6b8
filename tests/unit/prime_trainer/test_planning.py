"""Plans of a rank's memory: what is traced, what is refused, and what a small model takes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_trainer import cli
from prime_trainer.planning import MemoryWishes, get_usable_bytes, judge_memory, open_config, plan_memory
from support.processes.trainer_memory import SHAPE

TRIALS = Path(__file__).parents[2] / "support" / "processes" / "trainer_memory.py"
PLAN_ERROR_MAX = 0.1
IS_SLOW = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="traces deep models: SLOW_TESTS=1")


def make_config(**changes: Any) -> Any:
    return AutoConfig.for_model("qwen2", **{**SHAPE, **changes})


@IS_SLOW
def test_a_small_model_takes_what_was_planned(tmp_path: Path) -> None:
    """The C library is told to return freed memory, as otherwise it keeps a sixth of the peak."""
    out, tokens = tmp_path / "peak.json", 512
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, str(TRIALS), str(tmp_path / "model"), str(out), str(tokens)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    wishes = MemoryWishes(ranks=1, tokens=tokens, precision=Precision.FLOAT32, device="cpu")
    planned, measured = plan_memory(make_config(), wishes), json.loads(out.read_text())["peak_bytes"]
    assert planned.total_bytes == pytest.approx(measured, rel=PLAN_ERROR_MAX), planned


@IS_SLOW
def test_a_model_of_32_billion_parameters_fits_eight_cards_with_stated_switches() -> None:
    """16,384 tokens, 80 GB. Its parts are those of 32.76 billion parameters over eight ranks."""
    memory = 80 * 10**9
    verdict = judge_memory(open_config("Qwen/QwQ-32B"), MemoryWishes(ranks=8, tokens=16_384), memory)
    assert not verdict.fits
    assert verdict.plan.parts["weights"] == pytest.approx(4 * 32.76e9 / 8, rel=1e-3)
    assert verdict.plan.parts["gradients"] == verdict.plan.parts["weights"]
    assert verdict.plan.parts["moments"] == pytest.approx(8 * 32.76e9 / 8, rel=1e-3)
    assert set(verdict.switches) <= {"offload_activations = true", "optimizer.moments = bfloat16"}
    assert verdict.switched is not None
    assert verdict.switched.total_bytes <= get_usable_bytes(memory)


@IS_SLOW
def test_layers_on_a_straight_line_are_what_a_whole_trace_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    config, wishes = make_config(num_hidden_layers=9), MemoryWishes(ranks=4, tokens=512)
    line = plan_memory(config, wishes)
    monkeypatch.setattr("prime_trainer.planning.DEPTHS", (4, 5, 9))
    assert line.total_bytes == pytest.approx(plan_memory(config, wishes).total_bytes, rel=0.005)


def test_ranks_that_share_a_pack_have_half_the_activations() -> None:
    config = make_config(num_hidden_layers=1)
    alone = plan_memory(config, MemoryWishes(ranks=4, tokens=4096))
    shared = plan_memory(config, MemoryWishes(ranks=4, tokens=4096, context=2))
    assert shared.parts["activations"] < 0.7 * alone.parts["activations"]
    with pytest.raises(LocalError, match="4 ranks cannot be 1 replicas with 3 ranks a pack"):
        plan_memory(config, MemoryWishes(ranks=4, tokens=64, context=3))


def test_command_refuses_what_cannot_fit_and_names_a_switch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_config(num_hidden_layers=1).save_pretrained(tmp_path)
    words = ["plan", str(tmp_path), "--gpus", "2", "--tokens", "512"]
    assert cli.main([*words, "--memory", "80GB", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total_bytes"]
    assert cli.main([*words, "--memory", f"{total + 2 * 10**9}B"]) == 5
    assert "it would with optimizer.moments = bfloat16" in capsys.readouterr().out
    assert cli.main([*words, "--context", "3"]) == 1
    assert cli.main([*words, "--memory", "2 horses"]) == 1
    assert cli.main(["plan", "no-such-model"]) == 1
