"""How good a model is at tasks it is not trained on, and which tasks it gets right how often.

The numbers of each published step into the log, and before that some checkpoints tried on held-out problems.

Training waits for neither. What a trainer could not tell before it ended, its next start tells of the newest step.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Metric, StepMeasured
from prime_protocol.tasks.family import TaskFamily
from prime_protocol.wire.ids import Step
from prime_protocol.wire.messages import ENTRY_ENDPOINTS
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient, Unreachable
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox.sandbox import Sandbox
from prime_runtime.task_sets import TaskSetCache, grade_answers, open_task_set
from prime_trainer.checkpoints import MODEL, TrainState
from prime_trainer.config import EvalConfig, EvaluationConfig, TrainConfig
from prime_trainer.metrics import HELD_OUT, MetricsLog, select_numbers
from prime_trainer.model.policy import resolve_model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task and the rewards of the answers to it."""

    task: int
    rewards: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.rewards) / len(self.rewards)


async def evaluate(config: EvalConfig) -> list[TaskScore]:
    """As the command does: the problem file is one on this machine."""
    torch.set_num_threads(config.threads)
    config = replace(config, model=resolve_model(config.model))
    family = open_task_set(config.task_set, config.dataset)
    async with Sandbox() as sandbox:
        return await evaluate_model(config, family, sandbox)


async def evaluate_model(config: EvalConfig, family: TaskFamily, sandbox: Sandbox) -> list[TaskScore]:
    """Each task in turn."""
    if config.first + config.tasks > family.size:
        raise LocalError(f"the task set has {family.size} tasks, fewer than {config.first + config.tasks}")
    tasks = [family.make(config.first + number) for number in range(config.tasks)]
    texts = await asyncio.to_thread(generate_answers, config, [task.prompt for task in tasks])
    count = config.samples
    found = []
    for place, task in enumerate(tasks):
        grades = await grade_answers(family, task, texts[place * count : (place + 1) * count], sandbox)
        found.append(TaskScore(task.index, tuple(grade.reward for grade in grades)))
    return found


def generate_answers(config: EvalConfig, prompts: Sequence[str]) -> list[str]:
    """Completions of each prompt, one after the other."""
    files, model = ModelFiles.open(config.model), load_eval_model(config)
    orders = [np.array(files.encode_prompt(prompt), np.int64) for prompt in prompts for _ in range(config.samples)]
    torch.manual_seed(config.seed)
    return [files.decode(tokens) for tokens in generate(model, orders, files, config)]


