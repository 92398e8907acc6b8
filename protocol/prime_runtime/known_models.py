"""Configurations of well-known models, so that a plan needs no download.

tests/vectors/model_sizes.json says where they come from.
"""

from typing import Any

KNOWN_MODELS: dict[str, dict[str, Any]] = {
    "Qwen2.5-1.5B": {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 151_936,
    },
    "Qwen3-8B": {
        "model_type": "qwen3",
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "max_position_embeddings": 40_960,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "vocab_size": 151_936,
    },
    "QwQ-32B": {
        "model_type": "qwen2",
        "hidden_size": 5120,
        "intermediate_size": 27_648,
        "max_position_embeddings": 40_960,
        "num_attention_heads": 40,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "vocab_size": 152_064,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40_960,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vocab_size": 151_936,
    },
}
"""Fields of the published config.json files."""


def find_known_name(text: str) -> str | None:
    """The name here of a model that was given with or without its publisher; None where it is not known."""
    short = text.rsplit("/", 1)[-1].lower()
    return next((name for name in KNOWN_MODELS if name.lower() == short), None)
