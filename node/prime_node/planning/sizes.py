"""How large a model is: parameters and bytes, from its config.json, or from the tensors of a checkpoint folder.

The count from a configuration covers the decoders with gated feed-forward layers that most open models are (Llama,
Mistral, Qwen2, Qwen3) and their mixtures of experts. Any other model needs its tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prime_node.engine.placement import ModelSize, read_count
from prime_protocol.constants import CHECKPOINT_BYTES_MAX, TENSORS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_runtime.known_models import KNOWN_MODELS, find_known_name
from prime_runtime.model_files import (
    BYTES_MAX,
    CONFIG_FILE,
    QUANTIZATION_KEYS,
    parse_context_length,
    parse_object,
    read_bounded,
)
from prime_runtime.shardcast.checkpoint_files import map_checkpoint

VALUE_BYTES = 2
"""Of one weight in bfloat16."""
WIDTH_MAX = 2**24
"""Largest number that a configuration may state: the product of a few must stay a number that means something."""
DENSE_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
EXPERT_FAMILIES = frozenset({"mixtral", "qwen3_moe"})
EXPERTS_KEYS = ("num_experts", "num_local_experts")
EXPERT_NAME, EMBEDDING_NAME, HEAD_NAME = ".experts.", "embed_tokens", "lm_head"
"""In the names of tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """A model without its weights."""

    name: str
    parameters: int
    embedding_parameters: int
    """Of the input embedding, if it is not the head too: a step reads a few of its rows."""
    expert_parameters: int
    """Of all experts together; 0 for a dense model."""
    experts: int
    experts_used: int
    """By one token; 0 for a dense model."""
    layers: int
    hidden: int
    attention_width: int
    """Heads times their size: what attention multiplies with each earlier token."""
    size: ModelSize
    """What placement needs of it."""
    download_bytes: int
    """As published: in bfloat16 unless the folder says otherwise."""

    def with_value_bytes(self, count: int) -> "ModelSizes":
        """In another precision: 4 bytes a value is float32."""
        factor = count / VALUE_BYTES
        size = replace(
            self.size,
            weight_bytes=int(self.size.weight_bytes * factor),
            kv_token_bytes=int(self.size.kv_token_bytes * factor),
        )
        return replace(self, size=size)


def open_model(text: str) -> ModelSizes:
    """A known model by its name, or a checkpoint folder. LocalError: it is neither, or cannot be counted."""
    path = Path(text).expanduser()
    if path.is_dir():
        return read_folder(path)
    found = find_known_model(text)
    if found is None:
        raise LocalError(f"{text} is no checkpoint folder, and the models known by name are {', '.join(KNOWN_MODELS)}")
    return found


def find_known_model(text: str) -> ModelSizes | None:
    """By its name, with or without the publisher's; None where it is not known."""
    name = find_known_name(text)
    return None if name is None else measure_config(name, KNOWN_MODELS[name])


def read_folder(folder: Path) -> ModelSizes:
    """From config.json, and from the tensors beside it where there are any."""
    text = read_bounded(folder / CONFIG_FILE, BYTES_MAX[CONFIG_FILE])
    if text is None:
        raise LocalError(f"{folder} has no {CONFIG_FILE}")
    try:
        config = parse_object(CONFIG_FILE, text)
        if any(config.get(key) is not None for key in QUANTIZATION_KEYS):
            raise LocalError(f"{folder} holds quantized weights, which no run accepts")
        if any(folder.glob("*.safetensors")):
            return measure_tensors(folder, config)
        return measure_config(folder.name, config)
    except RemoteError as error:
        raise LocalError(f"{folder} cannot be planned for: {error}") from None


