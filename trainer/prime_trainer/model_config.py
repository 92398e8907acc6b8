"""The settings of `prime-trainer sft`, `eval` and `filter`. No torch: `--help` reads it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prime_runtime.settings import Between


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Everything `sft` can be told."""

    model: Path
    """Model to begin with: a folder, or owner/model on the Hugging Face hub."""
    out: Path
    """Folder for the model that comes out, in bf16; it must not exist."""
    task_set: str = ""
    """Task set whose own answers are learnt; see docs/protocol/tasks.md."""
    data: Path | None = None
    """File of examples instead, a line of JSON each: {"prompt": ..., "completion": ...}."""
    steps: Annotated[int, Between(1, 10**9)] = 100
    """Updates of the weights."""
    examples: Annotated[int, Between(1, 2**20)] = 128
    """Examples of one update."""
    learning_rate: Annotated[float, Between(0.0, 1.0)] = 3e-3
    """Of AdamW; it does not change."""
    pack_tokens: Annotated[int, Between(1, 2**24)] = 4096
    """Input tokens of one forward pass."""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    """Decides the order of the examples."""
    device: str = "cpu"
    """Where the model is: cpu or cuda."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """Threads of torch, on a CPU."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Everything `eval` can be told."""

    model: Path
    """The model: a folder, or owner/model on the Hugging Face hub."""
    task_set: str
    """Task set to try it on; see docs/protocol/tasks.md."""
    dataset: Path | None = None
    """Problem file, for a task set that names one."""
    first: Annotated[int, Between(0, 2**40)] = 0
    """First task."""
    tasks: Annotated[int, Between(1, 2**20)] = 256
    """How many."""
    samples: Annotated[int, Between(1, 1024)] = 1
    """Answers to each."""
    temperature: Annotated[float, Between(0.0, 10.0)] = 1.0
    """Of the sampling; 0 is greedy."""
    tokens_max: Annotated[int, Between(1, 2**20)] = 1024
    """Longest answer."""
    batch: Annotated[int, Between(1, 65_536)] = 256
    """Answers generated at once."""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    """Of the sampling."""
    device: str = "cpu"
    """Where the model is: cpu or cuda."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """Threads of torch, on a CPU."""
    as_published: bool = False
    """Round the weights to bf16 first, as they are when a checkpoint of a trainer is published."""
