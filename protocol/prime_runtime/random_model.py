"""Checkpoints with random weights in bf16, for tests of a machine: nothing has to be downloaded.

Written without torch or transformers, so that it is fast. Names and shapes are those of the families' public
checkpoints.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
CONFIG_DEFAULTS = {"dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-6, "sliding_window": None}
Shapes = dict[str, tuple[int, ...]]


def get_shapes(config: dict[str, Any]) -> Shapes:
    """Names and shapes of all tensors, as the family's public checkpoints have them."""
    family, hidden, wide = config["model_type"], config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        here: Shapes = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.k_proj.weight": (keys, hidden),
            "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            **get_mlp_shapes(config),
        }
        if family == "qwen2" or config.get("attention_bias"):
            here |= {"self_attn.q_proj.bias": (queries,), "self_attn.k_proj.bias": (keys,)}
            here |= {"self_attn.v_proj.bias": (keys,)}
        if family != "qwen2" and config.get("attention_bias"):
            here["self_attn.o_proj.bias"] = (hidden,)
        if config.get("mlp_bias"):
            here |= {"mlp.gate_proj.bias": (wide,), "mlp.up_proj.bias": (wide,), "mlp.down_proj.bias": (hidden,)}
        if family in ("qwen3", "qwen3_moe"):
            here |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in here.items()}
    return shapes


def get_mlp_shapes(config: dict[str, Any]) -> Shapes:
    """Of one layer: one MLP, or a router and one for each expert."""
    hidden = config["hidden_size"]

    def get_matrices(place: str, wide: int) -> Shapes:
        names = {"gate_proj": (wide, hidden), "up_proj": (wide, hidden), "down_proj": (hidden, wide)}
        return {f"{place}.{name}.weight": shape for name, shape in names.items()}

    if "num_experts" not in config:
        return get_matrices("mlp", config["intermediate_size"])
    shapes: Shapes = {"mlp.gate.weight": (config["num_experts"], hidden)}
    for expert in range(config["num_experts"]):
        shapes |= get_matrices(f"mlp.experts.{expert}", config["moe_intermediate_size"])
    return shapes


def make_random_tensors(shapes: Shapes, *, seed: int, spread: float) -> dict[str, NDArray[np.uint16]]:
    """bf16 patterns: matrices that keep the size of what goes through them, norms around 1, small biases."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in sorted(shapes.items()):
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 2:
            values *= spread / np.sqrt(shape[1])
        else:
            values = 0.1 * values + (1.0 if "norm" in name else 0.0)
        tensors[name] = round_to_bf16(values)
    return tensors


def round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest bf16 patterns, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: dict[str, NDArray[np.uint16]]) -> None:
    """One file of bf16 tensors, in the order given."""
    header, offset = {}, 0
    for name, bits in tensors.items():
        span = [offset, offset + bits.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": span}
        offset += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(bits.tobytes() for bits in tensors.values()))


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_random_model(
    folder: Path, *, vocabulary: int, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int
) -> Path:
    """A Qwen2 without a tokenizer, which engines do not need."""
    config = {
        "architectures": [ARCHITECTURES["qwen2"]],
        "model_type": "qwen2",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": 32_768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        **CONFIG_DEFAULTS,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", {})
    write_safetensors(folder / "model.safetensors", make_random_tensors(get_shapes(config), seed=1, spread=1.0))
    return folder
