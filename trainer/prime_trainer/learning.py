"""One step of learning: packs forward and backward, the gradient judged, the weights moved or left as they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prime_trainer.loss import SUMS, observe, total_loss
from prime_trainer.optimizer import GradientGuard, compute_learning_rate
from prime_trainer.packing import Pack, Sample, arrange, deal_packs, split_evenly
from prime_trainer.policy import Policy
from prime_trainer.ranks import Ranks, gather
from prime_trainer.train_config import BatchConfig, LossConfig, OptimizerConfig

Tensor = Any


@dataclass(slots=True)
class Learner:
    """The policy and all that moves it. Every rank has one and calls it alike."""

    policy: Policy
    optimizer: Any
    guard: GradientGuard
    ranks: Ranks
    loss: LossConfig
    batch: BatchConfig
    schedule: OptimizerConfig
    reference: Policy | None = None
    """Step 0's, where there is a pull towards it."""
    updates: int = 0

    def learn(self, samples: Sequence[Sample], step: int) -> dict[str, Any]:
        """Move the weights to those of checkpoint `step`; what the monitors are told of it."""
        rate = compute_learning_rate(self.schedule, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = torch.zeros(len(SUMS), dtype=torch.float64)
        norms, problems = [], []
        parts = split_evenly(samples, self.batch.minibatches)
        hands = [self._deal(part) for part in parts]
        # The first part is read with the weights that the step starts from; the others need those read before.
        starts = [self._read_start(hand) if number else None for number, hand in enumerate(hands)]
        for part, hand, start in zip(parts, hands, starts, strict=True):
            tokens = sum(len(sample.output_tokens) for sample in part)
            sums += self._accumulate(hand, start, tokens)
            norm, problem = self._update()
            norms.append(norm)
            problems += [problem] if problem else []
        return {
            "is_applied": len(problems) < len(parts),
            "problem": "; ".join(problems) if parts else "no group had a signal",
            "learning_rate": rate,
            "gradient_norm": max(filter(math.isfinite, norms), default=None),
            **summarise(self.ranks.add_up(sums).tolist()),
        }

    def _deal(self, samples: Sequence[Sample]) -> list[Pack]:
        """This rank's packs; every rank has as many."""
        packs = arrange(samples, self.policy.layout, tokens_max=self.batch.pack_tokens)
        return deal_packs(packs, self.ranks.size)[self.ranks.rank]

    def _read_start(self, packs: Sequence[Pack]) -> list[Tensor]:
        with torch.no_grad():
            return [self.policy.score(pack)[0] for pack in packs]

    def _accumulate(self, packs: Sequence[Pack], starts: list[Tensor] | None, tokens: int) -> Tensor:
        """Gradients of the mean over all ranks' trained tokens."""
        sums = torch.zeros(len(SUMS), dtype=torch.float64)
        for number, pack in enumerate(packs):
            tensors = self.policy.read(pack, starts[number] if starts else None, self._read_reference(pack))
            loss = total_loss(tensors, self.loss)
            sums += observe(tensors, loss, self.loss).cpu()
            # FSDP takes the mean over ranks where the sum is wanted.
            (loss * (self.ranks.size / tokens)).backward()
        return sums

    def _read_reference(self, pack: Pack) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return self.reference.score(pack)[0]

    def _update(self) -> tuple[float, str]:
        """The gradient's norm, and why it was not applied; nothing where it was."""
        parameters = list(self.policy.model.parameters())
        norm = float(gather(torch.nn.utils.clip_grad_norm_(parameters, self.schedule.clip_norm)))
        problem = self.guard.find_fault(norm)
        if not problem:
            self.optimizer.step()
            self.updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm, problem


def summarise(sums: list[float]) -> dict[str, float | None]:
    """Sums to means over the trained tokens; None where a number was none."""
    found = dict(zip(SUMS, sums, strict=True))
    tokens = int(found.pop("tokens"))
    means = {name: value / max(1, tokens) if math.isfinite(value) else None for name, value in found.items()}
    return {"tokens": tokens, **means}
