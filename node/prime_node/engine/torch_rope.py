"""Rotary positions: how fast each pair of channels turns, and the turning itself."""

import math

import torch
from torch import Tensor

from prime_node.engine.dense_shape import RopeShape


def get_frequencies(rope: RopeShape, head_dim: int) -> Tensor:
    """Radians per token of each pair of channels, in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "linear":
            return frequencies / rope.scaling["factor"]
        case "llama3":
            return slow_down(frequencies, rope.scaling)
        case kind:
            assert kind == "default"
            return frequencies


def slow_down(frequencies: Tensor, scaling: dict[str, float]) -> Tensor:
    """Llama 3.1's way to a longer context: slow pairs are slowed by the factor, fast ones kept, others in between."""
    factor, context = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # How often a pair goes round within the first context.
    turns = context * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * frequencies / factor + share * frequencies


class Rotation:
    """The turning for one pass: made once, used by every layer."""

    def __init__(self, frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> None:
        angles = positions[:, None].float() * frequencies
        cosine, sine = angles.cos(), angles.sin()
        self.cosine = torch.cat((cosine, cosine), dim=-1)[:, None].to(dtype)
        # The first half of a head takes minus the second one's share: the sign is here instead of in the data.
        self.sine = torch.cat((-sine, sine), dim=-1)[:, None].to(dtype)

    def apply(self, heads: Tensor) -> Tensor:
        """Turn (tokens, heads, size)."""
        return torch.addcmul(heads * self.cosine, heads.roll(heads.shape[-1] // 2, -1), self.sine)
