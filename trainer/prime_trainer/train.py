"""One step of learning: packs forward and backward, the gradient judged, the weights moved or left as they are.

Training, step by step: wait for a batch, learn from it, keep a checkpoint, publish it. Read it top to bottom.

Nothing waits but for data: rollouts are generated, fetched, graded and checked elsewhere while a step is learnt, and a
checkpoint is published while the next one is. There is no evaluation, no curriculum and no early end in here: each is a
reader of the numbers that this writes down. What the loss leaves out is in docs/learning.md.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from prime_protocol.wire.ids import Digest, Step
from prime_runtime.clock import Clock
from prime_trainer.checkpoints import MODEL, TrainState, save_checkpoint
from prime_trainer.config import BatchConfig, LossConfig, OptimizerConfig
from prime_trainer.data.packing import Pack, Sample, distribute_packs, make_packs, split_minibatches
from prime_trainer.data.rollout_buffer import TrainingBatch
from prime_trainer.loss import LOSS_STATS, compute_loss, compute_loss_stats
from prime_trainer.model.distributed import RankGroup, gather_full
from prime_trainer.model.optimizer import GradientGuard, compute_learning_rate
from prime_trainer.model.policy import PolicyModel

log = logging.getLogger(__name__)


Tensor = Any


@dataclass(slots=True)
class Learner:
    """The policy and all that moves it. Every rank has one and calls it alike."""

    policy: PolicyModel
    optimizer: Any
    guard: GradientGuard
    ranks: RankGroup
    loss: LossConfig
    batch: BatchConfig
    schedule: OptimizerConfig
    reference: PolicyModel | None = None
    """Step 0's, where there is a pull towards it."""
    updates: int = 0

    def train_step(self, samples: Sequence[Sample], step: int) -> dict[str, Any]:
        """Move the weights to those of checkpoint `step`; what the monitors are told of it."""
        rate = compute_learning_rate(self.schedule, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = torch.zeros(len(LOSS_STATS), dtype=torch.float64)
        norms, problems = [], []
        parts = split_minibatches(samples, self.batch.minibatches)
        hands = [self._pack_for_rank(part) for part in parts]
        # The first part is read with the weights that the step starts from; the others need those read before.
        starts = [self._score_start(hand) if number else None for number, hand in enumerate(hands)]
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
            **compute_means(self.ranks.all_reduce(sums).tolist()),
        }

    def _pack_for_rank(self, samples: Sequence[Sample]) -> list[Pack]:
        """This rank's packs; every rank has as many."""
        packs = make_packs(samples, self.policy.layout, tokens_max=self.batch.pack_tokens)
        return distribute_packs(packs, self.ranks.size)[self.ranks.rank]

    def _score_start(self, packs: Sequence[Pack]) -> list[Tensor]:
        with torch.no_grad():
            return [self.policy.score(pack)[0] for pack in packs]

    def _accumulate(self, packs: Sequence[Pack], starts: list[Tensor] | None, tokens: int) -> Tensor:
        """Gradients of the mean over all ranks' trained tokens."""
        sums = torch.zeros(len(LOSS_STATS), dtype=torch.float64)
        for number, pack in enumerate(packs):
            tensors = self.policy.compute_loss_inputs(
                pack, starts[number] if starts else None, self._score_reference(pack)
            )
            loss = compute_loss(tensors, self.loss)
            sums += compute_loss_stats(tensors, loss, self.loss).cpu()
            # FSDP takes the mean over ranks where the sum is wanted.
            (loss * (self.ranks.size / tokens)).backward()
        return sums

    def _score_reference(self, pack: Pack) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return self.reference.score(pack)[0]

    def _update(self) -> tuple[float, str]:
        """The gradient's norm, and why it was not applied; nothing where it was."""
        parameters = list(self.policy.model.parameters())
        norm = float(gather_full(torch.nn.utils.clip_grad_norm_(parameters, self.schedule.clip_norm)))
        problem = self.guard.find_problem(norm)
        if not problem:
            self.optimizer.step()
            self.updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm, problem


def compute_means(sums: list[float]) -> dict[str, float | None]:
    """Sums to means over the trained tokens; None where a number was none."""
    found = dict(zip(LOSS_STATS, sums, strict=True))
    tokens = int(found.pop("tokens"))
    means = {name: value / max(1, tokens) if math.isfinite(value) else None for name, value in found.items()}
    return {"tokens": tokens, **means}


class BatchSource(Protocol):
    """Where batches come from."""

    def next_batch(self, step: Step) -> TrainingBatch | None:
        """For the step that follows checkpoint `step`, when there is one; None: no more."""
        ...

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        """These submissions went into checkpoint `step`."""
        ...


class CheckpointSink(Protocol):
    """Where checkpoints go."""

    def publish(self, position: TrainState) -> None:
        """Begin to, and return."""
        ...

    def wait(self) -> None:
        """Until the last one is out."""
        ...


@dataclass(frozen=True, slots=True)
class TrainContext:
    """What a trainer has beside its learner."""

    checkpoints: Path
    """Folder of what can be resumed from."""
    model: Path
    """Folder of the model that training begins with."""
    checkpoints_kept: int
    source: BatchSource
    sink: CheckpointSink
    write_metrics: Callable[[dict[str, Any]], None]
    """Writes down the numbers of a step."""
    clock: Clock


def train(learner: Learner, position: TrainState, desk: TrainContext, *, steps: int) -> TrainState:
    """From a checkpoint to step `steps`, or until the source ends (0: only then). Every rank runs this."""
    model = desk.model
    while not steps or position.step < steps:
        began_ms = desk.clock.monotonic_ms()
        batch = learner.ranks.broadcast(desk.source.next_batch(position.step) if learner.ranks.is_first else None)
        if batch is None:
            break
        started_ms = desk.clock.monotonic_ms()
        step = Step(position.step + 1)
        found = learner.train_step(batch.samples, step)
        learnt_ms = desk.clock.monotonic_ms()
        names = batch.submissions if found["is_applied"] else ()
        facts = {
            "step": step,
            "at_ms": desk.clock.now_ms(),
            **batch.metrics,
            **found,
            "waited_s": (started_ms - began_ms) / 1000,
            "learnt_s": (learnt_ms - started_ms) / 1000,
        }
        position = TrainState(
            step=step,
            trained_on=names,
            updates=learner.updates,
            gradient_norms=learner.guard.norms,
            metrics=facts,
        )
        if learner.ranks.is_first:
            desk.sink.wait()
        model = save_state(learner, position, desk, model)
        if learner.ranks.is_first:
            desk.source.mark_trained(names, step)
            desk.write_metrics({**facts, "saved_s": (desk.clock.monotonic_ms() - learnt_ms) / 1000})
            desk.sink.publish(position)
    return position


def save_state(learner: Learner, position: TrainState, desk: TrainContext, model: Path) -> Path:
    """On disk before anybody hears of it; the checkpoint's model folder. `model` is the one before it.

    The step before is out by then, so no more than one is ever unheard of.
    """
    made = save_checkpoint(
        desk.checkpoints,
        model,
        learner.policy.model,
        learner.optimizer,
        position,
        learner.ranks,
        keep=desk.checkpoints_kept,
    )
    return made / MODEL
