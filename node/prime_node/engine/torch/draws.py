"""What a sampler takes and gives: the noise of each row of logits, and what one walk over the rows tells."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_protocol.errors import LocalError
from prime_protocol.proofs.sampling import LOGITS_NOT_FINITE


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


@dataclass(frozen=True, slots=True, eq=False)
class RowScan:
    """The numbers of each row in one tensor, so that one copy takes them from a GPU."""

    numbers: Tensor
    """(columns, rows) in float64, on the device of the logits."""

    COLUMNS: ClassVar = ("winner", "margin", "logprob", "top", "log_sum", "is_finite")
    """The winning token; margin and log-prob of the token in question, else of the winner; the highest score without
    noise and the logarithm of the sum of exp(score - highest), which give any token's log-prob."""

    @property
    def margins(self) -> Tensor:
        return self.numbers[1]

    @property
    def logprobs(self) -> Tensor:
        """Of logits over the temperature (of the plain logits if greedy), at most 0."""
        return self.numbers[2]

    def get_logprobs(self, logits: Tensor, temperature: float) -> Tensor:
        """The log-probs of logits of each row (rows, any) in float64."""
        scores = logits.double() if temperature == 0 else logits.double() / temperature
        return (scores - self.numbers[3][:, None] - self.numbers[4][:, None]).clamp_(max=0.0)

    def fetch(self) -> NDArray[np.float64]:
        """The numbers on the CPU: waits for the device, once. LocalError: a logit is not finite."""
        numbers: NDArray[np.float64] = self.numbers.cpu().numpy()
        if not numbers[5].all():
            raise LocalError(LOGITS_NOT_FINITE)
        return numbers


class Sampler(Protocol):
    """Finds winners, margins and log-probs of rows of logits. All samplers find the same winners."""

    def scan(self, logits: Tensor, draws: Draws, tokens: Tensor | None = None) -> RowScan:
        """`tokens`: those whose margins and log-probs are wanted, on the device of the logits."""
        ...
