"""Engines against each other, with a small engine behind the real pipe; and the command with torch itself."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prime_node.calibration.files import CalibrationFile, MeasuredModel
from prime_node.calibration.measure import (
    DECOY_SEED,
    EMULATED,
    CalibrationPlan,
    CalibrationSite,
    EngineSetup,
    make_requests,
    plan_setups,
    random_prompts,
    read_completions,
    write_completions,
)
from prime_node.cli.calibrate import find_engines, find_precisions, parse_numbers, task_prompts
from prime_node.cli.calibrate_merge import collect_pairs
from prime_node.cli.main import main
from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.interface import Sampling
from prime_protocol.errors import LocalError
from prime_protocol.proofs.class_bounds import parse_class_bounds
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.wire.ids import NodeId
from prime_runtime.model_files import ModelFiles
from prime_trainer.model.tiny import EOS_TOKEN, make_tiny_checkpoint
from support.job_setup import KEY

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


def make_site(tmp_path: Path, said: list[str], broken: str = "nothing") -> CalibrationSite:
    def command(setup: EngineSetup, base: EngineConfig) -> list[str]:
        if setup.precision == broken:
            return [sys.executable, "-c", "raise SystemExit('no such engine')"]
        return [sys.executable, DOUBLE, "--precision", setup.precision]

    (tmp_path / "out").mkdir(exist_ok=True)
    return CalibrationSite(
        base=EngineConfig(start_ms=60_000),
        engine_folder=tmp_path / "engine",
        out=tmp_path / "out",
        key=KEY,
        now_ms=1_000,
        print_line=said.append,
        command=command,
    )


def measured_model(plan: CalibrationPlan) -> MeasuredModel:
    return MeasuredModel(
        weights=DECOY_SEED,
        model_files=DECOY_SEED,
        precision=Precision.FLOAT32,
        temperature=plan.sampling.temperature,
        eos=tuple(plan.sampling.eos),
        tokens_max=plan.sampling.tokens_max,
    )


async def test_every_class_reads_what_every_class_wrote_and_a_broken_setup_is_left_out(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", hidden=32)
    setups = plan_setups([TORCH], ["bfloat16", "float32", EMULATED], batches=[4, 8], threads=[1])
    plan, said = make_plan(checkpoint, setups), []
    site = make_site(tmp_path, said, broken=EMULATED)
    written = [CalibrationFile.open(path) for path in await write_completions(plan, measured_model(plan), site)]
    classes = [f"cpu/numpy-1.26/none/{precision}/tp1" for precision in ("bfloat16", "float32")]
    assert [file.header.writer.engine_class for file in written] == classes
    assert sum("left out torch bfloat16-imitated" in line and "no such engine" in line for line in said) == 2
    numbers = [[claim.sequence.number for claim in file.iterate_claims()] for file in written]
    assert numbers == [list(range(file.rows)) for file in written], "rows of several setups have numbers of their own"
    paths = await read_completions(written, setups, checkpoint, site, slow_rows=3)
    read = [CalibrationFile.open(path) for path in paths]
    pairs = collect_pairs(read, frozenset())
    assert [(pair.generating, pair.judging) for pair in pairs] == [(g, j) for g in classes for j in classes]
    for pair in pairs:
        (source,) = (file for file in written if file.header.writer.engine_class == pair.generating)
        rows = [row for file in pair.files for row in file.iterate_measurements()]
        assert sorted(row.row for row in rows) == list(range(source.rows))
        assert max(chunk.exponent_mismatches for row in rows for chunk in row.chunks) == 0
    with pytest.raises(LocalError, match="measure the same completions with the same engine"):
        collect_pairs([*read, replace(read[0], path=Path("copy"))], frozenset())
    with pytest.raises(LocalError, match="who is not among --authors"):
        collect_pairs(read, frozenset({NodeId(bytes(20))}))
    with pytest.raises(LocalError, match="`merge` takes measurements"):
        collect_pairs(written, frozenset())


async def test_a_machine_on_which_nothing_runs_is_told_why(tmp_path: Path) -> None:
    setups = plan_setups([TORCH], ["float32"], batches=[4], threads=[1])
    plan, said = make_plan(make_tiny_checkpoint(tmp_path / "checkpoint"), setups), []
    with pytest.raises(LocalError, match="no setup of this machine can run the model"):
        await write_completions(plan, measured_model(plan), make_site(tmp_path, said, broken="float32"))
    assert "no such engine" in said[0]
    assert list((tmp_path / "out").iterdir()) == []


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


def test_one_machine_is_calibrated_with_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, out = make_tiny_checkpoint(tmp_path / "checkpoint", eos=None), tmp_path / "tolerance.toml"
    words = ["calibrate", "machine", str(checkpoint), "--out", str(out), "--precision", "float32"]
    sizes = ["--completions", "128", "--tokens", "256", "--batch-sizes", "64", "--thread-counts", "1"]
    assert main([*words, *sizes, "--folder", str(tmp_path / "n")]) == 0
    said = capsys.readouterr().out
    assert "1024" in said
    found = tomllib.loads(out.read_text())
    bounds = found["tolerance"]
    assert bounds["precision"] == "float32"
    assert 0 < bounds["logprob_error_max"] < 0.01
    (pair,) = found["class_bounds"]
    generating, _, rest = pair.partition(" > ")
    assert rest.startswith(f"{generating}:")
    assert "/torch-" in generating
    assert generating.endswith("/float32/tp1")
    assert parse_class_bounds(found["class_bounds"], Tolerance(**bounds)).classes == (generating,)
    assert not (tmp_path / "n").exists(), "a calibration needs no node"


def test_two_machines_calibrate_by_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", eos=None)
    setups = ["--batch-sizes", "64", "--thread-counts", "1", "--folder", str(tmp_path / "n")]
    sizes = ["--completions", "128", "--tokens", "256", "--precision", "float32", *setups]
    for machine in ("ann", "bob"):
        # Another machine is another seed here: the class is the same.
        seed = ["--seed", "1"] if machine == "bob" else []
        assert main(["calibrate", "write", str(checkpoint), "--out", str(tmp_path / machine), *sizes, *seed]) == 0
    written = [str(path) for machine in ("ann", "bob") for path in (tmp_path / machine).glob("*.completions")]
    assert len(written) == 2
    assert main(["calibrate", "read", str(checkpoint), *written, "--out", str(tmp_path / "ann"), *setups]) == 0
    read = [str(path) for path in (tmp_path / "ann").glob("*.measurements")]
    out = tmp_path / "tolerance.toml"
    assert main(["calibrate", "merge", *read, "--out", str(out)]) == 0
    assert "2048 chunks" in out.read_text(), "both machines are of one class"
    other = make_tiny_checkpoint(tmp_path / "other", eos=None, seed=5)
    for words, problem in (
        (["read", str(other), written[0], "--out", str(tmp_path / "x"), *setups], "was written with other weights"),
        (["read", str(checkpoint), read[0], "--out", str(tmp_path / "x"), *setups], "`read` takes completions"),
        (["read", str(checkpoint), written[0], written[0], "--out", str(tmp_path / "x"), *setups], "given twice"),
        (["merge", *read, "--out", str(out)], "exists already"),
        (["merge", *read, "--out", str(tmp_path / "y.toml"), "--authors", "0x" + "00" * 20], "not among --authors"),
    ):
        capsys.readouterr()
        assert main(["calibrate", *words]) == 1
        assert problem in capsys.readouterr().err


def test_the_command_refuses_before_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", context=64)
    (tmp_path / "there.toml").touch()
    words = ["calibrate", "machine", str(checkpoint), "--precision", "float32", "--folder", str(tmp_path / "node")]
    for more, problem in (
        (["--out", str(tmp_path / "there.toml")], "exists already"),
        (["--out", str(tmp_path / "no/there.toml")], "there is no folder"),
        (["--out", str(tmp_path / "new.toml")], "leave no room for 128 in 64"),
    ):
        assert main([*words, *more]) == 1
        assert problem in capsys.readouterr().err
