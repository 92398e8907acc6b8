"""The vLLM engine for real, in the interpreter that has vLLM: tests/support/vllm_trials.py acts, this judges.

One process for all claims, as vLLM takes seconds to start.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prime_node.engine.config import EngineConfig
from prime_node.engine.process import build_environment
from prime_trainer.model.tiny import EOS_TOKEN, make_tiny_checkpoint
from support import interpreted_triton
from support.spliced_weights import splice_checkpoint

TESTS = Path(__file__).parents[4]
PYTHON = TESTS.parent / ".vllm/bin/python"
SHAPE: dict[str, Any] = {"heads": 2, "kv_heads": 1}
"""vLLM's attention on CPUs wants at least 32 values in a head."""
CHANGED = "model.layers.1.self_attn.k_proj.weight"
TINY = 1e-4
"""More than float32 gives on any machine, less than any other program would."""


@pytest.mark.skipif(not PYTHON.exists(), reason="vLLM is not installed: make .vllm/ready")
@pytest.mark.parametrize(
    "is_second",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="interprets kernels: SLOW_TESTS=1"),
        ),
    ],
    ids=["first runner", "second runner"],
)
@pytest.mark.timeout(900)
def test_vllm_keeps_its_record_its_tokens_and_its_weights_whatever_happens(is_second: bool, tmp_path: Path) -> None:
    found = run_trials(tmp_path, is_second=is_second)
    assert found["runner"] == ("vllm.v1.worker.cpu.model_runner" if is_second else "vllm.v1.worker.cpu_model_runner")
    check_records(found)
    check_joined(found)
    check_turns(found["turns"])
    check_shared_prompts(found)
    check_memory(found)
    check_swaps(found)
    check_refusals(found)


@pytest.mark.skipif(not PYTHON.exists(), reason="vLLM is not installed: make .vllm/ready")
@pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="starts two ranks: SLOW_TESTS=1")
@pytest.mark.timeout(900)
def test_a_split_model_whose_requests_are_put_aside_keeps_its_records(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path / "first", heads=4, kv_heads=2, hidden=128)
    found = run_script(tmp_path, {})
    assert found["put_aside"] > 0, "the cache was meant to be too small"
    check_reading(found["read"], len(found["tokens"]))
    assert found["tokens"] == found["torch"]


def run_trials(folder: Path, *, is_second: bool) -> dict[str, Any]:
    first, second = (
        make_tiny_checkpoint(folder / name, seed=seed, **SHAPE) for seed, name in enumerate(("first", "second"))
    )
    splice_checkpoint(folder / "partly", first, second, [CHANGED])
    make_tiny_checkpoint(folder / "deeper", layers=3, **SHAPE)
    make_tiny_checkpoint(folder / "small_heads", heads=4)
    return run_script(folder, interpreted_triton.VARIABLES if is_second else {}, CHANGED)


def run_script(folder: Path, variables: dict[str, str], *more: str) -> dict[str, Any]:
    # What vLLM finds out about a class of models takes it seconds, once.
    config = EngineConfig(variables=(f"VLLM_CACHE_ROOT={PYTHON.parents[1] / 'cache'}",))
    environment = {**build_environment(config, folder / "engine"), "PYTHONPATH": str(TESTS), **variables}
    if variables:
        environment["PYTHONPATH"] += f":{interpreted_triton.make_triton_folder(folder / 'with_triton')}"
    command = [str(PYTHON), str(TESTS / "support/vllm_trials.py"), str(folder), *more]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=800)
    sys.stderr.write(run.stderr[-4000:])
    assert run.returncode == 0
    # The ranks of a split model print when they end.
    found: dict[str, Any] = json.loads(next(line for line in run.stdout.splitlines()[::-1] if line[:1] == "{"))
    return found


def check_records(found: dict[str, Any]) -> None:
    """Prompts read in parts, requests put aside and a cache that knows the text: each token has its one state."""
    assert found["eos"] == [EOS_TOKEN]
    assert found["put_aside"] > 0, "the cache was meant to be too small"
    assert found["longest_prompt"] > found["step_tokens"]
    assert found["finishes"] == ["EOS", "LENGTH"]
    for name in ("long_read", "read", "greedy_read", "deeper_read"):
        check_reading(found[name], len(found["first"]))
    assert 0 < found["abandoned"] < len(found["first"])


def check_reading(seen: dict[str, Any], rows: int) -> None:
    assert len(seen["rows"]) == rows
    assert seen["problems"] == []
    assert seen["exponent_mismatches"] <= 2
    assert seen["margin"] < TINY
    assert seen["logprob_error"] < TINY


def check_shared_prompts(found: dict[str, Any]) -> None:
    """Samples of a prompt compute it once, but for the end that fills no block of the prefix cache."""
    shared = found["shared"]
    rest = shared["prompt"] % shared["block"] or shared["block"]
    assert shared["computed"] <= shared["prompt"] + (shared["samples"] - 1) * rest
    assert shared["computed"] < shared["samples"] * shared["prompt"]


def check_joined(found: dict[str, Any]) -> None:
    """Rows that join a running batch, and texts that are read beside it, change nothing for one another."""
    last = max(found["first"], key=int)
    assert found["joined"] == {number: tokens for number, tokens in found["first"].items() if number != last}
    assert found["joined_read"]["problems"] == []
    assert found["joined_read"]["margin"] < TINY
    assert found["joined_read"]["exponent_mismatches"] <= 2
    assert found["margin_meanwhile"] < TINY
    assert found["kv_tokens"] >= 512


def check_turns(turns: dict[str, Any]) -> None:
    """Rows of a forward pass that a step of the completions finished are kept for its reader."""
    assert turns["waited"] > 0, "the steps were meant to finish readings"
    assert turns["rows"] == turns["texts"]
    assert turns["margin"] < TINY
    assert turns["is_same"]
    assert turns["left"] == 0


def check_memory(found: dict[str, Any]) -> None:
    """A full device costs speed and nothing else, until not even one completion fits."""
    assert found["short_of_memory"] == found["first"]
    assert found["room_left"] == 2
    assert "not enough memory for one completion" in found["no_memory"]


def check_swaps(found: dict[str, Any]) -> None:
    assert found["second"] != found["first"]
    assert found["first_again"] == found["first"]
    assert found["partly"] == found["partly_whole"]
    assert found["partly"] != found["first"]


def check_refusals(found: dict[str, Any]) -> None:
    assert found["foreign_token"].startswith("RemoteError: rows[0]: has tokens outside")
    assert "700 prompt tokens and may generate 40 more" in found["too_long"]
    assert "Unsupported CPU attention configuration: head_dim=16" in found["small_heads"]
    assert "no checkpoint is loaded whole" in found["nothing_whole"]
