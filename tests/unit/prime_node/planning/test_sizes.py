"""Sizes of models: from published configurations, and from the tensors of a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from prime_node.planning.sizes import measure_config, open_model
from prime_protocol.errors import LocalError
from prime_runtime.known_models import KNOWN_MODELS

MODELS: list[dict[str, Any]] = json.loads((Path(__file__).parents[3] / "vectors" / "model_sizes.json").read_text())[
    "models"
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_the_size_follows_from_the_published_configuration(model: dict[str, Any]) -> None:
    found = measure_config(model["name"], model["config"])
    assert found.parameters == model["parameters"]
    assert found.download_bytes == found.size.weight_bytes == model["tensor_bytes"]
    assert KNOWN_MODELS[model["name"]] == model["config"]


def test_models_are_known_with_and_without_their_publisher() -> None:
    assert open_model("Qwen/qwen3-8b") == open_model("Qwen3-8B")
    assert open_model("QwQ-32B").size.kv_token_bytes == 2 * 64 * 8 * 128 * 2
    with pytest.raises(LocalError, match=r"no checkpoint folder, and the models known by name are Qwen2\.5-1\.5B"):
        open_model("Qwen4")


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file({name: np.zeros(shape, np.float16) for name, shape in tensors.items()}, folder / "a.safetensors")
    return folder


TINY = {
    **KNOWN_MODELS["Qwen3-30B-A3B"],
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "moe_intermediate_size": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "mlp_only_layers": [1],
    "vocab_size": 32,
}


def list_tiny_tensors() -> dict[str, tuple[int, ...]]:
    attention = {"q_proj": (8, 8), "k_proj": (4, 8), "v_proj": (4, 8), "o_proj": (8, 8), "q_norm": (4,), "k_norm": (4,)}
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (32, 8),
        "lm_head.weight": (32, 8),
        "model.norm.weight": (8,),
    }
    for layer in range(2):
        start = f"model.layers.{layer}"
        tensors |= {f"{start}.self_attn.{name}.weight": shape for name, shape in attention.items()}
        tensors |= {f"{start}.{name}_layernorm.weight": (8,) for name in ("input", "post_attention")}
    experts = [f"model.layers.0.mlp.experts.{number}" for number in range(4)]
    for start, width in [*((expert, 4) for expert in experts), ("model.layers.1.mlp", 16)]:
        tensors |= {f"{start}.gate_proj.weight": (width, 8), f"{start}.up_proj.weight": (width, 8)}
        tensors[f"{start}.down_proj.weight"] = (8, width)
    tensors["model.layers.0.mlp.gate.weight"] = (4, 8)
    return tensors


def test_a_configuration_and_the_tensors_of_a_folder_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    counted = open_model(str(write_folder(tmp_path / "without", TINY, {})))
    read = open_model(str(write_folder(tmp_path / "with", TINY, list_tiny_tensors())))
    assert (counted.parameters, counted.expert_parameters) == (read.parameters, read.expert_parameters)
    assert (counted.embedding_parameters, counted.size) == (read.embedding_parameters, read.size)
    assert read.expert_parameters == 4 * 3 * 4 * 8


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "gemma"}, "is of the family 'gemma', whose size only its tensors say"),
        ({"quantization_config": {}}, "holds quantized weights"),
        ({"num_hidden_layers": 0}, "lacks a size of its layers"),
        ({"hidden_size": 2**40}, "states sizes of no possible model"),
        ({"mlp_only_layers": "all"}, "in no readable way which layers have experts"),
        ({"max_position_embeddings": "long"}, "cannot be planned for"),
    ],
)
def test_a_configuration_that_cannot_be_counted_is_refused(
    change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(LocalError, match=problem):
        open_model(str(write_folder(tmp_path, {**TINY, **change}, {})))


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"has no config\.json"):
        open_model(str(tmp_path))
