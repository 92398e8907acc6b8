"""Prompts with the completions they should get: from a file, or from tasks that know their own answer.

A warm start: learn completions by heart until some answers are right. GRPO learns nothing where none ever is.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import torch

from prime_protocol.errors import LocalError
from prime_protocol.tasks.characters import STOP, Arithmetic, SortDigits
from prime_protocol.tasks.family import TaskFamily
from prime_runtime.model_files import ModelFiles
from prime_runtime.task_sets import open_task_set
from prime_trainer.checkpoints import MODEL, WEIGHTS, copy_model_files, list_weights, write_tensors
from prime_trainer.config import SftConfig
from prime_trainer.data.packing import Sample, make_packs
from prime_trainer.model.policy import PolicyModel, resolve_model
from prime_trainer.publish.publisher import make_bf16_copy

LINE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class SftExample:
    """What to learn by heart."""

    prompt: str
    completion: str


def read_examples(path: Path) -> list[SftExample]:
    """A line of JSON each: {"prompt": ..., "completion": ...}."""
    found = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                found.append(_read_line(path, number, line))
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    if not found:
        raise LocalError(f"{path} holds no example")
    return found


def _read_line(path: Path, number: int, line: bytes) -> SftExample:
    if len(line) > LINE_BYTES_MAX:
        raise LocalError(f"{path}, line {number} is longer than {LINE_BYTES_MAX} bytes")
    try:
        row = json.loads(line)
        prompt, completion = row["prompt"], row["completion"]
    except (ValueError, KeyError, TypeError):
        raise LocalError(f'{path}, line {number} is not {{"prompt": ..., "completion": ...}}') from None
    if not isinstance(prompt, str) or not isinstance(completion, str) or not completion:
        raise LocalError(f"{path}, line {number}: prompt and completion must be texts, the completion not empty")
    return SftExample(prompt, completion)


def generate_examples(family: TaskFamily, dice: Random) -> Iterator[SftExample]:
    """Tasks of a family whose answers are one text only, with it; for ever."""
    if not isinstance(family, SortDigits | Arithmetic):
        raise LocalError(f"the tasks of {family.name} have more than one right answer; give examples in a file: --data")
    while True:
        task = family.make(dice.randrange(family.size))
        yield SftExample(task.prompt, task.key + STOP)


def make_sft_sample(example: SftExample, files: ModelFiles) -> Sample:
    """As if a worker had drawn it for certain, and it was right."""
    prompt = np.array(files.encode_prompt(example.prompt), np.int32)
    output = np.array(files.tokenizer.encode(example.completion, add_special_tokens=False).ids, np.int32)
    if not len(output) or output.max() >= files.vocabulary:
        raise LocalError(f"the tokenizer has no tokens of the model for {example.completion[:80]!r}")
    return Sample(prompt, output, np.zeros(len(output), np.float32), 1.0, 1.0)


def train_sft(config: SftConfig, tell: Callable[[int, float], None]) -> None:
    """The whole of it; `tell` hears of each step and its loss."""
    if config.out.exists():
        raise LocalError(f"{config.out} exists; name another folder")
    torch.set_num_threads(config.threads)
    config = replace(config, model=resolve_model(config.model))
    files, policy = ModelFiles.open(config.model), PolicyModel.load(config.model, device=config.device)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    examples = iterate_examples(config)
    for step in range(1, config.steps + 1):
        samples = [make_sft_sample(next(examples), files) for _ in range(config.examples)]
        loss = accumulate_gradients(policy, samples, config.pack_tokens)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tell(step, loss)
    write_model(policy, config)


def iterate_examples(config: SftConfig) -> Iterator[SftExample]:
    """In an order that the seed decides, for ever."""
    dice = Random(config.seed)
    if (config.data is None) == (not config.task_set):
        raise LocalError("say what to learn from: --task-set or --data, one of them")
    if config.data is None:
        yield from generate_examples(open_task_set(config.task_set), dice)
        return
    known = read_examples(config.data)
    while True:
        yield from dice.sample(known, len(known))


def accumulate_gradients(policy: PolicyModel, samples: list[Sample], pack_tokens: int) -> float:
    """Gradients of the mean log-prob over all tokens; the loss."""
    tokens, total = sum(len(sample.output_tokens) for sample in samples), 0.0
    for pack in make_packs(samples, policy.layout, tokens_max=pack_tokens):
        logp_T, _ = policy.score(pack)
        loss = -logp_T.sum() / tokens
        loss.backward()
        total += float(loss.detach())
    return total


def write_model(policy: PolicyModel, config: SftConfig) -> None:
    draft = config.out.with_name(config.out.name + ".draft") / MODEL
    draft.mkdir(parents=True, exist_ok=True)
    copy_model_files(config.model, draft)
    write_tensors(draft / WEIGHTS, list_weights(policy.model))
    make_bf16_copy(draft, config.out)
    for path in draft.iterdir():
        path.unlink()
    draft.rmdir()
    draft.parent.rmdir()
