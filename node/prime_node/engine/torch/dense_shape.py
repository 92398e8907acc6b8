"""Shapes of the dense decoder family (Llama, Mistral, Qwen2, Qwen3), which differ only in biases, norms and RoPE. Pure.

A configuration that dense.py does not compute exactly raises UnsupportedShape with the reason; such a model runs
through transformers' own modules instead.
"""

from dataclasses import dataclass
from typing import Any

from prime_protocol.errors import LocalError
from prime_runtime.model_files import ModelFiles

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SLIDING_WINDOW_DEFAULT = {"mistral": 4096}
"""The default of transformers where config.json has no value."""
ROPE_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
}
ROPE_THETA_DEFAULT = 10_000.0


class UnsupportedShape(Exception):
    """Why a model is not of this family. The caller falls back to transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeShape:
    """Parameters of the rotary position embedding."""

    kind: str
    theta: float
    scaling: dict[str, float]
    """The parameters of this kind, by their name in config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseShape:
    """A model of this family without its weights."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope: RopeShape
    is_tied: bool
    """The output head shares the embedding's weights."""
    has_qkv_bias: bool
    has_out_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    has_float32_head: bool = False
    """Logits of a bfloat16 model are computed and kept in float32."""

    @property
    def qkv_heads(self) -> int:
        return self.heads + 2 * self.kv_heads

    def get_tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes as public checkpoints have them."""
        tensors: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.is_tied:
            tensors["lm_head.weight"] = (self.vocabulary, self.hidden)
        layer = self.get_layer_tensors()
        for number in range(self.layers):
            tensors |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
        return tensors

    def get_layer_tensors(self) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        outputs = {"q": queries, "k": keys, "v": keys}
        tensors: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden,),
            "post_attention_layernorm.weight": (self.hidden,),
            "self_attn.o_proj.weight": (self.hidden, queries),
            "mlp.gate_proj.weight": (self.intermediate, self.hidden),
            "mlp.up_proj.weight": (self.intermediate, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.intermediate),
        }
        tensors |= {f"self_attn.{part}_proj.weight": (size, self.hidden) for part, size in outputs.items()}
        if self.has_qkv_bias:
            tensors |= {f"self_attn.{part}_proj.bias": (size,) for part, size in outputs.items()}
        if self.has_out_bias:
            tensors["self_attn.o_proj.bias"] = (self.hidden,)
        if self.has_mlp_bias:
            tensors |= {f"mlp.{part}_proj.bias": (self.intermediate,) for part in ("gate", "up")}
            tensors["mlp.down_proj.bias"] = (self.hidden,)
        if self.has_qk_norm:
            tensors |= {f"self_attn.{part}_norm.weight": (self.head_dim,) for part in ("q", "k")}
        return tensors


def parse_dense_shape(files: ModelFiles) -> DenseShape:
    """UnsupportedShape if the model computes anything that this family does not."""
    config, family = files.config, files.family
    if ARCHITECTURES.get(family) != files.architecture:
        raise UnsupportedShape(f"{files.architecture} of {family} is another family")
    if config.get("hidden_act") != "silu":
        raise UnsupportedShape("hidden_act is not silu")
    refuse_sliding_window(config, family, files.context_max)
    heads = take_count(config, "num_attention_heads")
    kv_heads = take_count(config, "num_key_value_heads")
    head_dim = config.get("head_dim")
    if head_dim is None and family != "qwen3":
        head_dim = files.hidden // heads
    if type(head_dim) is not int or head_dim < 2 or head_dim % 2 or heads % kv_heads:
        raise UnsupportedShape("its heads do not divide evenly")
    has_attention_bias = family != "mistral" and bool(config.get("attention_bias"))
    return DenseShape(
        vocabulary=files.vocabulary,
        hidden=files.hidden,
        intermediate=take_count(config, "intermediate_size"),
        layers=files.layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        epsilon=take_positive(config, "rms_norm_eps"),
        rope=parse_rope(config),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=family == "qwen2" or has_attention_bias,
        has_out_bias=family != "qwen2" and has_attention_bias,
        has_mlp_bias=family == "llama" and bool(config.get("mlp_bias")),
        has_qk_norm=family == "qwen3",
        has_float32_head=parse_head_precision(files),
    )


def parse_head_precision(files: ModelFiles) -> bool:
    """Whether config.json asks for a head in float32, by the key that vLLM reads too. LocalError: for anything else.

    The terms of a run name the digest of its configuration, so all of its engines compute the head alike.
    """
    wanted = files.config.get("head_dtype", "model")
    if wanted not in ("model", "float32"):
        raise LocalError(f"head_dtype in {files.folder} is {wanted!r}; use float32, or leave it out")
    return bool(wanted == "float32")


def refuse_sliding_window(config: dict[str, Any], family: str, context_max: int) -> None:
    """A window as long as the context is full attention."""
    if family in ("qwen2", "qwen3") and not config.get("use_sliding_window"):
        window = None
    else:
        window = config.get("sliding_window", SLIDING_WINDOW_DEFAULT.get(family))
    if family != "llama" and window is not None and (type(window) is not int or window < context_max):
        raise UnsupportedShape("it uses sliding-window attention")
    kinds = config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        raise UnsupportedShape("its layers use different kinds of attention")


def parse_rope(config: dict[str, Any]) -> RopeShape:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` in older configurations."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict) or ("rope_parameters" in config and config.get("rope_scaling")):
        raise UnsupportedShape("its RoPE is described twice or is malformed")
    parameters = {"rope_theta": config.get("rope_theta", ROPE_THETA_DEFAULT), **given}
    kind = parameters.pop("rope_type", parameters.get("type", "default"))
    parameters.pop("type", None)
    if kind not in ROPE_KEYS:
        raise UnsupportedShape(f"its RoPE is of the type {kind}")
    for source in (config, parameters):
        if source.get("partial_rotary_factor") not in (None, 1.0):
            raise UnsupportedShape("its RoPE rotates only a part of each head")
    if kind == "llama3" and "original_max_position_embeddings" in config:
        raise UnsupportedShape("original_max_position_embeddings stands outside its RoPE parameters")
    scaling = {key: take_positive(parameters, key) for key in ROPE_KEYS[kind]}
    return RopeShape(kind=kind, theta=take_positive(parameters, "rope_theta"), scaling=scaling)


def take_count(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise UnsupportedShape(f"{key} is not a whole number")
    return value


def take_positive(config: dict[str, Any], key: str) -> float:
    value = config.get(key)
    if type(value) not in (int, float) or not value or value < 0:
        raise UnsupportedShape(f"{key} is not a positive number")
    return float(value)
