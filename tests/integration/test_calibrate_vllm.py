"""Files of torch, of vLLM and of vLLM over two processes are read by each other, as those of three machines would be.

Every engine starts twice, so it takes minutes: SLOW_TESTS=1.
"""

import os
from pathlib import Path

import pytest

from prime_node.calibration.files import CalibrationFile, MeasuredModel
from prime_node.calibration.measure import (
    CalibrationPlan,
    CalibrationSite,
    plan_setups,
    random_prompts,
    read_completions,
    write_completions,
)
from prime_node.cli.calibrate_merge import collect_pairs
from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.interface import Sampling
from prime_node.jobs.examination import compute_checkpoint_root
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.tolerance import Precision
from prime_runtime.model_files import ModelFiles
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.engine_claims import FLOAT32, VLLM
from support.job_setup import KEY

pytestmark = [
    pytest.mark.skipif(not (VLLM / "bin/python").exists(), reason="vLLM is not installed: make .vllm/ready"),
    pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="starts vLLM four times: SLOW_TESTS=1"),
]
TOKENS = 64


async def test_torch_and_vllm_on_one_process_and_two_are_three_classes_that_agree(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", heads=4, kv_heads=2, hidden=128, eos=None)
    model = ModelFiles.open(checkpoint)
    engines = [(EngineKind.TORCH, None), (EngineKind.VLLM, VLLM / "bin/python")]
    setups = plan_setups(engines, ["float32"], batches=[8], threads=[1], splits=[1, 2])
    assert [setup.kind for setup in setups] == ["torch float32", "vllm float32", "vllm float32 over 2"]
    variables = (f"VLLM_CACHE_ROOT={VLLM / 'cache'}",)
    said: list[str] = []
    (tmp_path / "out").mkdir()
    site = CalibrationSite(
        base=EngineConfig(device="cpu", variables=variables, start_ms=900_000, stall_ms=600_000),
        engine_folder=tmp_path / "engine",
        out=tmp_path / "out",
        key=KEY,
        now_ms=1,
        print_line=said.append,
    )
    plan = CalibrationPlan(
        checkpoint=checkpoint,
        setups=setups,
        completions=24,
        sampling=Sampling(temperature=1.0, eos=frozenset(), tokens_max=TOKENS),
        prompts=random_prompts(model.vocabulary, model.context_max, 1),
        seed=1,
    )
    measured = MeasuredModel(
        weights=compute_checkpoint_root(checkpoint),
        model_files=model.digest,
        precision=Precision.FLOAT32,
        temperature=1.0,
        eos=(),
        tokens_max=TOKENS,
    )
    written = [CalibrationFile.open(path) for path in await write_completions(plan, measured, site)]
    read = await read_completions(written, setups, checkpoint, site, slow_rows=8)
    assert not [line for line in said if "left out" in line]
    pairs = collect_pairs([CalibrationFile.open(path) for path in read], frozenset())
    names = sorted({pair.generating for pair in pairs})
    assert [name.partition("/")[2].split("/")[0].split("-")[0] for name in names] == ["torch", "vllm", "vllm"]
    assert [name.rpartition("/")[2] for name in names] == ["tp1", "tp1", "tp2"]
    assert "cpu-attn" in names[1]
    assert len(pairs) == 9
    for pair in pairs:
        rows = [row for file in pair.files for row in file.iterate_measurements()]
        assert len(rows) == 8
        assert weigh_rows(rows, FLOAT32)[1] == [], str(pair)
