"""Files of a hostile trainer that attack the library which reads tokenizer.json, run as a worker and a grader run them.

Each file breaks the library that this program is tested with: in the node's own process it would end the node, or keep
it busy for hours.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    HOSTILE_TOKENIZER,
)
from prime_lab.attacks.harness import RUN, STEP, TASK_SET, digest_words, make_terms
from prime_node.jobs.generate import list_samples, make_requests
from prime_node.jobs.step_context import StepContext
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_runtime.model_files import ModelFiles
from prime_runtime.tokenizer_process import TokenizerLimits
from prime_trainer.model.tiny import make_tiny_checkpoint, make_tokenizer

VOCABULARY = 64
LIMITS = TokenizerLimits(wall_ms=30_000, cpu_s=1, memory_bytes=256 * 2**20)
TEMPLATE = "1" * 40 + "{prompt}"
"""prompt.txt is the trainer's file too, so it chooses what the tokenizer meets."""

GROWING = {"type": "Replace", "pattern": {"String": "1"}, "content": "1" * 1000}
SLOW = {
    "type": "Split",
    # Just below the library's limit of tries for one match, at every position.
    "pattern": {"Regex": "(?:1|11|111){0,12}[^0-9^>]"},
    "behavior": "Isolated",
    "invert": False,
}


def change(**parts: Any) -> str:
    return json.dumps({**make_tokenizer(VOCABULARY), **parts})


def nest(depth: int) -> str:
    """Sequences in sequences, as text: our own json module would not write it."""
    inner = '{"type":"Sequence","normalizers":[' * depth + "]}" * depth
    return change().replace('"normalizer": null', f'"normalizer": {inner}')


HOSTILE_TOKENIZERS: dict[str, Callable[[], str]] = {
    "panic when read": lambda: change(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "panic when encoding": lambda: change(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "panic when decoding": lambda: change(decoder={"type": "Strip", "content": "1", "start": 5, "stop": 5}),
    "panic of a regex": lambda: change(
        pre_tokenizer={**SLOW, "pattern": {"Regex": "(1+)+$"}},
    ),
    "memory when encoding": lambda: change(normalizer={"type": "Sequence", "normalizers": [GROWING] * 10}),
    "memory when decoding": lambda: change(decoder={"type": "Sequence", "decoders": [GROWING] * 10}),
    "time": lambda: change(pre_tokenizer={"type": "Sequence", "pretokenizers": [SLOW] * 1000}),
    "nesting": lambda: nest(100_000),
    "not a tokenizer": lambda: "[" * 1_000_000,
}


async def attack_tokenizers(folder: Path) -> AsyncIterator[tuple[Attack, AttackResult]]:
    for number, (name, write) in enumerate(HOSTILE_TOKENIZERS.items()):
        context = open_context(folder / str(number), write())
        yield HOSTILE_TOKENIZER, await attack_tokenizer(name, context)


def open_context(folder: Path, tokenizer: str | None = None) -> StepContext:
    """A step whose checkpoint has this tokenizer.json, as a node opens it."""
    checkpoint = make_tiny_checkpoint(folder, vocabulary=VOCABULARY, prompt=TEMPLATE)
    if tokenizer is not None:
        (checkpoint / "tokenizer.json").write_text(tokenizer)
    terms = make_terms(
        vocabulary=VOCABULARY, model="hostile", tokens_max=64, prompt_tokens_max=128, tolerance=Tolerance()
    )
    return StepContext(
        run=RUN,
        step=STEP,
        terms=terms,
        beacon=digest_words("beacon", STEP),
        root=digest_words("root", folder),
        folder=checkpoint,
        family=open_family(TaskSetSpec.parse(TASK_SET)),
        model=replace(ModelFiles.open(checkpoint), tokenizer_limits=LIMITS),
    )


async def attack_tokenizer(name: str, context: StepContext) -> AttackResult:
    """Encode prompts as for a lease and decode answers as for a grade. One of them must fail as a LocalError, the next
    call must fail without a new process, and another tokenizer must still work."""
    rows = list_samples(0, 1, context)
    answers = [[1] * 8] * len(rows)
    problems = [
        await find_problem(lambda: make_requests(rows, context)),
        await find_problem(lambda: context.model.decode(answers)),
    ]
    again = await find_problem(lambda: context.model.decode(answers))
    honest = open_context(context.folder.with_name(f"{context.folder.name}-honest"))
    after = await asyncio.to_thread(make_requests, rows, honest)
    is_held = any(problems) and "is tried again in" in again and context.model.tokenizer.pid is None
    return AttackResult(
        verdict=AttackVerdict.HARMLESS if is_held and len(after) == len(rows) else None,
        checks=HOSTILE_TOKENIZER.caught_by if is_held else (),
        reason=f"{name}: {next(filter(None, problems), 'nothing happened').partition('tokenizer.json')[2]}",
    )


async def find_problem(call: Callable[[], object]) -> str:
    try:
        await asyncio.to_thread(call)
    except LocalError as error:
        return str(error)
    return ""
