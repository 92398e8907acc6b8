"""A tiny recurrent checkpoint: Mamba with random weights and the characters of tiny_model.py as its tokens.

There is no attention in it. What it knows of the tokens so far is a state of fixed size, so an engine keeps that and no
keys and values; see docs/operating/engines.md.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_devnet.tiny_model import EOS, round_to_bf16, write_model

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
        "eos_token_id": EOS,
        "dtype": "bfloat16",
    }
    tensors = make_tensors(config, np.random.default_rng(seed), spread)
    write_model(folder, config, {name: round_to_bf16(values) for name, values in sorted(tensors.items())})
    return folder


def make_tensors(config: dict[str, Any], dice: np.random.Generator, spread: float) -> dict[str, NDArray[np.float32]]:
    """Matrices that keep the size of what goes through them; the recurrence as the public checkpoints begin."""
    hidden, inner, state = config["hidden_size"], config["intermediate_size"], config["state_size"]
    rank, kernel = config["time_step_rank"], config["conv_kernel"]

    def matrix(*shape: int) -> NDArray[np.float32]:
        return dice.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))

    tensors = {
        "backbone.embeddings.weight": spread * matrix(config["vocab_size"], hidden),
        "backbone.norm_f.weight": np.ones(hidden, np.float32),
    }
    for layer in range(config["num_hidden_layers"]):
        steps = np.exp(dice.uniform(np.log(STEP_MIN), np.log(STEP_MAX), inner)).astype(np.float32)
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
