"""Claims about `prime-node selftest`: it runs everywhere, and says what is wrong with a machine."""

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from prime_node.cli.main import main
from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.selftest.report import find_problems, list_lines
from prime_node.selftest.session import EngineVariant, SelftestPlan, run_probe
from prime_protocol.proofs.tolerance import Precision
from support.engine_claims import VLLM

slow = pytest.mark.skipif(
    not os.environ.get("SLOW_TESTS") or not (VLLM / "bin/python").exists(), reason="starts vLLM: SLOW_TESTS=1"
)


def run(folder: Path, *flags: str) -> dict[str, Any]:
    words = ["selftest", "--engine-device", "cpu", "--sequences", "2", "--tokens", "40", *flags]
    assert main([*words, "--folder", str(folder / "node"), "--out", str(folder / "selftest.json")]) == 0
    found: dict[str, Any] = json.loads((folder / "selftest.json").read_text())
    return found


def test_on_a_cpu_it_tries_what_it_tries_on_a_gpu_with_small_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(tmp_path)
    assert report["problems"] == []
    assert list(report["engines"]) == ["torch float32", "torch bfloat16-imitated"]
    exact = report["engines"]["torch float32"]
    assert exact["kernels"]["ok"]
    assert exact["transformers"]["losers"] == 0
    assert exact["transformers"]["logprob_error_max"] < 1e-4
    assert exact["tokens_per_s"] > 0
    assert exact["tokens_per_s_without_proofs"] > 0
    assert any(line.startswith("torch ") for line in exact["software"])
    pairs = {(pair["writer"], pair["reader"]): pair for pair in report["pairs"]}
    assert len(pairs) == 4
    noisy = pairs["torch bfloat16-imitated", "torch float32"]
    assert noisy["logprob_error_mean"] > 10 * pairs["torch float32", "torch float32"]["logprob_error_mean"]
    assert noisy["tokens"] == 80
    assert report["machine"]["memory"]["total_bytes"] > 0
    shown = capsys.readouterr().out
    assert "torch float32: sampling kernels" in shown
    assert "vllm" in report["left_out"]
    assert main(["selftest", "--out", str(tmp_path / "selftest.json")]) == 1, "a report is never overwritten"
    check_what_it_says_about_faults(report)


def check_what_it_says_about_faults(report: dict[str, Any]) -> None:
    """The same report with one fault after the other."""
    for fault, wanted in (
        (lambda r: r["engines"]["torch float32"]["kernels"].update(ok=False), "the sampling kernels differ from numpy"),
        (lambda r: r["pairs"][0].update(problem="margin of row 3"), "torch float32 → torch float32: margin of row 3"),
        (lambda r: r["engines"]["torch float32"].update(transformers={"problem": "no"}), "transformers: no"),
        (lambda r: r["engines"].update({"torch float32": {"problem": "it died"}}), "torch float32: it died"),
    ):
        damaged = deepcopy(report)
        fault(damaged)
        (problem,) = find_problems(damaged)
        assert wanted in problem
        assert len(list(list_lines(damaged))) >= 9


async def test_an_engine_that_cannot_start_is_reported(tmp_path: Path) -> None:
    plan = SelftestPlan(
        checkpoint=tmp_path,
        engines=(),
        left_out={},
        precision=Precision.BFLOAT16,
        sequences=1,
        tokens=1,
        vocabulary=9,
        rows=1,
        machine={},
    )
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    python.chmod(0o755)
    found = await run_probe(plan, EngineVariant(EngineKind.VLLM, "float32", python), EngineConfig(), tmp_path)
    assert found == {"problem": "exit code 3: no such library"}


@slow
@pytest.mark.timeout(900)
def test_vllm_is_compared_with_torch_where_it_is_installed(tmp_path: Path) -> None:
    report = run(tmp_path, "--vllm-python", str(VLLM / "bin/python"))
    assert report["problems"] == []
    assert len(report["pairs"]) == 16
    assert report["engines"]["vllm float32"]["transformers"]["losers"] == 0
