"""Evaluation of a model on held-out tasks, and the report of each step's metrics to the log.

Training waits for neither. What a trainer could not report before it ended, its next start reports for the newest step.
"""

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import StepMeasured
from prime_protocol.ledger.entry_values import Metric
from prime_protocol.tasks.family import TaskFamily
from prime_protocol.wire.ids import Step
from prime_protocol.wire.messages import ENTRY_ENDPOINTS
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient, Unreachable
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox.sandbox import Sandbox
from prime_runtime.task_sets import TaskSetCache, grade_answers, open_task_set
from prime_trainer.checkpoints import TrainState
from prime_trainer.config import EvalConfig, EvaluationConfig, TrainConfig
from prime_trainer.metrics import HELD_OUT, MetricsLog, select_numbers
from prime_trainer.model.policy import read_model, resolve_model

log = logging.getLogger(__name__)

REPORT_RETRY_MS = 5_000
"""Pause before the next try when the coordinator is unreachable."""
(STEP_MEASURED,) = (endpoint for endpoint in ENTRY_ENDPOINTS if endpoint.request is StepMeasured)


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task and the rewards of its answers."""

    task: int
    rewards: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.rewards) / len(self.rewards)


async def evaluate(config: EvalConfig) -> list[TaskScore]:
    """The command `eval`: a task set's dataset is a local file."""
    torch.set_num_threads(config.threads)
    config = replace(config, model=resolve_model(config.model))
    family = open_task_set(config.task_set, config.dataset)
    async with Sandbox() as sandbox:
        return await evaluate_model(config, family, sandbox)


async def evaluate_model(config: EvalConfig, family: TaskFamily, sandbox: Sandbox) -> list[TaskScore]:
    """Answer and grade each task."""
    if config.first + config.tasks > family.size:
        raise LocalError(f"the task set has {family.size} tasks, fewer than {config.first + config.tasks}")
    tasks = [family.make(config.first + number) for number in range(config.tasks)]
    texts = await asyncio.to_thread(generate_answers, config, [task.prompt for task in tasks])
    scores, count = [], config.samples
    for number, task in enumerate(tasks):
        grades = await grade_answers(family, task, texts[number * count : (number + 1) * count], sandbox)
        scores.append(TaskScore(task.index, tuple(grade.reward for grade in grades)))
    return scores


def generate_answers(config: EvalConfig, prompts: Sequence[str]) -> list[str]:
    """`config.samples` completions of each prompt, in order."""
    files, model = ModelFiles.open(config.model), load_eval_model(config)
    encoded = [np.array(tokens, np.int64) for tokens in files.encode_prompts(prompts) for _ in range(config.samples)]
    torch.manual_seed(config.seed)
    return files.decode(generate(model, encoded, files, config))


def load_eval_model(config: EvalConfig) -> Any:
    dtype = torch.float32 if config.device == "cpu" else torch.bfloat16
    model, _ = read_model(config.model, dtype=dtype)
    if config.as_published:
        model = model.to(torch.bfloat16).to(dtype)
    return model.to(config.device).eval()


