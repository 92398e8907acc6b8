"""The network's seeded sampling on the device of the logits: numpy, which prunes, on a CPU; tensors on a GPU."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_protocol.proofs.sampling import compute_margins, sample_tokens

LOGPROB_MIN = float(np.finfo(np.float32).min)
"""Log-prob of the end token if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What determines the noise of each row of logits."""

    temperature: float
    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]

    def send(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """torch has no unsigned 64-bit integers: the seeds keep their bits in signed ones."""
        seeds, positions = torch.from_numpy(self.seeds.view(np.int64)), torch.from_numpy(self.positions)
        return seeds.to(device), positions.to(device)


def choose_tokens(logits: Tensor, draws: Draws) -> tuple[list[int], list[float]]:
    """The next token of each row, and its log-prob."""
    if logits.device.type == "cpu":
        tokens = torch.from_numpy(sample_tokens(logits.numpy(), draws.temperature, draws.seeds, draws.positions))
    else:
        tokens = sample_tokens(logits, draws.temperature, *draws.send(logits.device))
    logprobs = get_logprobs(logits, draws.temperature)
    return tokens.tolist(), get_token_logprobs(logprobs, tokens).tolist()


def get_margins(logits: Tensor, tokens: Tensor, draws: Draws) -> Tensor:
    """By how much the score of each row's token is below the winner's."""
    if logits.device.type == "cpu":
        margins = compute_margins(logits.numpy(), tokens.numpy(), draws.seeds, draws.positions, draws.temperature)
        return torch.from_numpy(margins).float()
    return compute_margins(logits, tokens, *draws.send(logits.device), draws.temperature).float()


def get_logprobs(logits: Tensor, temperature: float) -> Tensor:
    """With temperature 0 (greedy), of the plain logits."""
    return (logits if temperature == 0 else logits / temperature).log_softmax(dim=1)


def get_token_logprobs(logprobs: Tensor, tokens: Tensor) -> Tensor:
    """Log-prob of each row's token, at most 0: rounding may put a certain token above."""
    return logprobs.gather(1, tokens[:, None])[:, 0].clamp(max=0.0)


def get_max_logprobs(logprobs: Tensor, among: frozenset[int]) -> Tensor:
    """Log-prob of the likeliest of these tokens in each row."""
    if not among:
        return torch.full_like(logprobs[:, 0], LOGPROB_MIN)
    return logprobs[:, torch.tensor(sorted(among), device=logprobs.device)].amax(dim=1).clamp(max=0.0)
