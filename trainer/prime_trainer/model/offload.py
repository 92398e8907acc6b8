"""Activations in the memory of the host between the forward and the backward pass.

With gradient checkpointing, what is stored are the inputs of the layers: 2 bytes x hidden size x layers for a token, or
10 GB for 16,384 tokens of a 32B model. Weights stay where they are, since they are not activations.
"""

from dataclasses import dataclass
from typing import Any

import torch

Tensor = Any

VALUES_MIN = 2**16
"""Smaller tensors are not worth a copy."""


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A stored activation on the host."""

    values: Tensor
    device: Any


def offload_activations() -> Any:
    """A context in which what autograd stores goes to the host, through pinned memory where there is a GPU."""
    return torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)


def is_offloadable(stored: Tensor) -> bool:
    is_weight = stored.is_leaf or isinstance(stored, torch.nn.Parameter)
    return not is_weight and stored.numel() >= VALUES_MIN and stored.is_floating_point()


def _pack(stored: Tensor) -> Any:
    if not is_offloadable(stored):
        return stored
    values = torch.empty_like(stored, device="cpu", pin_memory=stored.is_cuda)
    return HostCopy(values.copy_(stored), stored.device)


def _unpack(packed: Any) -> Tensor:
    return packed.values.to(packed.device) if isinstance(packed, HostCopy) else packed
