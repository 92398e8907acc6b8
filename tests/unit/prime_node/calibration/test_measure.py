"""Engines against each other, with a small engine behind the real pipe; and the command with torch itself."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prime_lab.devnet.tiny_models import EOS_TOKEN, make_tiny_checkpoint
from prime_node.calibration.measure import (
    EMULATED,
    CalibrationPlan,
    EngineSetup,
    choose_claims,
    make_requests,
    measure,
    plan_setups,
    random_prompts,
)
from prime_node.cli.calibrate import find_engines, find_precisions, parse_numbers, task_prompts
from prime_node.cli.main import main
from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.interface import Sampling
from prime_protocol.errors import LocalError
from prime_runtime.model_files import ModelFiles

DOUBLE = str(Path(__file__).parents[3] / "support/fake_engine.py")
TORCH, VLLM = (EngineKind.TORCH, None), (EngineKind.VLLM, Path("/opt/vllm/bin/python"))


def make_plan(checkpoint: Path, setups: tuple[EngineSetup, ...], completions: int = 36) -> CalibrationPlan:
    return CalibrationPlan(
        checkpoint=checkpoint,
        setups=setups,
        completions=completions,
        sampling=Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=40),
        prompts=random_prompts(32, 2048, 1),
        seed=1,
    )


def test_every_engine_and_precision_runs_at_all_batches_and_threads() -> None:
    setups = plan_setups([TORCH, VLLM], ["float32", EMULATED], batches=[4, 64], threads=[1, 2])
    assert [str(setup) for setup in setups[:3]] == [
        "torch float32, batch 64, 1 threads",
        "torch float32, batch 4, 1 threads",
        "torch float32, batch 64, 2 threads",
    ]
    assert [setup.share for setup in setups] == [16, 4, 4, 4, 1, 1] * 2
    words = setups[-1].command(EngineConfig(device="cpu"))
    assert words[0] == "/opt/vllm/bin/python"
    assert " ".join(words[3:]).startswith("--engine vllm --device cpu --precision bfloat16-imitated --threads 2")


def test_slow_imitation_writes_less_and_no_two_setups_write_the_same(tmp_path: Path) -> None:
    setups = plan_setups([TORCH], ["float32", EMULATED], batches=[4], threads=[1])
    plan = make_plan(tmp_path, setups, completions=900)
    fast, slow = make_requests(plan, 0), make_requests(plan, 1)
    assert (len(fast), len(slow)) == (720, 180)
    assert not {order.seed for order in fast} & {order.seed for order in slow}
    assert [order.seed for order in make_requests(plan, 0)] == [order.seed for order in fast]


async def test_each_engine_reads_what_all_of_them_wrote(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", hidden=32)
    setups = plan_setups([TORCH], ["float32", "bfloat16"], batches=[4], threads=[1])
    said: list[str] = []

    def command(setup: EngineSetup, base: EngineConfig) -> list[str]:
        return [sys.executable, DOUBLE, "--precision", setup.precision]

    rows, facts = await measure(
        make_plan(checkpoint, setups), EngineConfig(start_ms=60_000), tmp_path / "engine", said.append, command
    )
    assert facts.hidden == 32
    assert list(rows) == [
        "torch float32 → torch float32",
        "torch bfloat16 → torch float32",
        "torch float32 → torch bfloat16",
        "torch bfloat16 → torch bfloat16",
    ]
    assert [sorted(row.row for row in found) for found in rows.values()] == [list(range(18))] * 4
    assert max(chunk.exponent_mismatches for found in rows.values() for row in found for chunk in row.chunks) == 0
    assert [line.split(":")[0] for line in said] == [
        *(f"written by torch {precision}, batch 4, 1 threads" for precision in ("float32", "bfloat16")),
        *(f"read by torch {precision}, batch 4, 1 threads" for precision in ("float32", "bfloat16")),
    ]


def test_each_kind_reads_every_row_once_and_the_slow_ones_read_less() -> None:
    setups = plan_setups([TORCH], ["float32", EMULATED], batches=[4, 64], threads=[1, 2])
    fast, slow = setups[0], setups[3]
    claims: list[Any] = list(range(240))
    for writer, reader_kind, share in ((fast, fast, 1), (slow, fast, 1), (slow, slow, 1), (fast, slow, 4)):
        numbers = [number for number, setup in enumerate(setups) if setup.kind == reader_kind.kind]
        read = [claim for number in numbers for claim in choose_claims(setups, number, writer, claims)]
        assert len(read) == len(set(read)) == 240 // share


async def test_an_engine_that_does_not_run_ends_the_measuring(tmp_path: Path) -> None:
    setups = plan_setups([TORCH], ["float32"], batches=[4], threads=[1])

    def command(setup: EngineSetup, base: EngineConfig) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no such engine')"]

    with pytest.raises(LocalError, match="no such engine"):
        await measure(make_plan(tmp_path, setups), EngineConfig(), tmp_path / "engine", print, command)


def test_engines_are_those_that_there_are() -> None:
    assert find_engines(EngineConfig(), None) == [TORCH]
    assert find_engines(EngineConfig(), VLLM[1]) == [TORCH, VLLM]
    assert find_engines(EngineConfig(engine=EngineKind.VLLM, python=VLLM[1]), None) == [TORCH, VLLM]
    assert find_precisions(EngineConfig(), "float32") == ["float32"]
    precisions = find_precisions(EngineConfig(device="cpu"), "bfloat16")
    assert precisions in (["float32", "bfloat16"], ["float32", EMULATED])


def test_prompts_come_from_a_task_set_where_one_is_named(tmp_path: Path) -> None:
    model = ModelFiles.open(make_tiny_checkpoint(tmp_path, prompt="^{prompt}"))
    prompts = task_prompts(model, "sort-digits?digits=3")
    assert len(prompts) == 256
    assert all(prompt.dtype == np.int32 for prompt in prompts)
    with pytest.raises(LocalError, match=r"task set juggling cannot be opened: .*no family juggling"):
        task_prompts(model, "juggling")


@pytest.mark.parametrize("text", ["", "0", "4,x", "4,,5"])
def test_wrong_numbers_are_refused(text: str) -> None:
    with pytest.raises(LocalError, match="--batch-sizes"):
        parse_numbers("--batch-sizes", text)


def test_the_command_measures_and_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, out = make_tiny_checkpoint(tmp_path / "checkpoint", eos=None), tmp_path / "tolerance.toml"
    words = ["calibrate", str(checkpoint), "--out", str(out), "--precision", "float32", "--folder", str(tmp_path / "n")]
    sizes = ["--completions", "128", "--tokens", "256", "--batch-sizes", "64", "--thread-counts", "1"]
    assert main([*words, *sizes]) == 0
    said = capsys.readouterr().out
    assert "torch float32 → torch float32  1024" in said
    bounds = tomllib.loads(out.read_text())["tolerance"]
    assert bounds["precision"] == "float32"
    assert 0 < bounds["logprob_error_max"] < 0.01
    assert not (tmp_path / "n").exists(), "a calibration needs no node"


def test_the_command_refuses_before_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", context=64)
    (tmp_path / "there.toml").touch()
    words = ["calibrate", str(checkpoint), "--precision", "float32", "--folder", str(tmp_path / "node")]
    for more, problem in (
        (["--out", str(tmp_path / "there.toml")], "exists already"),
        (["--out", str(tmp_path / "no/there.toml")], "there is no folder"),
        (["--out", str(tmp_path / "new.toml")], "leave no room for 128 in 64"),
        (["--out", str(tmp_path / "new.toml"), "--false-rejects", "2"], "false_rejects is 2"),
    ):
        assert main([*words, *more]) == 1
        assert problem in capsys.readouterr().err
