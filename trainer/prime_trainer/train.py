"""Training, step by step: wait for a batch, learn from it, keep a checkpoint, publish it. Read it top to bottom.

Nothing waits but for data: rollouts are generated, fetched, graded and checked elsewhere while a step is learnt, and a
checkpoint is published while the next one is. There is no evaluation, no curriculum and no early end in here: each is a
reader of the numbers that this writes down. What the loss leaves out is in docs/learning.md.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prime_protocol.ids import Digest, Step
from prime_runtime.clock import Clock
from prime_trainer.checkpoints import MODEL, Position, save
from prime_trainer.harvest import Batch
from prime_trainer.learning import Learner

log = logging.getLogger(__name__)


class Source(Protocol):
    """Where batches come from."""

    def next_batch(self, step: Step) -> Batch | None:
        """For the step that follows checkpoint `step`, when there is one; None: no more."""
        ...

    def learnt(self, names: tuple[Digest, ...], step: Step) -> None:
        """These submissions went into checkpoint `step`."""
        ...


class Outlet(Protocol):
    """Where checkpoints go."""

    def publish(self, position: Position) -> None:
        """Begin to, and return."""
        ...

    def wait(self) -> None:
        """Until the last one is out."""
        ...


@dataclass(frozen=True, slots=True)
class Desk:
    """What a trainer has beside its learner."""

    checkpoints: Path
    """Folder of what can be resumed from."""
    model: Path
    """Folder of the model that training begins with."""
    kept: int
    source: Source
    outlet: Outlet
    note: Callable[[dict[str, Any]], None]
    """Writes down the numbers of a step."""
    clock: Clock


def train(learner: Learner, position: Position, desk: Desk, *, steps: int) -> Position:
    """From a checkpoint to step `steps`, or until the source ends (0: only then). Every rank runs this."""
    model = desk.model
    while not steps or position.step < steps:
        began_ms = desk.clock.monotonic_ms()
        batch = learner.ranks.share(desk.source.next_batch(position.step) if learner.ranks.is_first else None)
        if batch is None:
            break
        started_ms = desk.clock.monotonic_ms()
        step = Step(position.step + 1)
        found = learner.learn(batch.samples, step)
        learnt_ms = desk.clock.monotonic_ms()
        names = batch.names if found["is_applied"] else ()
        facts = {
            "step": step,
            "at_ms": desk.clock.now_ms(),
            **batch.facts,
            **found,
            "waited_s": (started_ms - began_ms) / 1000,
            "learnt_s": (learnt_ms - started_ms) / 1000,
        }
        position = Position(
            step=step,
            trained_on=names,
            updates=learner.updates,
            norms=learner.guard.norms,
            facts=facts,
        )
        if learner.ranks.is_first:
            desk.outlet.wait()
        model = keep(learner, position, desk, model)
        if learner.ranks.is_first:
            desk.source.learnt(names, step)
            desk.note({**facts, "saved_s": (desk.clock.monotonic_ms() - learnt_ms) / 1000})
            desk.outlet.publish(position)
    return position


def keep(learner: Learner, position: Position, desk: Desk, model: Path) -> Path:
    """On disk before anybody hears of it; the checkpoint's model folder. `model` is the one before it.

    The step before is out by then, so no more than one is ever unheard of.
    """
    made = save(
        desk.checkpoints,
        model,
        learner.policy.model,
        learner.optimizer,
        position,
        learner.ranks,
        keep=desk.kept,
    )
    return made / MODEL