@torch.no_grad()  # type: ignore[untyped-decorator]
def generate(
    model: Any, prompts: Sequence[np.ndarray[Any, Any]], files: ModelFiles, config: EvalConfig
) -> list[list[int]]:
    """Generate in batches, padded on the left to the longest prompt."""
    outputs: list[list[int]] = [[] for _ in prompts]
    # A recurrent model carries padding in its state, whatever the mask says: its batches must have equal lengths.
    for indexes in batch_by_length(list(map(len, prompts)), config.batch, is_even=bool(model._is_stateful)):
        width = max(len(prompts[index]) for index in indexes)
        tokens = torch.zeros(len(indexes), width, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, index in enumerate(indexes):
            tokens[row, width - len(prompts[index]) :] = torch.from_numpy(prompts[index])
            mask[row, width - len(prompts[index]) :] = 1
        generated = model.generate(
            tokens.to(config.device),
            attention_mask=mask.to(config.device),
            max_new_tokens=config.tokens_max,
            do_sample=config.temperature > 0,
            temperature=config.temperature or None,
            top_k=None,
            top_p=None,
            eos_token_id=sorted(files.eos) or None,
            pad_token_id=0,
        )
        for row, index in enumerate(indexes):
            outputs[index] = cut_at_eos(generated[row, width:].tolist(), files.eos)
    return outputs


def batch_by_length(lengths: Sequence[int], size: int, *, is_even: bool) -> list[list[int]]:
    """Indexes sorted by length, at most `size` per batch; with `is_even`, only equal lengths share a batch."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        has_space = bool(batches) and len(batches[-1]) < size
        if has_space and not (is_even and lengths[batches[-1][0]] != lengths[index]):
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def cut_at_eos(tokens: list[int], eos: frozenset[int]) -> list[int]:
    """Cut after the first end token."""
    end = next((index for index, token in enumerate(tokens) if token in eos), len(tokens) - 1)
    return tokens[: end + 1]


def choose_tasks(scored: Sequence[TaskScore], *, low: float, high: float) -> list[int]:
    """Tasks that are neither too easy nor too hard: their mean reward is from `low` to `high`."""
    return [each.task for each in scored if low <= each.mean <= high]


# --- Reports to the log -----------------------------------------------------------------------------------------------


class MetricsReporter:
    """Evaluates published checkpoints when due, and reports the metrics of one step after the other."""

    def __init__(
        self, config: TrainConfig, client: HttpClient, sandbox: Sandbox, metrics: MetricsLog, clock: Clock
    ) -> None:
        self._config = config
        self._client = client
        self._metrics = metrics
        self._sandbox = sandbox
        self._clock = clock
        self._task_sets = TaskSetCache(client, config.server)
        self._waiting: deque[tuple[Path, TrainState]] = deque()
        self._added = asyncio.Event()
        self.problem = ""

    def add(self, checkpoint: Path, state: TrainState) -> None:
        """Queue a published step with its model folder, which is removed when no evaluation needs it any more."""
        if not is_evaluation_due(self._config.evaluation, state.step, self._config.steps):
            # Not later, or folders would pile up while an evaluation runs.
            remove = partial(shutil.rmtree, checkpoint, ignore_errors=True)
            asyncio.get_running_loop().run_in_executor(None, remove)
        self._waiting.append((checkpoint, state))
        self._added.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            await self._report_all(is_last=False)

    async def finish(self) -> None:
        """Report what is queued, without waiting for an unreachable coordinator."""
        await self._report_all(is_last=True)

    async def _report_all(self, *, is_last: bool) -> None:
        while self._waiting:
            checkpoint, state = self._waiting[0]
            numbers = select_numbers(state.metrics)
            if is_evaluation_due(self._config.evaluation, state.step, self._config.steps):
                numbers |= await self._evaluate(checkpoint, state.step)
            if numbers:
                await self._report(state.step, numbers, is_last=is_last)
            self._waiting.popleft()
            await asyncio.to_thread(shutil.rmtree, checkpoint, ignore_errors=True)

    async def _evaluate(self, checkpoint: Path, step: Step) -> dict[str, float]:
        config = self._config.evaluation
        try:
            family = await self._task_sets.open(config.task_set)
            scored = await evaluate_model(make_eval_config(config, checkpoint), family, self._sandbox)
        except (LocalError, RemoteError) as error:
            self.problem = f"step {step} was not evaluated on held-out problems: {error}"
            log.warning("%s", self.problem)
            return {}
        mean = sum(each.mean for each in scored) / len(scored)
        self._metrics.write_held_out(step, mean, self._clock.now_ms())
        log.info("step %d scores %.3f on %d held-out problems", step, mean, len(scored))
        return {HELD_OUT: mean, f"{HELD_OUT}_tasks": float(len(scored))}

    async def _report(self, step: Step, numbers: Mapping[str, float], *, is_last: bool) -> None:
        config = self._config
        entry = StepMeasured(step=step, metrics=make_metrics(numbers))
        while True:
            try:
                await self._client.call(config.server, STEP_MEASURED, entry, run=config.run_id)
            except Unreachable as error:
                self.problem = f"the metrics of step {step} are not in the log yet: {error}"
                if not is_last:
                    await self._clock.sleep_ms(REPORT_RETRY_MS)
                    continue
                log.warning("%s", self.problem)
            except (LocalError, RemoteError) as error:
                # After a restart the evaluation may differ in the last digits. The log keeps the first report.
                log.info("the log refused the metrics of step %d: %s", step, error)
            else:
                self.problem = ""
            return


def is_evaluation_due(config: EvaluationConfig, step: Step, last: int) -> bool:
    """Whether to evaluate a checkpoint on held-out problems; `last` is the final step, 0 for none."""
    return bool(config.task_set) and (step % config.every == 0 or step == last)


def make_metrics(numbers: Mapping[str, float]) -> tuple[Metric, ...]:
    return tuple(Metric(name=name, value=numbers[name]) for name in sorted(numbers))


def make_eval_config(config: EvaluationConfig, model: Path) -> EvalConfig:
    """The same problems and the same seed for every checkpoint."""
    settings = asdict(config)
    del settings["every"]
    return EvalConfig(model=model, as_published=True, **settings)
