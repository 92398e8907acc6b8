"""Tiny checkpoints to try a network with: a dense transformer and a Mamba model, with random weights in bf16.

The tokens are single characters, those of the families `sort-digits` and `arithmetic`, with `$` as the end token.
Everything is written without torch or transformers, so that it is fast. The Mamba model has no attention: an engine
keeps a state of fixed size for it and no keys and values; see docs/operating/engines.md.
"""

import string
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_protocol.tasks.characters import ASK, START, STOP
from prime_runtime.random_model import (
    ARCHITECTURES,
    CONFIG_DEFAULTS,
    get_shapes,
    make_random_tensors,
    round_to_bf16,
    write_json,
    write_safetensors,
)

VOCABULARY_CHARACTERS = f"{string.digits}{START}{ASK}{STOP}+-*= {string.ascii_letters}"
"""Token n is character n; a larger vocabulary goes on with characters of the private use area."""
PRIVATE_USE = 0xE000
EOS_TOKEN = VOCABULARY_CHARACTERS.index(STOP)


def get_characters(vocabulary: int) -> str:
    """The characters of all tokens, by id."""
    more = vocabulary - len(VOCABULARY_CHARACTERS)
    return VOCABULARY_CHARACTERS[:vocabulary] + "".join(chr(PRIVATE_USE + number) for number in range(more))


def make_tiny_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    family: str = "qwen2",
    vocabulary: int = 32,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int | None = None,
    context: int = 2048,
    tied: bool = True,
    spread: float = 1.0,
    eos: int | list[int] | None = EOS_TOKEN,
    rope: dict[str, Any] | None = None,
    prompt: str | None = None,
    **more: Any,
) -> Path:
    """A checkpoint folder with random weights. The same arguments give the same bytes.

    `spread` scales the logits: 1 makes sampling lively, with an end token about every `vocabulary` tokens. `prompt` is
    written to prompt.txt; `rope` and `more` go into config.json as they are.
    """
    assert vocabulary > EOS_TOKEN, f"the end token is {EOS_TOKEN}"
    config = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate or 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim or hidden // heads,
        "max_position_embeddings": context,
        "rope_parameters": rope or {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": tied,
        "eos_token_id": eos,
        **CONFIG_DEFAULTS,
        **more,
    }
    write_model(folder, config, make_random_tensors(get_shapes(config), seed=seed, spread=spread))
    if prompt is not None:
        (folder / "prompt.txt").write_text(prompt)
    return folder


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, NDArray[np.uint16]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    write_json(folder / "tokenizer.json", make_tokenizer(config["vocab_size"]))
    write_safetensors(folder / "model.safetensors", tensors)


def make_tokenizer(vocabulary: int) -> dict[str, Any]:
    """tokenizer.json of a vocabulary of characters. Any other character is an error, as no token stands for it."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {letter: number for number, letter in enumerate(get_characters(vocabulary))},
            "unk_token": "<unknown>",
        },
    }


STEP_MIN, STEP_MAX = 0.001, 0.1
"""Step sizes of the recurrence to begin with, as the public checkpoints have them."""


def make_recurrent_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    vocabulary: int = 32,
    hidden: int = 64,
    layers: int = 2,
    state: int = 8,
    kernel: int = 4,
    context: int = 2048,
    spread: float = 1.0,
) -> Path:
    """The same arguments give the same bytes. `spread` scales the logits."""
    config = {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "expand": 2,
        "num_hidden_layers": layers,
        "state_size": state,
        "conv_kernel": kernel,
        "time_step_rank": max(1, hidden // 16),
        "use_bias": False,
        "use_conv_bias": True,
        "hidden_act": "silu",
        "layer_norm_epsilon": 1e-6,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "eos_token_id": EOS_TOKEN,
        "dtype": "bfloat16",
    }
    tensors = make_recurrent_tensors(config, np.random.default_rng(seed), spread)
    write_model(folder, config, {name: round_to_bf16(values) for name, values in sorted(tensors.items())})
    return folder


def make_recurrent_tensors(
    config: dict[str, Any], rng: np.random.Generator, spread: float
) -> dict[str, NDArray[np.float32]]:
    """Matrices that keep the size of what goes through them; the recurrence as the public checkpoints begin."""
    hidden, inner, state = config["hidden_size"], config["intermediate_size"], config["state_size"]
    rank, kernel = config["time_step_rank"], config["conv_kernel"]

    def matrix(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))

    tensors = {
        "backbone.embeddings.weight": spread * matrix(config["vocab_size"], hidden),
        "backbone.norm_f.weight": np.ones(hidden, np.float32),
    }
    for layer in range(config["num_hidden_layers"]):
        steps = np.exp(rng.uniform(np.log(STEP_MIN), np.log(STEP_MAX), inner)).astype(np.float32)
        here = {
            "norm.weight": np.ones(hidden, np.float32),
            "mixer.in_proj.weight": matrix(2 * inner, hidden),
            "mixer.conv1d.weight": matrix(inner, 1, kernel),
            "mixer.conv1d.bias": np.zeros(inner, np.float32),
            "mixer.x_proj.weight": matrix(rank + 2 * state, inner),
            "mixer.dt_proj.weight": matrix(inner, rank),
            "mixer.dt_proj.bias": np.log(np.expm1(steps)),
            "mixer.A_log": np.tile(np.log(np.arange(1, state + 1, dtype=np.float32)), (inner, 1)),
            "mixer.D": np.ones(inner, np.float32),
            "mixer.out_proj.weight": matrix(hidden, inner),
        }
        tensors |= {f"backbone.layers.{layer}.{name}": values for name, values in here.items()}
    return tensors
