"""Rotary positions: how fast each pair of channels turns, and how far it has at a position."""

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


def get_angles(frequencies: Tensor, positions: Tensor) -> Tensor:
    """(tokens, size) in float32: for each pair of channels its cosine, then for each its sine."""
    angles = positions[:, None].float() * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
