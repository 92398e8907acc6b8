"""Claims about the Triton sampler, of which no GPU is needed: it computes what numpy does, and compiles for GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.logits import CASES

pytest.importorskip("triton", reason="a dependency of the tests on Linux")

TRIALS = Path(__file__).parents[4] / "support" / "processes" / "triton_trials.py"
TARGETS = [("cuda", 80, 32), ("cuda", 89, 32), ("cuda", 90, 32), ("hip", "gfx90a", 64), ("hip", "gfx942", 64)]
TYPES = {
    "logits": "*fp32",
    **dict.fromkeys(("seeds", "positions", "tokens"), "*i64"),
    **dict.fromkeys(("tops", "sums", "bests"), "*fp32"),
    "out": "*fp64",
    **dict.fromkeys(("stride", "vocabulary", "blocks"), "i32"),
    "temperature_bits": "i64",
}


@pytest.fixture(scope="module")
def trials() -> dict[str, dict[str, Any]]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, TRIALS], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_winners_and_margins_are_bit_by_bit_numpys(name: str, trials: dict[str, dict[str, Any]]) -> None:
    assert trials[name]["winners"]
    assert trials[name]["margins"]
    assert trials[name]["logprobs"] < 1e-6


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
@pytest.mark.parametrize("kernel", ["scan_blocks", "finish_rows"])
def test_kernels_compile_for_gpus_that_are_not_here(
    kernel: str, target: tuple[str, Any, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    import triton
    from triton.backends.compiler import GPUTarget

    from prime_node.engine.torch import triton_kernels

    function = getattr(triton_kernels, kernel)
    settings = {"BLOCK": triton_kernels.BLOCK, "BLOCKS": 64, "HAS_NOISE": True, "HAS_TOKENS": True}
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: TYPES.get(name, "constexpr") for name in function.arg_names},
        constexprs={name: settings[name] for name in function.arg_names if name in settings},
    )
    built = triton.compile(source, target=GPUTarget(*target), options={"num_warps": triton_kernels.WARPS})
    binary = built.asm["cubin" if target[0] == "cuda" else "hsaco"]
    assert binary[:4] == b"\x7fELF"
    assert b"double" in built.asm["llir"].encode(), "near-winners are computed in float64"
