"""The training loop and one training step. Read it top to bottom.

The loop waits for a batch, trains on it, and hands over copies of the weights. It waits for data only: rollouts are
generated, fetched, graded and checked elsewhere while a step is trained, and what it made is saved and published while
the next steps are trained (saver.py). Evaluation, curricula and early stopping do not live here: they read the metrics
that this loop writes.
docs/learning.md says what the loss leaves out, and why.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from prime_protocol.wire.ids import Digest, Step
from prime_runtime.clock import Clock
from prime_trainer.checkpoints import TrainState
from prime_trainer.config import BatchConfig, LossConfig, OptimizerConfig
from prime_trainer.data.packing import Pack, Sample, distribute_packs, make_packs, split_minibatches
from prime_trainer.data.rollout_buffer import TrainingBatch
from prime_trainer.loss import LOSS_STATS, compute_loss, compute_loss_stats
from prime_trainer.model.distributed import RankGroup, gather_full
from prime_trainer.model.optimizer import GradientGuard, compute_learning_rate
from prime_trainer.model.policy import PolicyModel
from prime_trainer.saver import CheckpointSaver

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
    """Where the weights of steps go."""

    def wait_for_room(self, step: Step) -> None:
        """Block while checkpoint `step` is too far ahead of what is published."""
        ...


@dataclass(frozen=True, slots=True)
class TrainContext:
    """What the loop needs besides the learner."""

    source: BatchSource
    sink: CheckpointSink
    saver: CheckpointSaver
    write_metrics: Callable[[dict[str, Any]], None]
    clock: Clock


def train(learner: "Learner", state: TrainState, context: TrainContext, *, steps: int) -> TrainState:
    """Train from a checkpoint to step `steps` (0: no end), or until the source ends. Every rank runs this."""
    ranks, clock, saver = learner.ranks, context.clock, context.saver
    while not steps or state.step < steps:
        waiting_ms = clock.monotonic_ms()
        batch, is_save_due = ranks.broadcast(fetch_batch(state.step, context) if ranks.is_first else (None, False))
        if batch is None:
            break
        started_ms = clock.monotonic_ms()
        step = Step(state.step + 1)
        if ranks.is_first:
            saver.record(step, batch)
        facts = learner.train_step(batch.samples, step)
        times = {"waited_s": (started_ms - waiting_ms) / 1000, "learnt_s": (clock.monotonic_ms() - started_ms) / 1000}
        state = make_state(learner, step, batch, {**facts, **times}, at_ms=clock.now_ms())
        staging_ms = clock.monotonic_ms()
        staged = saver.stage_weights(learner)
        if ranks.is_first:
            context.source.mark_trained(state.trained_on, step)
        saver.publish_weights(staged, state)
        if is_save_due:
            saver.save_state(learner, state)
        if ranks.is_first:
            context.write_metrics({**state.metrics, "saved_s": (clock.monotonic_ms() - staging_ms) / 1000})
    saver.finish(learner, state)
    return state


def fetch_batch(step: Step, context: TrainContext) -> tuple[TrainingBatch | None, bool]:
    """Rank 0: the next batch, and whether a checkpoint is due after it.

    The other ranks wait for it, and not in a collective of the device, which has a short timeout.
    """
    context.sink.wait_for_room(step)
    return context.source.next_batch(step), context.saver.is_due(step + 1)


def make_state(
    learner: "Learner", step: Step, batch: TrainingBatch, facts: Mapping[str, Any], *, at_ms: int
) -> TrainState:
    return TrainState(
        step=step,
        trained_on=batch.submissions if facts["is_applied"] else (),
        updates=learner.updates,
        gradient_norms=learner.guard.norms,
        metrics={"step": step, "at_ms": at_ms, **batch.metrics, **facts},
    )


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
        """This rank's packs. Every rank has the same number, because FSDP synchronises each pass.

        Ranks of a context group have the same packs, and compute a part of each.
        """
        packs = make_packs(samples, self.policy.layout, tokens_max=self.batch.pack_tokens)
        context = self.ranks.context_size
        return distribute_packs(packs, self.ranks.size // context)[self.ranks.rank // context]

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
