"""The training loop and one training step. Read it top to bottom.

The loop waits for a batch, trains on it, saves a checkpoint, publishes it. It waits for data only: rollouts are
generated, fetched, graded and checked elsewhere while a step is trained, and a checkpoint is published while the next
step is trained. Evaluation, curricula and early stopping do not live here: they read the metrics that this loop writes.
docs/learning.md says what the loss leaves out, and why.
"""

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

Tensor = Any


class BatchSource(Protocol):
    """Where batches come from."""

    def next_batch(self, step: Step) -> TrainingBatch | None:
        """Block until there is a batch for the step after checkpoint `step`; None when there will be no more."""
        ...

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        """Checkpoint `step` was trained on these submissions."""
        ...


class CheckpointSink(Protocol):
    """Where checkpoints go."""

    def publish(self, state: TrainState) -> None:
        """Start publishing in the background."""
        ...

    def wait(self) -> None:
        """Block until the last checkpoint is published."""
        ...


@dataclass(frozen=True, slots=True)
class TrainContext:
    """What the loop needs besides the learner."""

    checkpoints: Path
    """Folder of the checkpoints to resume from."""
    model: Path
    """Folder of the model that training starts from."""
    checkpoints_kept: int
    source: BatchSource
    sink: CheckpointSink
    write_metrics: Callable[[dict[str, Any]], None]
    clock: Clock


def train(learner: "Learner", state: TrainState, context: TrainContext, *, steps: int) -> TrainState:
    """Train from a checkpoint to step `steps` (0: no end), or until the source ends. Every rank runs this."""
    model, ranks, clock = context.model, learner.ranks, context.clock
    while not steps or state.step < steps:
        waiting_ms = clock.monotonic_ms()
        if ranks.is_first:
            # The step before is published before the next one begins: at most one checkpoint is ever unpublished. The
            # other ranks wait for the batch, and not in a collective of the device, which has a short timeout.
            context.sink.wait()
        batch = ranks.broadcast(context.source.next_batch(state.step) if ranks.is_first else None)
        if batch is None:
            break
        started_ms = clock.monotonic_ms()
        step = Step(state.step + 1)
        step_metrics = learner.train_step(batch.samples, step)
        trained_ms = clock.monotonic_ms()
        trained_on = batch.submissions if step_metrics["is_applied"] else ()
        metrics = {
            "step": step,
            "at_ms": clock.now_ms(),
            **batch.metrics,
            **step_metrics,
            "waited_s": (started_ms - waiting_ms) / 1000,
            "learnt_s": (trained_ms - started_ms) / 1000,
        }
        state = TrainState(
            step=step,
            trained_on=trained_on,
            updates=learner.updates,
            gradient_norms=learner.guard.norms,
            metrics=metrics,
        )
        model = save_state(learner, state, context, model)
        if ranks.is_first:
            context.source.mark_trained(trained_on, step)
            context.write_metrics({**metrics, "saved_s": (clock.monotonic_ms() - trained_ms) / 1000})
            context.sink.publish(state)
    return state


def save_state(learner: "Learner", state: TrainState, context: TrainContext, model: Path) -> Path:
    """Save a checkpoint; return its model folder. `model` is the folder whose configuration files are copied."""
    folder = save_checkpoint(
        context.checkpoints,
        model,
        learner.policy.model,
        learner.optimizer,
        state,
        learner.ranks,
        keep=context.checkpoints_kept,
    )
    return folder / MODEL


@dataclass(slots=True)
class Learner:
    """The policy, its optimizer and the rules of an update. Every rank has one and makes the same calls."""

    policy: PolicyModel
    optimizer: Any
    guard: GradientGuard
    ranks: RankGroup
    loss: LossConfig
    batch: BatchConfig
    schedule: OptimizerConfig
    reference: PolicyModel | None = None
    """The weights of step 0, where the loss has a KL term."""
    updates: int = 0

    def train_step(self, samples: Sequence[Sample], step: int) -> dict[str, Any]:
        """Update the weights to those of checkpoint `step`; return the metrics of the step."""
        rate = compute_learning_rate(self.schedule, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = torch.zeros(len(LOSS_STATS), dtype=torch.float64)
        norms, problems = [], []
        minibatches = split_minibatches(samples, self.batch.minibatches)
        packs = [self._pack_for_rank(minibatch) for minibatch in minibatches]
        # The ratio of the loss compares with the policy before the first update. The first minibatch is scored with
        # those weights anyway; the others must be scored before the first update moves them.
        starts = [self._score_start(each) if number else None for number, each in enumerate(packs)]
        for minibatch, own_packs, start in zip(minibatches, packs, starts, strict=True):
            tokens = sum(len(sample.output_tokens) for sample in minibatch)
            sums += self._accumulate(own_packs, start, tokens)
            norm, problem = self._update()
            norms.append(norm)
            problems += [problem] if problem else []
        return {
            "is_applied": len(problems) < len(minibatches),
            "problem": "; ".join(problems) if minibatches else "no group had a signal",
            "learning_rate": rate,
            "gradient_norm": max(filter(math.isfinite, norms), default=None),
            **compute_means(self.ranks.all_reduce(sums).tolist()),
        }

    def _pack_for_rank(self, samples: Sequence[Sample]) -> list[Pack]:
        """This rank's packs. Every rank has the same number, because FSDP synchronises each pass."""
        packs = make_packs(samples, self.policy.layout, tokens_max=self.batch.pack_tokens)
        return distribute_packs(packs, self.ranks.size)[self.ranks.rank]

    def _score_start(self, packs: Sequence[Pack]) -> list[Tensor]:
        with torch.no_grad():
            return [self.policy.score(pack)[0] for pack in packs]

    def _accumulate(self, packs: Sequence[Pack], starts: list[Tensor] | None, tokens: int) -> Tensor:
        """Accumulate gradients of the mean loss over the trained tokens of all ranks; return the loss statistics."""
        sums = torch.zeros(len(LOSS_STATS), dtype=torch.float64)
        for number, pack in enumerate(packs):
            inputs = self.policy.compute_loss_inputs(
                pack,
                starts[number] if starts else None,
                self._score_reference(pack),
                has_entropy_gradient=self.loss.entropy_weight > 0,
            )
            loss = compute_loss(inputs, self.loss)
            sums += compute_loss_stats(inputs, loss, self.loss).cpu()
            # FSDP averages gradients over ranks; multiplying by their number makes it a sum.
            (loss * (self.ranks.size / tokens)).backward()
        return sums

    def _score_reference(self, pack: Pack) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return self.reference.score(pack)[0]

    def _update(self) -> tuple[float, str]:
        """Apply the gradient unless the guard objects; return its norm and the objection."""
        parameters = list(self.policy.model.parameters())
        norm = float(gather_full(torch.nn.utils.clip_grad_norm_(parameters, self.schedule.clip_norm)))
        problem = self.guard.find_problem(norm)
        if not problem:
            self.optimizer.step()
            self.updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm, problem


def compute_means(sums: list[float]) -> dict[str, float | None]:
    """Divide sums by the trained tokens; None where a sum is not finite."""
    found = dict(zip(LOSS_STATS, sums, strict=True))
    tokens = int(found.pop("tokens"))
    means = {name: value / max(1, tokens) if math.isfinite(value) else None for name, value in found.items()}
    return {"tokens": tokens, **means}