def measure_tensors(folder: Path, config: Mapping[str, Any]) -> ModelSizes:
    """The headers of the files say every shape, so this holds for any architecture."""
    tensors = [tensor for tensor, _ in map_checkpoint(folder).tensors()]
    counts = {tensor.name: tensor.size // tensor.dtype.item_bytes for tensor in tensors}
    has_head = any(name.startswith(HEAD_NAME) for name in counts)
    return _build(
        folder.name,
        config,
        parameters=sum(counts.values()),
        embedding=next((count for name, count in counts.items() if EMBEDDING_NAME in name), 0) if has_head else 0,
        experts=sum(count for name, count in counts.items() if EXPERT_NAME in name),
        download_bytes=sum(tensor.size for tensor in tensors),
    )


def measure_config(name: str, config: Mapping[str, Any]) -> ModelSizes:
    """From the shape alone. LocalError for a family that is not counted here."""
    family = config.get("model_type")
    if family not in DENSE_FAMILIES | EXPERT_FAMILIES:
        raise LocalError(f"{name} is of the family {family!r}, whose size only its tensors say: give its folder")
    shared, experts = count_parameters(config)
    embedding = read_count(config, "vocab_size") * read_count(config, "hidden_size")
    is_tied = config.get("tie_word_embeddings") is True
    parameters = shared + experts + embedding * (1 if is_tied else 2)
    return _build(
        name,
        config,
        parameters=parameters,
        embedding=0 if is_tied else embedding,
        experts=experts,
        download_bytes=parameters * VALUE_BYTES,
    )


def count_parameters(config: Mapping[str, Any]) -> tuple[int, int]:
    """Of the layers and the last norm: what every token uses, and the experts."""
    family = config.get("model_type")
    hidden, heads = read_count(config, "hidden_size"), read_count(config, "num_attention_heads")
    layers, inner = read_count(config, "num_hidden_layers"), read_count(config, "intermediate_size")
    if not (hidden and heads and layers and inner):
        raise LocalError("the configuration lacks a size of its layers")
    kv_heads = read_count(config, "num_key_value_heads") or heads
    head_dim = read_count(config, "head_dim") or hidden // heads
    queries, keys = heads * head_dim, kv_heads * head_dim
    layer = hidden * (2 * queries + 2 * keys) + 2 * hidden
    if family == "qwen2" or config.get("attention_bias") is True:
        layer += queries + 2 * keys
        layer += hidden if family != "qwen2" else 0
    if family in ("qwen3", "qwen3_moe"):
        layer += 2 * head_dim
    shared = layers * layer + hidden
    expert_layers = count_expert_layers(config, layers)
    shared += (layers - expert_layers) * 3 * hidden * inner
    if not expert_layers:
        return shared, 0
    count = read_count(config, *EXPERTS_KEYS)
    width = read_count(config, "moe_intermediate_size") or inner
    return shared + expert_layers * count * hidden, expert_layers * count * 3 * hidden * width


def count_expert_layers(config: Mapping[str, Any], layers: int) -> int:
    """How many of the layers have experts instead of one feed-forward network."""
    if config.get("model_type") not in EXPERT_FAMILIES:
        return 0
    plain = config.get("mlp_only_layers") or []
    every = read_count(config, "decoder_sparse_step") or 1
    if not isinstance(plain, list) or layers > TENSORS_MAX:
        raise LocalError("the configuration says in no readable way which layers have experts")
    return sum((number + 1) % every == 0 and number not in plain for number in range(layers))


def _build(
    name: str, config: Mapping[str, Any], *, parameters: int, embedding: int, experts: int, download_bytes: int
) -> ModelSizes:
    stated = [config.get(key) for key in ("vocab_size", "hidden_size", "num_hidden_layers", "head_dim")]
    if not 0 < parameters < CHECKPOINT_BYTES_MAX or any(type(each) is int and each > WIDTH_MAX for each in stated):
        raise LocalError(f"{name} states sizes of no possible model")
    size = ModelSize.parse(
        config, weight_bytes=parameters * VALUE_BYTES, context_max=parse_context_length(dict(config))
    )
    heads, hidden = read_count(config, "num_attention_heads"), read_count(config, "hidden_size", "n_embd", "d_model")
    head_dim = read_count(config, "head_dim") or (hidden // heads if heads else 0)
    return ModelSizes(
        name=name,
        parameters=parameters,
        embedding_parameters=embedding,
        expert_parameters=experts,
        experts=read_count(config, *EXPERTS_KEYS) if experts else 0,
        experts_used=read_count(config, "num_experts_per_tok") if experts else 0,
        layers=read_count(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden=hidden,
        attention_width=heads * head_dim,
        size=size,
        download_bytes=download_bytes,
    )
