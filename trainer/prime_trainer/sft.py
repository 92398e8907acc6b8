"""Supervised fine-tuning, the warm start of a run: GRPO gets no signal from tasks that are never answered right.

Examples come from a file, or from tasks with exactly one right answer.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import torch

from prime_protocol.errors import LocalError
from prime_protocol.tasks.characters import STOP, Arithmetic, SortDigits
from prime_protocol.tasks.family import TaskFamily
from prime_runtime.model_files import ModelFiles
from prime_runtime.task_sets import open_task_set
from prime_trainer.checkpoints import disk_errors
from prime_trainer.config import SftConfig
from prime_trainer.data.packing import Sample, make_packs
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.policy import PolicyModel, resolve_model
from prime_trainer.publish.outgoing import stage_weights, write_weights

LINE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class SftExample:
    """A prompt and the completion to imitate."""

    prompt: str
    completion: str


def read_examples(path: Path) -> list[SftExample]:
    """One JSON object per line: {"prompt": ..., "completion": ...}."""
    with disk_errors(f"read {path}"), path.open("rb") as file:
        examples = [_read_line(path, number, line) for number, line in enumerate(file, 1)]
    if not examples:
        raise LocalError(f"{path} holds no example")
    return examples


def _read_line(path: Path, number: int, line: bytes) -> SftExample:
    if len(line) > LINE_BYTES_MAX:
        raise LocalError(f"{path}, line {number} is longer than {LINE_BYTES_MAX} bytes")
    try:
        row = json.loads(line)
        prompt, completion = row["prompt"], row["completion"]
    except (ValueError, KeyError, TypeError):
        raise LocalError(f'{path}, line {number} is not {{"prompt": ..., "completion": ...}}') from None
    if not isinstance(prompt, str) or not isinstance(completion, str) or not completion:
        raise LocalError(f"{path}, line {number}: prompt and completion must be strings, the completion not empty")
    return SftExample(prompt, completion)


def generate_examples(family: TaskFamily, rng: Random) -> Iterator[SftExample]:
    """Endless random tasks of a family in which each task has exactly one right answer."""
    if not isinstance(family, SortDigits | Arithmetic):
        raise LocalError(f"the tasks of {family.name} have more than one right answer; give examples in a file: --data")
    while True:
        task = family.make(rng.randrange(family.size))
        yield SftExample(task.prompt, task.key + STOP)


def make_sft_samples(examples: Sequence[SftExample], files: ModelFiles) -> list[Sample]:
    """Samples as if a worker had generated them with probability 1 and advantage 1."""
    prompts = files.encode_prompts([example.prompt for example in examples])
    outputs = files.encode_texts([example.completion for example in examples])
    return [
        Sample(np.array(prompt, np.int32), np.array(output, np.int32), np.zeros(len(output), np.float32), 1.0, 1.0)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def train_sft(config: SftConfig, on_step: Callable[[int, float], None]) -> None:
    """Train and write the model. `on_step` is called with each step and its loss."""
    if config.out.exists():
        raise LocalError(f"{config.out} exists; choose another folder")
    torch.set_num_threads(config.threads)
    config = replace(config, model=resolve_model(config.model))
    files, policy = ModelFiles.open(config.model), PolicyModel.load(config.model, device=config.device)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    examples = iterate_examples(config)
    for step in range(1, config.steps + 1):
        samples = make_sft_samples(list(islice(examples, config.examples)), files)
        loss = accumulate_gradients(policy, samples, config.pack_tokens)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        on_step(step, loss)
    write_model(policy, config)


def iterate_examples(config: SftConfig) -> Iterator[SftExample]:
    """Endless, in an order that depends on the seed."""
    rng = Random(config.seed)
    if (config.data is None) == (not config.task_set):
        raise LocalError("give the examples with either --task-set or --data")
    if config.data is None:
        yield from generate_examples(open_task_set(config.task_set), rng)
        return
    examples = read_examples(config.data)
    while True:
        yield from rng.sample(examples, len(examples))


def accumulate_gradients(policy: PolicyModel, samples: list[Sample], pack_tokens: int) -> float:
    """Accumulate the gradients of the mean negative log-prob of all tokens; return that loss."""
    tokens, total = sum(len(sample.output_tokens) for sample in samples), 0.0
    for pack in make_packs(samples, policy.layout, tokens_max=pack_tokens):
        logp_T, _ = policy.score(pack)
        loss = -logp_T.sum() / tokens
        loss.backward()
        total += float(loss.detach())
    return total


def write_model(policy: PolicyModel, config: SftConfig) -> None:
    alone = RankGroup()
    write_weights(config.out, config.model, stage_weights(policy.model, alone), alone)
