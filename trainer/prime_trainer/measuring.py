"""The numbers of each published step into the log, and before that some checkpoints tried on held-out problems.

Training waits for neither. What a trainer could not tell before it ended, its next start tells of the newest step.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from prime_protocol.entries import Metric, StepMeasured
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Step
from prime_protocol.messages import ENTRY_ENDPOINTS
from prime_runtime.clock import Clock
from prime_runtime.http_client import HttpClient
from prime_runtime.http_errors import Unreachable
from prime_runtime.sandbox import Sandbox
from prime_runtime.task_sets import TaskSets
from prime_trainer.checkpoints import MODEL, Position
from prime_trainer.evaluate import try_model
from prime_trainer.model_config import EvalConfig
from prime_trainer.notes import HELD_OUT, Notes, choose_numbers
from prime_trainer.train_config import EvaluationConfig, TrainConfig

log = logging.getLogger(__name__)

RETRY_MS = 5_000
"""Before the next try, where the coordinator could not be reached."""
(MEASURED,) = (endpoint for endpoint in ENTRY_ENDPOINTS if endpoint.request is StepMeasured)


class Measurer:
    """Tells of one step after the other."""

    def __init__(self, config: TrainConfig, client: HttpClient, sandbox: Sandbox, notes: Notes, clock: Clock) -> None:
        self._config = config
        self._client = client
        self._notes = notes
        self._sandbox = sandbox
        self._clock = clock
        self._task_sets = TaskSets(client, config.server)
        self._waiting: deque[tuple[Path, Position]] = deque()
        self._added = asyncio.Event()
        self.problem = ""

    def add(self, checkpoint: Path, position: Position) -> None:
        """A step that stands in the log."""
        self._waiting.append((checkpoint, position))
        self._added.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._added.wait()
            self._added.clear()
            await self._tell_all(is_last=False)

    async def finish(self) -> None:
        """What still waits, and whoever cannot be reached is not waited for."""
        await self._tell_all(is_last=True)

    async def _tell_all(self, *, is_last: bool) -> None:
        while self._waiting:
            checkpoint, position = self._waiting[0]
            numbers = choose_numbers(position.facts)
            if is_due(self._config.evaluation, position.step, self._config.steps):
                numbers |= await self._try(checkpoint, position.step)
            if numbers:
                await self._tell(position.step, numbers, is_last=is_last)
            self._waiting.popleft()

    async def _try(self, checkpoint: Path, step: Step) -> dict[str, float]:
        rule = self._config.evaluation
        try:
            family = await self._task_sets.open(rule.task_set)
            scored = await try_model(to_config(rule, checkpoint / MODEL), family, self._sandbox)
        except (LocalError, RemoteError) as error:
            self.problem = f"step {step} was not tried on held-out problems: {error}"
            log.warning("%s", self.problem)
            return {}
        mean = sum(each.mean for each in scored) / len(scored)
        self._notes.note_held_out(step, mean, self._clock.now_ms())
        log.info("step %d gets %.3f on %d held-out problems", step, mean, len(scored))
        return {HELD_OUT: mean, f"{HELD_OUT}_tasks": float(len(scored))}

    async def _tell(self, step: Step, numbers: Mapping[str, float], *, is_last: bool) -> None:
        config = self._config
        entry = StepMeasured(step=step, metrics=to_metrics(numbers))
        while True:
            try:
                await self._client.call(config.server, MEASURED, entry, run=config.run_id)
            except Unreachable as error:
                self.problem = f"the numbers of step {step} are not in the log yet: {error}"
                if not is_last:
                    await self._clock.sleep_ms(RETRY_MS)
                    continue
                log.warning("%s", self.problem)
            except (LocalError, RemoteError) as error:
                # After a restart they may stand there with other digits behind the point; the first ones count.
                log.info("the numbers of step %d are not taken: %s", step, error)
            else:
                self.problem = ""
            return


def is_due(rule: EvaluationConfig, step: Step, last: int) -> bool:
    """Whether a checkpoint is tried on held-out problems; `last` is the step to end with, 0 for none."""
    return bool(rule.task_set) and (step % rule.every == 0 or step == last)


def to_metrics(numbers: Mapping[str, float]) -> tuple[Metric, ...]:
    return tuple(Metric(name=name, value=numbers[name]) for name in sorted(numbers))


def to_config(rule: EvaluationConfig, model: Path) -> EvalConfig:
    """The same problems and the same seed for every checkpoint."""
    return EvalConfig(
        model=model,
        task_set=rule.task_set,
        first=rule.first,
        tasks=rule.tasks,
        temperature=rule.temperature,
        tokens_max=rule.tokens_max,
        batch=rule.batch,
        device=rule.device,
        as_published=True,
    )
