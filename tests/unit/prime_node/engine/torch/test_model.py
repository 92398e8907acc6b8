"""Claims about swapping weights: in place, only what changed, and never half of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prime_node.engine.interface import GenerateRequest, Sampling
from prime_node.engine.torch.dense import DenseModel
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.model import FolderTensors
from prime_protocol.errors import LocalError
from prime_runtime.random_model import make_random_tensors, write_safetensors
from prime_trainer.model.tiny import make_tiny_checkpoint

SAMPLING = Sampling(temperature=1.0, eos=frozenset(), tokens_max=8)
ORDERS = [GenerateRequest(number=number, prompt=np.arange(4, dtype=np.int32), seed=number) for number in range(4)]
Tensors = dict[str, Any]


def write(engine: TorchEngine) -> list[list[float]]:
    """What the engine says of its weights: log-probs of a few completions."""
    done = {completion.number: completion for completion in engine.generate(ORDERS, SAMPLING)}
    return [done[number].logprobs.tolist() for number in sorted(done)]


def write_afresh(folder: Path) -> list[list[float]]:
    engine = TorchEngine(device="cpu", precision="float32")
    engine.load(folder)
    return write(engine)


def bend(folder: Path, change: Callable[[Tensors], object]) -> Path:
    """The same folder with other tensors."""
    tensors = load_bits(folder)
    change(tensors)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def load_bits(folder: Path) -> Tensors:
    given = FolderTensors.open(folder).tensors
    return {name: np.frombuffer(bytes(data), np.uint16).reshape(span.shape) for name, (span, data) in given.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "first", family="qwen3", tied=False, attention_bias=True)


@pytest.fixture
def engine(folder: Path) -> TorchEngine:
    engine = TorchEngine(device="cpu", precision="float32")
    engine.load(folder)
    return engine


def get_storages(engine: TorchEngine) -> dict[str, int]:
    assert isinstance(engine._model, DenseModel)
    return {name: place.data_ptr() for name, place in engine._model.tensor_targets.items()}


def test_other_weights_go_into_the_same_storage(engine: TorchEngine, folder: Path, tmp_path: Path) -> None:
    first, storages = write(engine), get_storages(engine)
    other = make_tiny_checkpoint(tmp_path / "other", family="qwen3", tied=False, attention_bias=True, seed=1)
    engine.load(other)
    assert write(engine) == write_afresh(other) != first
    assert get_storages(engine) == storages
    engine.load(folder)
    assert write(engine) == first


def test_a_delta_copies_what_it_names_and_nothing_else(engine: TorchEngine, tmp_path: Path) -> None:
    other = make_tiny_checkpoint(tmp_path / "other", family="qwen3", tied=False, attention_bias=True, seed=1)
    named = frozenset({"model.layers.1.self_attn.k_proj.weight", "model.layers.0.self_attn.q_norm.weight"})
    first, second = load_bits(tmp_path / "first"), load_bits(other)
    mixed = make_tiny_checkpoint(tmp_path / "mixed", family="qwen3", tied=False, attention_bias=True)
    write_safetensors(mixed / "model.safetensors", {name: (second if name in named else first)[name] for name in first})
    engine.load(other, named)
    assert write(engine) == write_afresh(mixed)
    engine.load(other, frozenset())
    assert write(engine) == write_afresh(mixed)
    with pytest.raises(LocalError, match=r"does not have: model\.layers\.9"):
        engine.load(other, frozenset({"model.layers.9.mlp.up_proj.weight"}))


def test_another_model_is_loaded_whole_whatever_changed(engine: TorchEngine, tmp_path: Path) -> None:
    other = make_tiny_checkpoint(tmp_path / "other", family="llama", layers=1, hidden=32)
    engine.load(other, frozenset({"model.norm.weight"}))
    assert engine.facts.hidden == 32
    assert write(engine) == write_afresh(other)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), r"lacks model\.norm\.weight"),
        (lambda tensors: tensors.update(surplus=np.zeros(4, np.uint16)), "more than the model takes: surplus"),
        (
            lambda tensors: tensors.update({"model.norm.weight": np.zeros(63, np.uint16)}),
            r"has the shape \(63,\), the model wants \(64,\)",
        ),
    ],
)
def test_a_folder_that_does_not_fit_changes_nothing(
    engine: TorchEngine, tmp_path: Path, change: Callable[[Tensors], object], problem: str
) -> None:
    first = write(engine)
    other = make_tiny_checkpoint(tmp_path / "other", family="qwen3", tied=False, attention_bias=True, seed=1)
    with pytest.raises(LocalError, match=problem):
        engine.load(bend(other, change))
    assert write(engine) == first


def test_a_bad_folder_of_another_model_leaves_the_loaded_one(engine: TorchEngine, tmp_path: Path) -> None:
    first = write(engine)
    other = bend(make_tiny_checkpoint(tmp_path / "other", layers=1), lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(LocalError, match=r"lacks model\.norm\.weight"):
        engine.load(other)
    with pytest.raises(LocalError, match=r"has no config\.json|holds no"):
        (tmp_path / "empty").mkdir()
        engine.load(tmp_path / "empty")
    assert write(engine) == first


def test_half_swapped_weights_never_generate(
    engine: TorchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_tiny_checkpoint(tmp_path / "other", family="qwen3", tied=False, attention_bias=True, seed=1)
    get = FolderTensors.get

    def fail(self: FolderTensors, name: str) -> Any:
        if name.endswith("down_proj.weight"):
            raise MemoryError
        return get(self, name)

    monkeypatch.setattr(FolderTensors, "get", fail)
    with pytest.raises(LocalError, match="do not fit into the memory of cpu"):
        engine.load(other)
    with pytest.raises(LocalError, match="no checkpoint is loaded whole"):
        write(engine)
    monkeypatch.undo()
    engine.load(other, frozenset({"model.norm.weight"}))
    assert write(engine) == write_afresh(other), "whatever a delta names, the rest is not what it was"


def test_a_hostile_size_takes_no_memory(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 10**12}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LocalError, match="the model wants"):
        TorchEngine(device="cpu").load(folder)


def test_weights_of_more_precision_and_in_several_files_are_taken(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "one")
    whole = write_afresh(folder)
    tensors = load_bits(folder)
    (folder / "model.safetensors").unlink()
    for number, name in enumerate(sorted(tensors)):
        write_safetensors(folder / f"model-{number}.safetensors", {name: tensors[name]})
    assert write_afresh(folder) == whole
    write_safetensors(folder / "again.safetensors", {"model.norm.weight": tensors["model.norm.weight"]})
    with pytest.raises(LocalError, match=r"model\.norm\.weight twice"):
        write_afresh(folder)


def test_tied_weights_have_no_head_of_their_own(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, tied=True)
    with pytest.raises(LocalError, match=r"more than the model takes: lm_head\.weight"):
        write_afresh(
            bend(
                folder,
                lambda tensors: tensors.update(make_random_tensors({"lm_head.weight": (32, 64)}, seed=0, spread=1.0)),
            )
        )
