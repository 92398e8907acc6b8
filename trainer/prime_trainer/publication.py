"""Checkpoints on their way out, while the next step is learnt: a bf16 copy, its delta, the log.

Everything follows from the checkpoint on disk. A trainer that was killed makes the same copy again, finds in the store
what it had put there, and sends the same entry, which the log takes once.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Step
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http_errors import Unreachable
from prime_trainer.checkpoints import MODEL, WEIGHTS, Position, check, copy_files, plan_file
from prime_trainer.collecting import first_of
from prime_trainer.publishing import Publication, choose_keyframe, publish
from prime_trainer.tensor_files import write_tensors
from prime_trainer.train_config import TrainConfig

log = logging.getLogger(__name__)

RETRY_MS = 1_000
RETRY_MS_MAX = 60_000
"""Between two tries to reach the coordinator, doubling."""


class Publisher:
    """Publishes one checkpoint at a time."""

    def __init__(
        self,
        config: TrainConfig,
        key: WalletKey,
        clock: Clock,
        stop: asyncio.Event,
        tell: Callable[[Path, Position], None],
    ) -> None:
        self._config = config
        self._tell = tell
        """Called when a checkpoint stands in the log."""
        self._key = key
        self._clock = clock
        self._stop = stop
        """Set when this fails, or by others: then an unreachable coordinator is not waited for."""
        self._task: asyncio.Task[None] | None = None
        self.published = Step(-1)
        """The last step that stands in the log."""
        self.problem = ""

    def begin(self, checkpoint: Path, position: Position) -> None:
        """In the background."""
        assert self._task is None or self._task.done(), "one at a time"
        self._task = asyncio.create_task(self._publish(checkpoint, position))

    async def wait(self) -> None:
        """Until the last one is out; LocalError or RemoteError if it cannot be."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _publish(self, checkpoint: Path, position: Position) -> None:
        try:
            await asyncio.to_thread(check_model, checkpoint)
            copy = await asyncio.to_thread(make_copy, checkpoint / MODEL, self._config.folder / "outgoing")
            done = await self._try(copy, position)
        except (LocalError, RemoteError, OSError):
            self._stop.set()
            raise
        shutil.rmtree(copy, ignore_errors=True)
        self.published, self.problem = position.step, ""
        sizes = ", ".join(f"{each.manifest.kind} of {each.manifest.transport_bytes} bytes" for each in done.made)
        log.info("step %d is published as %s, entry %d of the log", position.step, sizes, done.logged.index)
        self._tell(checkpoint, position)

    async def _try(self, copy: Path, position: Position) -> Publication:
        """Again and again while the coordinator cannot be reached."""
        config, wait_ms = self._config, RETRY_MS
        while True:
            try:
                return await publish(
                    config,
                    self._key,
                    copy,
                    position.step,
                    keyframe=choose_keyframe(position.step, forced=None, every=config.keyframe_every),
                    trained_on=position.trained_on,
                    clock=self._clock,
                )
            except Unreachable as error:
                self.problem = str(error)
                log.warning("step %d is not published yet: %s", position.step, error)
                if self._stop.is_set():
                    raise LocalError(
                        f"step {position.step} is not published; the next start does it: {error}"
                    ) from None
            await first_of(self._clock.sleep_ms(wait_ms), self._stop.wait())
            wait_ms = min(RETRY_MS_MAX, 2 * wait_ms)


def check_model(checkpoint: Path) -> None:
    """What is published is what was learnt: LocalError where the disk says something else by now."""
    try:
        check(checkpoint, MODEL)
    except RemoteError as error:
        raise LocalError(
            f"the checkpoint {checkpoint} was damaged before it was published: {error}; start again: the trainer goes "
            "on from the one before"
        ) from None


def make_copy(model: Path, target: Path) -> Path:
    """The model folder as it is published, in bf16; always the same bytes for the same checkpoint."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    copy_files(model, target)
    with safe_open(model / WEIGHTS, "pt") as file:
        write_tensors(target / WEIGHTS, plan_file(file, torch.bfloat16))
    return target
