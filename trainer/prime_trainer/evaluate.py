"""How good a model is at tasks it is not trained on, and which tasks it gets right how often."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prime_protocol.errors import LocalError
from prime_protocol.tasks.family import Family, Grade
from prime_protocol.tasks.registry import open_family
from prime_protocol.tasks.spec import TaskSetSpec
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox import Sandbox
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
    """Each task in turn."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    dataset = config.dataset.read_bytes() if config.dataset else b""
    family, files = open_family(TaskSetSpec.parse(config.task_set), dataset), ModelFiles.open(config.model)
    if config.first + config.tasks > family.size:
        raise LocalError(f"the task set has {family.size} tasks, fewer than {config.first + config.tasks}")
    model = open_model(config)
    tasks = [family.make(config.first + number) for number in range(config.tasks)]
    orders = [np.array(files.encode_prompt(task.prompt), np.int64) for task in tasks for _ in range(config.samples)]
    texts = [files.decode(tokens) for tokens in generate(model, orders, files, config)]
    async with Sandbox() as sandbox:
        rewards = [
            (await grade(family, tasks[place // config.samples], text, sandbox)).reward
            for place, text in enumerate(texts)
        ]
    count = config.samples
    return [Scored(task.index, tuple(rewards[place * count : (place + 1) * count])) for place, task in enumerate(tasks)]


async def grade(family: Family, task: Any, text: str, sandbox: Sandbox) -> Grade:
    found = family.grade(task, text)
    return found if isinstance(found, Grade) else family.conclude(task, await sandbox.run(found))


def open_model(config: EvalConfig) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    dtype = torch.float32 if config.device == "cpu" else torch.bfloat16
    try:
        model = AutoModelForCausalLM.from_pretrained(config.model, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise LocalError(f"cannot read a causal language model from {config.model}: {error}") from None
    return model.to(config.device).eval()


@torch.no_grad()  # type: ignore[untyped-decorator]
def generate(
    model: Any, prompts: Sequence[np.ndarray[Any, Any]], files: ModelFiles, config: EvalConfig
) -> list[list[int]]:
    """Sorted by length, padded on the left: a batch is as long as its longest prompt."""
    outputs: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for start in range(0, len(order), config.batch):
        places = order[start : start + config.batch]
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


def cut(tokens: list[int], eos: frozenset[int]) -> list[int]:
    """Up to the first end token, that one included."""
    end = next((place for place, token in enumerate(tokens) if token in eos), len(tokens) - 1)
    return tokens[: end + 1]


def choose_tasks(scored: Sequence[Scored], *, low: float, high: float) -> list[int]:
    """Tasks that are neither too easy nor hopeless: their mean reward is from `low` to `high`."""
    return [each.task for each in scored if low <= each.mean <= high]
