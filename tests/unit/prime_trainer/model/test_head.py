"""The head in tiles: autograd's values and gradients, in float32 sums, without the logits in memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from prime_trainer.model import head
from prime_trainer.model.head import score_hidden
from support.process_memory import watching_memory

TRIALS = Path(__file__).parents[3] / "support" / "processes" / "triton_head_trials.py"
TARGETS = [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)]
TYPES = {"targets": "*i64", **dict.fromkeys(("stride", "out_stride", "columns"), "i32"), "out": "*bf16"}
ROWS, WIDTH, VOCABULARY = 7, 5, 11


def make_inputs(*, has_bias: bool, dtype: Any = torch.float64) -> tuple[Any, ...]:
    torch.manual_seed(4)
    shapes = ((ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    hidden, weight, bias = (torch.randn(*shape, dtype=dtype).requires_grad_() for shape in shapes)
    temperature = torch.tensor([1.0, 0.6, 2.0, 1.0, 0.5, 1.5, 1.0], dtype=torch.float64)
    return hidden, weight, bias if has_bias else None, torch.randint(0, VOCABULARY, (ROWS,)), temperature


def score_plainly(hidden: Any, weight: Any, bias: Any, targets: Any, temperature: Any) -> tuple[Any, Any]:
    logits = hidden @ weight.T + (0 if bias is None else bias)
    log = (logits / temperature[:, None]).log_softmax(-1)
    return log.gather(-1, targets[:, None])[:, 0], -(log.exp() * log).sum(-1)


def compute_gradients(inputs: tuple[Any, ...], logp: Any, entropy: Any, *, has_entropy: bool = True) -> tuple[Any, ...]:
    pull = torch.linspace(-1, 1, ROWS, dtype=logp.dtype)
    loss = (logp * pull).sum() + ((entropy * pull**2).sum() if has_entropy else 0)
    return torch.autograd.grad(loss, [each for each in inputs[:3] if each is not None])


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("tile", [(1024, 2**20), (3, 12), (7, 7), (1, 1)], ids=str)
def test_scores_and_gradients_are_autograds_whatever_the_tile(
    has_bias: bool, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head.TILE_SHAPES, "cpu", tile)
    inputs = make_inputs(has_bias=has_bias)
    wanted, found = score_plainly(*inputs), score_hidden(*inputs)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(compute_gradients(inputs, *found), compute_gradients(inputs, *wanted))
    logp, entropy = score_hidden(*inputs, has_entropy_gradient=False)
    assert not entropy.requires_grad
    torch.testing.assert_close(
        compute_gradients(inputs, logp, entropy, has_entropy=False),
        compute_gradients(inputs, *score_plainly(*inputs), has_entropy=False),
    )


def test_frozen_head_gets_no_gradient() -> None:
    hidden, weight, _, targets, temperature = make_inputs(has_bias=False)
    logp, _ = score_hidden(hidden, weight.detach(), None, targets, temperature)
    logp.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_logits_far_apart_stay_finite() -> None:
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[1e4], [-1e4], [0.0]], requires_grad=True)
    logp, entropy = score_hidden(hidden, weight, None, torch.tensor([1]), torch.ones(1))
    (logp + entropy).sum().backward()
    assert (logp.item(), entropy.item()) == (-2e4, 0)
    assert torch.isfinite(weight.grad).all()


def test_bfloat16_factors_are_summed_in_float32_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64 on the same rounded factors. Sums in bfloat16 over these tiles would be off by 1 % and more."""
    monkeypatch.setitem(head.TILE_SHAPES, "cpu", (16, 16 * 64))
    torch.manual_seed(0)
    rows, width, vocabulary = 512, 64, 256
    hidden, weight = torch.randn(rows, width).bfloat16(), torch.randn(vocabulary, width).bfloat16()
    targets, temperature = torch.randint(0, vocabulary, (rows,)), torch.ones(rows)
    narrow = [each.float().requires_grad_() for each in (hidden, weight)]
    wide = [each.double().requires_grad_() for each in (hidden, weight)]
    with torch.autocast("cpu", torch.bfloat16):
        logp, _ = score_hidden(*narrow, None, targets, temperature, torch.bfloat16)
    wanted, _ = score_plainly(*wide, None, targets, temperature.double())
    assert logp.dtype == torch.float32
    torch.testing.assert_close(logp.double(), wanted, rtol=1e-5, atol=1e-5)
    for found, exact in zip(
        torch.autograd.grad(logp.sum(), narrow), torch.autograd.grad(wanted.sum(), wide), strict=True
    ):
        # The gradient of the logits is rounded to bfloat16 once, as a factor of the products.
        error = float((found.double() - exact).norm() / exact.norm())
        assert error < 2e-3, error


def test_logits_are_never_in_memory() -> None:
    rows, vocabulary = 256, 151_936
    hidden, weight = torch.randn(rows, 8, requires_grad=True), torch.randn(vocabulary, 8, requires_grad=True)
    targets, temperature = torch.randint(0, vocabulary, (rows,)), torch.ones(rows)
    small = torch.randn(9, 8, requires_grad=True)
    score_hidden(hidden[:1], small, None, targets[:1] % 9, temperature[:1])[0].sum().backward()
    with watching_memory() as peak:
        score_hidden(hidden, weight, None, targets, temperature)[0].sum().backward()
    assert peak.grown_bytes < 4 * rows * vocabulary / 4, "a quarter of the logits, of which the gradient is a part"


# --- The kernels for GPUs ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trials() -> dict[str, Any]:
    pytest.importorskip("triton", reason="a dependency of the tests on Linux")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, TRIALS], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", ["float32", "float32 with entropy", "bfloat16", "bfloat16 with entropy"])
def test_triton_computes_what_torch_does(case: str, trials: dict[str, dict[str, float]]) -> None:
    limit = 1e-5 if case.startswith("float32") else 1e-2
    assert trials[case]["scores"] < 1e-5
    assert trials[case]["gradients"] < limit, "in bfloat16 the interpreter rounds down"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
@pytest.mark.parametrize("kernel", ["update_rows", "differentiate_rows"])
def test_kernels_compile_for_gpus_that_are_not_here(
    kernel: str, target: tuple[str, Any, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    triton = pytest.importorskip("triton", reason="a dependency of the tests on Linux")
    from triton.backends.compiler import GPUTarget

    from prime_trainer.model import triton_kernels

    function, settings = getattr(triton_kernels, kernel), {"BLOCK": triton_kernels.BLOCK, "HAS_ENTROPY": True}
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: "constexpr" if name in settings else TYPES.get(name, "*fp32") for name in function.arg_names},
        constexprs={name: settings[name] for name in function.arg_names if name in settings},
    )
    built = triton.compile(source, target=GPUTarget(*target), options={"num_warps": triton_kernels.WARPS})
    assert built.asm["cubin" if target[0] == "cuda" else "hsaco"][:4] == b"\x7fELF"
