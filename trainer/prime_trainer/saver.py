"""Saves while training goes on: batches, weights to publish, and checkpoints to resume from. Rim.

Training hands over copies of its shards and continues. One thread per rank writes them, in the same order on all ranks:
the batch of a step, then its weights, which rank 0 publishes, then a checkpoint where one is due. Training waits only
for memory: a copy of the weights must be written before the next one is made, and there is one copy of the whole state
at most. A failure is raised in the training thread at its next call.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prime_protocol.wire.ids import Step
from prime_runtime.clock import Clock
from prime_trainer.checkpoints import (
    TrainState,
    remove_old_checkpoints,
    stage_state,
    write_checkpoint,
)
from prime_trainer.config import SaveConfig
from prime_trainer.data.batch_log import BatchLog
from prime_trainer.data.rollout_buffer import TrainingBatch
from prime_trainer.model.distributed import RankGroup
from prime_trainer.publish.outgoing import StagedWeights, stage_weights, write_weights

if TYPE_CHECKING:
    from prime_trainer.train import Learner

CHECKPOINTS_FOLDER, BATCHES_FOLDER, OUTGOING_FOLDER = "checkpoints", "batches", "outgoing"


@dataclass(frozen=True, slots=True)
class SavePaths:
    """Where a trainer saves; across machines a folder that all of them see."""

    folder: Path
    model: Path
    """The model folder whose configuration and tokenizer are copied."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS_FOLDER

    @property
    def batches(self) -> Path:
        return self.folder / BATCHES_FOLDER

    def get_outgoing(self, step: int) -> Path:
        return self.folder / OUTGOING_FOLDER / f"step-{step:08}"


class CheckpointSaver:
    """One rank's part of saving."""

    def __init__(
        self,
        paths: SavePaths,
        config: SaveConfig,
        ranks: RankGroup,
        clock: Clock,
        *,
        get_published: Callable[[], int] = lambda: -1,
        on_weights: Callable[[Path, TrainState], None] = lambda folder, state: None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._paths = paths
        self._config = config
        self._ranks = ranks
        self._clock = clock
        self._get_published = get_published
        self._on_weights = on_weights
        """Called on rank 0 when the weights of a step are on disk, to publish them."""
        self._on_failure = on_failure
        self._batches = BatchLog(paths.batches)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer-saver")
        self._jobs: list[Future[Any]] = []
        self._weights: Future[Any] | None = None
        self._state: Future[Any] | None = None
        self._saved_step = -1
        self._saved_ms = clock.monotonic_ms()
        self.waited_ms = 0
        """How long training waited for memory and for copies."""

    # --- What training calls ----------------------------------------------------------------------------------------

    def start(self, step: int) -> None:
        """Training resumes from the checkpoint of this step, -1 for none."""
        self._saved_step = step

    def record(self, step: Step, batch: TrainingBatch) -> None:
        """Rank 0: keep the batch of a step; durable before its weights are published."""
        self._submit(self._batches.write, step, batch)

    def is_due(self, step: int) -> bool:
        """Rank 0: whether to save a checkpoint after this step. Not while the one before is still being written."""
        if self._state is not None and not self._state.done():
            return False
        minutes = (self._clock.monotonic_ms() - self._saved_ms) / 60_000
        return step - self._saved_step >= self._config.every_steps or minutes >= self._config.every_minutes

    def stage_weights(self, learner: "Learner") -> StagedWeights:
        """A copy of this rank's weights. Waits until the one before is on disk, so that there is one at a time."""
        began_ms = self._clock.monotonic_ms()
        if self._weights is not None:
            self._weights.result()
        staged: StagedWeights = stage_weights(learner.policy.model, self._ranks)
        self.waited_ms += self._clock.monotonic_ms() - began_ms
        return staged

    def publish_weights(self, staged: StagedWeights, state: TrainState) -> None:
        self._weights = self._submit(self._write_weights, staged, state)

    def save_state(self, learner: "Learner", state: TrainState) -> None:
        """Save a checkpoint in the background. Waits for the one before, which `is_due` avoids."""
        began_ms = self._clock.monotonic_ms()
        if self._state is not None:
            self._state.result()
        tensors = stage_state(learner.policy.model, learner.optimizer)
        self._saved_step, self._saved_ms = int(state.step), self._clock.monotonic_ms()
        self._state = self._submit(self._write_state, tensors, state)
        self.waited_ms += self._clock.monotonic_ms() - began_ms

    def finish(self, learner: "Learner", state: TrainState) -> None:
        """Save where training ended, so that the next start computes nothing again, and wait for all of it."""
        if self._saved_step != state.step:
            self.save_state(learner, state)
        self.wait()

    def wait(self) -> None:
        """Wait for everything that was handed over; raise what failed."""
        while self._jobs:
            self._jobs.pop(0).result()

    # --- The thread -------------------------------------------------------------------------------------------------

    def _submit(self, work: Callable[..., None], *arguments: Any) -> Future[Any]:
        while self._jobs and self._jobs[0].done():
            self._jobs.pop(0).result()
        job = self._thread.submit(work, *arguments)
        job.add_done_callback(lambda done: self._on_failure() if done.exception() else None)
        self._jobs.append(job)
        return job

    def _write_weights(self, staged: StagedWeights, state: TrainState) -> None:
        folder = write_weights(self._paths.get_outgoing(state.step), self._paths.model, staged, self._ranks)
        if self._ranks.is_first:
            self._on_weights(folder, state)

    def _write_state(self, tensors: dict[str, Any], state: TrainState) -> None:
        checkpoints = self._paths.checkpoints
        write_checkpoint(checkpoints, self._paths.model, state, tensors, self._ranks)
        if self._ranks.is_first:
            oldest = remove_old_checkpoints(checkpoints, keep=self._config.keep, published=self._get_published())
            self._batches.remove(before=oldest)
