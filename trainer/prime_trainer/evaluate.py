"""How good a model is at tasks it is not trained on, and which tasks it gets right how often."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from prime_protocol.errors import LocalError
from prime_protocol.tasks.family import Family
from prime_protocol.tasks.registry import open_family
from prime_protocol.tasks.spec import TaskSetSpec
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox import Sandbox
from prime_runtime.task_sets import grade_answers
from prime_trainer.hub import find_model
from prime_trainer.model_config import EvalConfig


@dataclass(frozen=True, slots=True)
class Scored:
    """One task and the rewards of the answers to it."""

    task: int
    rewards: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.rewards) / len(self.rewards)


async def evaluate(config: EvalConfig) -> list[Scored]:
    """As the command does: the problem file is one on this machine."""
    torch.set_num_threads(config.threads)
    config = replace(config, model=find_model(config.model))
    dataset = config.dataset.read_bytes() if config.dataset else b""
    family = open_family(TaskSetSpec.parse(config.task_set), dataset)
    async with Sandbox() as sandbox:
        return await try_model(config, family, sandbox)


async def try_model(config: EvalConfig, family: Family, sandbox: Sandbox) -> list[Scored]:
    """Each task in turn."""
    if config.first + config.tasks > family.size:
        raise LocalError(f"the task set has {family.size} tasks, fewer than {config.first + config.tasks}")
    tasks = [family.make(config.first + number) for number in range(config.tasks)]
    texts = await asyncio.to_thread(answer, config, [task.prompt for task in tasks])
    count = config.samples
    found = []
    for place, task in enumerate(tasks):
        grades = await grade_answers(family, task, texts[place * count : (place + 1) * count], sandbox)
        found.append(Scored(task.index, tuple(grade.reward for grade in grades)))
    return found


def answer(config: EvalConfig, prompts: Sequence[str]) -> list[str]:
    """Completions of each prompt, one after the other."""
    files, model = ModelFiles.open(config.model), open_model(config)
    orders = [np.array(files.encode_prompt(prompt), np.int64) for prompt in prompts for _ in range(config.samples)]
    torch.manual_seed(config.seed)
    return [files.decode(tokens) for tokens in generate(model, orders, files, config)]


def open_model(config: EvalConfig) -> Any:
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
    for places in cut_batches(list(map(len, prompts)), config.batch, is_even=bool(model._is_stateful)):
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
            outputs[place] = cut(made[row, width:].tolist(), files.eos)
    return outputs


def cut_batches(lengths: Sequence[int], size: int, *, is_even: bool) -> list[list[int]]:
    """Places by length, at most `size` together; only equal lengths together where batches are to be even."""
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        fits = bool(batches) and len(batches[-1]) < size
        if fits and not (is_even and lengths[batches[-1][0]] != lengths[place]):
            batches[-1].append(place)
        else:
            batches.append([place])
    return batches


def cut(tokens: list[int], eos: frozenset[int]) -> list[int]:
    """Up to the first end token, that one included."""
    end = next((place for place, token in enumerate(tokens) if token in eos), len(tokens) - 1)
    return tokens[: end + 1]


def choose_tasks(scored: Sequence[Scored], *, low: float, high: float) -> list[int]:
    """Tasks that are neither too easy nor hopeless: their mean reward is from `low` to `high`."""
    return [each.task for each in scored if low <= each.mean <= high]
