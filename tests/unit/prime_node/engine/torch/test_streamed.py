"""Claims about the model that is computed layer by layer beside another engine: the same numbers, no weights kept."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prime_node.engine.interface import Sampling, TokenSequence
from prime_node.engine.torch import streamed
from prime_node.engine.torch.dense import DenseModel
from prime_node.engine.torch.dense_shape import parse_dense_shape
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.forward import CrossPrecisionModel, forward_group
from prime_node.engine.torch.model import FolderTensors
from prime_node.engine.torch.streamed import open_streamed_model
from prime_protocol.errors import LocalError
from prime_runtime.model_files import ModelFiles
from prime_trainer.model.tiny import make_recurrent_checkpoint, make_tiny_checkpoint
from support.expert_models import make_expert_checkpoint

CPU = torch.device("cpu")
SAMPLING = Sampling(temperature=1.0, eos=frozenset({12}), tokens_max=40)


def make_sequences() -> list[TokenSequence]:
    dice = np.random.default_rng(4)
    return [
        TokenSequence(
            number=number,
            prompt=dice.integers(0, 32, 5 + number).astype(np.int32),
            output=dice.integers(0, 32, 40).astype(np.int32),
            seed=number,
        )
        for number in range(3)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["beside float32", "beside bfloat16"])
@pytest.mark.parametrize(("family", "head"), [("qwen2", "model"), ("qwen3", "model"), ("qwen3", "float32")])
def test_it_computes_what_a_loaded_model_does(
    family: str, head: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "HEAD_ROWS", 7)
    folder = make_tiny_checkpoint(tmp_path, family=family, layers=3, tied=family == "qwen2", head_dtype=head)
    files, tensors = ModelFiles.open(folder), FolderTensors.open(folder)
    loaded = CrossPrecisionModel(DenseModel(parse_dense_shape(files), tensors, device=CPU, dtype=dtype).decoder)
    other = open_streamed_model(files, tensors, device=CPU, dtype=dtype)
    assert other is not None
    assert other.rounds_to_bf16 == loaded.rounds_to_bf16 == (dtype == torch.float32)
    with torch.inference_mode():
        found, wanted = (
            list(forward_group(model, make_sequences(), SAMPLING, vocabulary=32)) for model in (other, loaded)
        )
    for one, two in zip(found, wanted, strict=True):
        assert (one.hidden_bits == two.hidden_bits).all()
        assert np.abs(one.logprobs - two.logprobs).max() < 1e-5
        assert np.abs(one.margins - two.margins).max() < 1e-5


@pytest.mark.parametrize("head", ["model", "float32"])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_a_head_in_float32_is_what_the_model_files_ask_for(kind: str, head: str, tmp_path: Path) -> None:
    make = make_tiny_checkpoint if kind == "dense" else make_expert_checkpoint
    engine = TorchEngine(device="cpu", precision="bfloat16-imitated")
    engine.load(make(tmp_path, head_dtype=head))
    hidden = torch.randn((3, 64), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    with torch.inference_mode():
        logits = engine._get_model().get_logits(hidden)
    assert logits.dtype == torch.float32
    assert (logits == logits.to(torch.bfloat16).float()).all() == (head == "model")


def test_a_head_in_another_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"head_dtype in .* is 'float16'; use float32"):
        TorchEngine(device="cpu").load(make_tiny_checkpoint(tmp_path, head_dtype="float16"))


def test_models_outside_of_the_dense_family_have_none(tmp_path: Path) -> None:
    folder = make_recurrent_checkpoint(tmp_path)
    files, tensors = ModelFiles.open(folder), FolderTensors.open(folder)
    assert open_streamed_model(files, tensors, device=CPU, dtype=torch.float32) is None