def load_eval_model(config: EvalConfig) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # What goes wrong is an error of ours; hints about kernels that are not installed would fill the log.
    transformers_logging.set_verbosity_error()
    dtype = torch.float32 if config.device == "cpu" else torch.bfloat16
    try:
        model = AutoModelForCausalLM.from_pretrained(config.model, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise LocalError(f"cannot read a causal language model from {config.model}: {error}") from None
    if config.as_published:
        model = model.to(torch.bfloat16).to(dtype)
    return model.to(config.device).eval()


@torch.no_grad()  # type: ignore[untyped-decorator]
def generate(
    model: Any, prompts: Sequence[np.ndarray[Any, Any]], files: ModelFiles, config: EvalConfig
) -> list[list[int]]:
    """Padded on the left: a batch is as long as its longest prompt."""
    outputs: list[list[int]] = [[] for _ in prompts]
    # A recurrent model would carry the padding on in its state, whatever a mask says.
    for places in batch_by_length(list(map(len, prompts)), config.batch, is_even=bool(model._is_stateful)):
        width = max(len(prompts[place]) for place in places)
        tokens = torch.zeros(len(places), width, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, place in enumerate(places):
            tokens[row, width - len(prompts[place]) :] = torch.from_numpy(prompts[place])
            mask[row, width - len(prompts[place]) :] = 1
        made = model.generate(
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
        for row, place in enumerate(places):
            outputs[place] = cut_at_eos(made[row, width:].tolist(), files.eos)
    return outputs


def batch_by_length(lengths: Sequence[int], size: int, *, is_even: bool) -> list[list[int]]:
    """Places by length, at most `size` together; only equal lengths together where batches are to be even."""
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        fits = bool(batches) and len(batches[-1]) < size
        if fits and not (is_even and lengths[batches[-1][0]] != lengths[place]):
            batches[-1].append(place)
        else:
            batches.append([place])
    return batches


def cut_at_eos(tokens: list[int], eos: frozenset[int]) -> list[int]:
    """Up to the first end token, that one included."""
    end = next((place for place, token in enumerate(tokens) if token in eos), len(tokens) - 1)
    return tokens[: end + 1]


def choose_tasks(scored: Sequence[TaskScore], *, low: float, high: float) -> list[int]:
    """Tasks that are neither too easy nor hopeless: their mean reward is from `low` to `high`."""
    return [each.task for each in scored if low <= each.mean <= high]


REPORT_RETRY_MS = 5_000
"""Before the next try, where the coordinator could not be reached."""
(STEP_MEASURED,) = (endpoint for endpoint in ENTRY_ENDPOINTS if endpoint.request is StepMeasured)


class MetricsReporter:
    """Tells of one step after the other."""

    def __init__(
        self, config: TrainConfig, client: HttpClient, sandbox: Sandbox, notes: MetricsLog, clock: Clock
    ) -> None:
        self._config = config
        self._client = client
        self._notes = notes
        self._sandbox = sandbox
        self._clock = clock
        self._task_sets = TaskSetCache(client, config.server)
        self._waiting: deque[tuple[Path, TrainState]] = deque()
        self._added = asyncio.Event()
        self.problem = ""

    def add(self, checkpoint: Path, position: TrainState) -> None:
        """A step that stands in the log."""
        self._waiting.append((checkpoint, position))
        self._added.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._added.wait()
            self._added.clear()
            await self._report_all(is_last=False)

    async def finish(self) -> None:
        """What still waits, and whoever cannot be reached is not waited for."""
        await self._report_all(is_last=True)

    async def _report_all(self, *, is_last: bool) -> None:
        while self._waiting:
            checkpoint, position = self._waiting[0]
            numbers = select_numbers(position.metrics)
            if is_evaluation_due(self._config.evaluation, position.step, self._config.steps):
                numbers |= await self._evaluate(checkpoint, position.step)
            if numbers:
                await self._report(position.step, numbers, is_last=is_last)
            self._waiting.popleft()

    async def _evaluate(self, checkpoint: Path, step: Step) -> dict[str, float]:
        rule = self._config.evaluation
        try:
            family = await self._task_sets.open(rule.task_set)
            scored = await evaluate_model(make_eval_config(rule, checkpoint / MODEL), family, self._sandbox)
        except (LocalError, RemoteError) as error:
            self.problem = f"step {step} was not tried on held-out problems: {error}"
            log.warning("%s", self.problem)
            return {}
        mean = sum(each.mean for each in scored) / len(scored)
        self._notes.write_held_out(step, mean, self._clock.now_ms())
        log.info("step %d gets %.3f on %d held-out problems", step, mean, len(scored))
        return {HELD_OUT: mean, f"{HELD_OUT}_tasks": float(len(scored))}

    async def _report(self, step: Step, numbers: Mapping[str, float], *, is_last: bool) -> None:
        config = self._config
        entry = StepMeasured(step=step, metrics=make_metrics(numbers))
        while True:
            try:
                await self._client.call(config.server, STEP_MEASURED, entry, run=config.run_id)
            except Unreachable as error:
                self.problem = f"the numbers of step {step} are not in the log yet: {error}"
                if not is_last:
                    await self._clock.sleep_ms(REPORT_RETRY_MS)
                    continue
                log.warning("%s", self.problem)
            except (LocalError, RemoteError) as error:
                # After a restart they may stand there with other digits behind the point; the first ones count.
                log.info("the numbers of step %d are not taken: %s", step, error)
            else:
                self.problem = ""
            return


def is_evaluation_due(rule: EvaluationConfig, step: Step, last: int) -> bool:
    """Whether a checkpoint is tried on held-out problems; `last` is the step to end with, 0 for none."""
    return bool(rule.task_set) and (step % rule.every == 0 or step == last)


def make_metrics(numbers: Mapping[str, float]) -> tuple[Metric, ...]:
    return tuple(Metric(name=name, value=numbers[name]) for name in sorted(numbers))


def make_eval_config(rule: EvaluationConfig, model: Path) -> EvalConfig:
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
