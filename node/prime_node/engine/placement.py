"""How a model is placed on the GPUs of a machine: over how many it is split, and how many copies then run. Pure.

A model that is split over several GPUs (tensor parallelism) exchanges activations in every layer, so a copy on one GPU
gives more tokens for each of them. But a copy also needs room for the keys and values of many sequences, or its batches
are too small to use the GPU. So the smallest split with room for SEQUENCES_WANTED whole sequences is taken, and the
other GPUs run further copies (replicas).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_protocol.errors import LocalError

SEQUENCES_WANTED = 32
"""Sequences of full length at once, beyond which a larger split gains little: at a mean of a third of the full length,
as completions have it, about a hundred fit, and decoding is bound by arithmetic instead of by reading the weights."""
OVERHEAD_BYTES = 2 * 2**30
"""Of each GPU's memory: the driver's context, the kernels, activations of a step, and graphs. vLLM measures its own
share at the start; this is for the choice before that."""
LOGITS_ROWS = 256
"""Rows of float32 logits that a step of decoding holds at once."""
GPU_MEMORY_SHARE = 0.85
"""Of each GPU's memory, what an engine takes unless told otherwise. vLLM's default of 0.9 leaves too little for the
logits of a forward pass."""
GPUS_MAX = 64
"""GPUs of one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What a model needs of a device. Bytes are those of the precision it runs in."""

    weight_bytes: int
    heads: int
    kv_heads: int
    kv_token_bytes: int
    """Keys and values of one token in all layers."""
    vocabulary: int
    context_max: int
    widths: tuple[int, ...] = ()
    """Further sizes that a split must divide: the inner sizes of the feed-forward layers."""

    @classmethod
    def parse(
        cls, config: Mapping[str, Any], *, weight_bytes: int, kv_value_bytes: int = 2, context_max: int
    ) -> "ModelSize":
        """From config.json. `weight_bytes` follows from the tensors; a model without attention heads has 1."""
        heads = read_count(config, "num_attention_heads", "n_head") or 1
        kv_heads = read_count(config, "num_key_value_heads") or heads
        hidden = read_count(config, "hidden_size", "n_embd", "d_model")
        layers = read_count(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
        head_dim = read_count(config, "head_dim") or hidden // heads
        widths = (read_count(config, key) for key in ("intermediate_size", "moe_intermediate_size"))
        return cls(
            weight_bytes=weight_bytes,
            heads=heads,
            kv_heads=kv_heads,
            kv_token_bytes=2 * layers * kv_heads * head_dim * kv_value_bytes,
            vocabulary=read_count(config, "vocab_size"),
            context_max=context_max,
            widths=tuple(width for width in widths if width),
        )

    def can_split(self, parts: int) -> bool:
        """Whether each of so many GPUs gets whole heads. Fewer key-value heads than GPUs are copied."""
        if any(size % parts for size in (self.heads, *self.widths)):
            return False
        return self.kv_heads % parts == 0 or parts % self.kv_heads == 0

    def get_kv_tokens(self, parts: int, memory_bytes: int) -> int:
        """Tokens whose keys and values fit beside the weights, if each of `parts` GPUs gives so much memory."""
        logits = LOGITS_ROWS * self.vocabulary * 4 // parts
        free = memory_bytes - OVERHEAD_BYTES - logits - math.ceil(self.weight_bytes / parts)
        token_bytes = math.ceil(self.kv_token_bytes / min(parts, self.kv_heads))
        return max(0, free // max(1, token_bytes))


def read_count(config: Mapping[str, Any], *keys: str) -> int:
    """The first of these that is a positive whole number, else 0."""
    for key in keys:
        if type(value := config.get(key)) is int and value > 0:
            return value
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the copies of a model run."""

    tensor_parallel: int
    """GPUs of one copy."""
    replicas: int
    kv_tokens: int
    """Tokens whose keys and values one copy holds."""
    gpus: int
    """GPUs of the machine that the node may use."""

    @property
    def layout(self) -> tuple[int, int, int]:
        """What the processes depend on: models with the same layout take turns in the same ones."""
        return self.tensor_parallel, self.replicas, self.gpus

    @property
    def unused(self) -> int:
        """GPUs that are too few for one more copy."""
        return self.gpus - self.replicas * self.tensor_parallel

    def get_sequences(self, tokens: int) -> int:
        """Sequences of so many tokens that all copies hold at once."""
        return self.replicas * (self.kv_tokens // max(1, tokens))

    def split(self, gpus: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The GPUs of each copy, neighbours together: their links are usually the fast ones."""
        size = self.tensor_parallel
        return [gpus[number * size : (number + 1) * size] for number in range(self.replicas)]


def choose_placement(
    model: ModelSize, *, gpus: int, memory_bytes: int, sequence_tokens: int = 0, tensor_parallel: int = 0
) -> Placement:
    """The placement of a model on so many equal GPUs.

    `memory_bytes` is what one GPU gives to the engine. `sequence_tokens` is the longest sequence of the run; 0 is the
    model's context. `tensor_parallel` is a size given by the operator; 0 chooses. LocalError, in one sentence, if no
    sequence of that length fits.
    """
    if not 1 <= gpus <= GPUS_MAX:
        raise LocalError(f"{gpus} GPUs are given, allowed is 1 to {GPUS_MAX}")
    length = min(sequence_tokens or model.context_max, model.context_max)
    sizes = [tensor_parallel] if tensor_parallel else range(1, gpus + 1)
    room = {size: model.get_kv_tokens(size, memory_bytes) for size in sizes if size <= gpus and model.can_split(size)}
    if not room:
        raise LocalError(
            f"the model cannot be split over {tensor_parallel} of {gpus} GPUs: "
            f"it has {model.heads} heads and {model.kv_heads} key-value heads"
        )
    fitting = {size: tokens for size, tokens in room.items() if tokens >= length}
    if not fitting:
        raise LocalError(describe_lack(model, room, gpus=gpus, memory_bytes=memory_bytes, length=length))
    ample = [size for size, tokens in fitting.items() if tokens >= SEQUENCES_WANTED * length]
    # Without ample room anywhere: the size whose copies together hold the most.
    size = min(ample) if ample else max(fitting, key=lambda size: (gpus // size * fitting[size], -size))
    return Placement(tensor_parallel=size, replicas=gpus // size, kv_tokens=fitting[size], gpus=gpus)


def describe_lack(model: ModelSize, room: Mapping[int, int], *, gpus: int, memory_bytes: int, length: int) -> str:
    best = max(room)
    return (
        f"a sequence of {length} tokens does not fit: over {best} of {gpus} GPUs the weights take "
        f"{to_gib(model.weight_bytes / best)} GiB of the {to_gib(memory_bytes)} GiB that each gives, "
        f"which leaves {room[best]} tokens"
    )


def to_gib(count: float) -> str:
    return f"{count / 2**30:.1f}"
