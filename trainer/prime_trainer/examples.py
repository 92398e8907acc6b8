"""Prompts with the completions they should get: from a file, or from tasks that know their own answer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from prime_protocol.errors import LocalError
from prime_protocol.tasks.arithmetic import Arithmetic
from prime_protocol.tasks.characters import STOP
from prime_protocol.tasks.family import Family
from prime_protocol.tasks.sort_digits import SortDigits
from prime_runtime.model_files import ModelFiles
from prime_trainer.packing import Sample

LINE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class Example:
    """What to learn by heart."""

    prompt: str
    completion: str


def read_examples(path: Path) -> list[Example]:
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


def _read_line(path: Path, number: int, line: bytes) -> Example:
    if len(line) > LINE_BYTES_MAX:
        raise LocalError(f"{path}, line {number} is longer than {LINE_BYTES_MAX} bytes")
    try:
        row = json.loads(line)
        prompt, completion = row["prompt"], row["completion"]
    except (ValueError, KeyError, TypeError):
        raise LocalError(f'{path}, line {number} is not {{"prompt": ..., "completion": ...}}') from None
    if not isinstance(prompt, str) or not isinstance(completion, str) or not completion:
        raise LocalError(f"{path}, line {number}: prompt and completion must be texts, the completion not empty")
    return Example(prompt, completion)


def draw_examples(family: Family, dice: Random) -> Iterator[Example]:
    """Tasks of a family whose answers are one text only, with it; for ever."""
    if not isinstance(family, SortDigits | Arithmetic):
        raise LocalError(f"the tasks of {family.name} have more than one right answer; give examples in a file: --data")
    while True:
        task = family.make(dice.randrange(family.size))
        yield Example(task.prompt, task.key + STOP)


def to_sample(example: Example, files: ModelFiles) -> Sample:
    """As if a worker had drawn it for certain, and it was right."""
    prompt = np.array(files.encode_prompt(example.prompt), np.int32)
    output = np.array(files.tokenizer.encode(example.completion, add_special_tokens=False).ids, np.int32)
    if not len(output) or output.max() >= files.vocabulary:
        raise LocalError(f"the tokenizer has no tokens of the model for {example.completion[:80]!r}")
    return Sample(prompt, output, np.zeros(len(output), np.float32), 1.0, 1.0)
