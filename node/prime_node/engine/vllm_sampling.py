"""The logits processor that vLLM loads by name: it hands each step's logits to whoever draws the tokens.

vLLM samples greedily from what comes back, in float32. So the winner is found before, in float64 and with the noise of
prime_protocol.sampling, and the logits come back as 1 for the winner and 0 for all others: what vLLM then takes is that
token, whatever its own rounding or way with equals.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor

NAME = f"{__name__}:SeededSampling"

Draw = Callable[[Tensor], Tensor | None]
"""From the logits of a step to the token of each row; None where nobody draws."""


class SeededSampling(LogitsProcessor):
    """Which request a row belongs to is known to the worker, see vllm_worker.py; it sets `draw`."""

    draw: Draw | None = None

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """Nothing of these is needed. vLLM calls it so."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """The worker asks vLLM's batch itself when tokens are drawn."""

    def apply(self, logits: Tensor) -> Tensor:
        tokens = self.draw(logits) if self.draw else None
        if tokens is None:
            return logits
        return logits.zero_().scatter_(1, tokens[:, None], 1.0)
