"""Runs honest engines against each other: each writes completions, each reads those of all. What differs is noise.

One engine at a time, in a process of its own as in a node. What the noise means is decided in calibration.py.
"""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prime_node.calibration import Noise, collect
from prime_node.engine.base import EngineFacts, Order, Sampling, Text
from prime_node.engine.engine_config import EngineConfig, EngineKind
from prime_node.engine.measuring import Claim, RowNumbers
from prime_node.engine.process import EngineProcess, command_of, environment_of
from prime_protocol.digests import digest_fields
from prime_protocol.ids import Digest
from prime_protocol.tolerance import Precision

FLOAT32, BFLOAT16, IMITATED = "float32", "bfloat16", "bfloat16-imitated"
IMITATED_SHARE = 8
"""Where bfloat16 is imitated it is many times slower, so only one in so many completions is written with it."""
ROWS_AT_ONCE = 512
PROMPT_TOKENS_MAX = 64
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """One honest way to run the model."""

    engine: EngineKind
    precision: str
    python: Path | None
    batch_max: int
    threads: int

    @property
    def kind(self) -> str:
        """What noise is told apart by. Batch sizes and threads are only there to bring it out."""
        return f"{self.engine} {self.precision}"

    def __str__(self) -> str:
        return f"{self.kind}, batch {self.batch_max}, {self.threads} threads"

    def config(self, base: EngineConfig) -> EngineConfig:
        return replace(base, engine=self.engine, python=self.python, batch_max=self.batch_max, threads=self.threads)

    def command(self, base: EngineConfig) -> list[str]:
        words = list(command_of(self.config(base), Precision.FLOAT32))
        words[words.index("--precision") + 1] = self.precision
        return words


Command = Callable[[Setup, EngineConfig], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    checkpoint: Path
    setups: tuple[Setup, ...]
    completions: int
    """Written by all engines together."""
    sampling: Sampling
    prompts: Sequence[NDArray[np.int32]]
    """Used again and again, with other seeds."""
    seed: int


def plan_setups(
    engines: Sequence[tuple[EngineKind, Path | None]],
    precisions: Sequence[str],
    *,
    batches: Sequence[int],
    threads: Sequence[int],
) -> tuple[Setup, ...]:
    """Each engine and precision with the first number of threads at every size of batch, and with the others at one."""
    ways = [(batch, threads[0]) for batch in batches] + [(batches[-1], count) for count in threads[1:]]
    return tuple(
        Setup(engine, precision, python, batch, count)
        for engine, python in engines
        for precision in precisions
        for batch, count in ways
    )


def random_prompts(vocabulary: int, context_max: int, seed: int) -> list[NDArray[np.int32]]:
    """Prompts of all lengths, where no task set is given: a model answers anything."""
    dice = np.random.default_rng(seed)
    longest = min(PROMPT_TOKENS_MAX, context_max // 2)
    return [dice.integers(0, vocabulary, dice.integers(1, longest + 1)).astype(np.int32) for _ in range(256)]


async def measure(
    plan: Plan, base: EngineConfig, folder: Path, say: Say, command: Command = Setup.command
) -> tuple[list[Noise], EngineFacts]:
    """Noise of each pairing of kinds. LocalError where an engine does not run."""

    @asynccontextmanager
    async def opened(setup: Setup) -> AsyncIterator[tuple[EngineProcess, EngineFacts]]:
        config = setup.config(base)
        environment = environment_of(config, folder)
        process = await EngineProcess.start(
            command(setup, base), environment, folder, start_ms=config.start_ms, stall_ms=config.stall_ms
        )
        try:
            yield process, await process.load(plan.checkpoint)
        finally:
            await process.close()

    written: dict[Setup, list[Claim]] = {}
    for number, setup in enumerate(plan.setups):
        async with opened(setup) as (process, facts):
            written[setup] = await write(process, make_orders(plan, number), plan.sampling)
        tokens = sum(len(claim.text.output) for claim in written[setup])
        say(f"written by {setup}: {len(written[setup])} completions, {tokens} tokens")
    rows: dict[str, list[RowNumbers]] = {}
    for reader in plan.setups:
        async with opened(reader) as (process, facts):
            for number, (writer, claims) in enumerate(written.items()):
                # In another order than they were written, so that other rows stand beside each other.
                mixed = random.Random(number).sample(claims, len(claims))
                found = await read(process, mixed, plan.sampling, digest_fields("calibration/1", str(reader).encode()))
                rows.setdefault(f"{writer.kind} → {reader.kind}", []).extend(found)
        say(f"read by {reader}")
    return [collect(pairing, found) for pairing, found in rows.items()], facts


def make_orders(plan: Plan, number: int) -> list[Order]:
    """This setup's part. Seeds and prompts are its own."""
    fast = sum(setup.precision != IMITATED for setup in plan.setups)
    shares = fast * IMITATED_SHARE + len(plan.setups) - fast
    part = plan.completions * (1 if plan.setups[number].precision == IMITATED else IMITATED_SHARE) / shares
    dice = random.Random(f"{plan.seed}/{number}")
    return [
        Order(number=n, prompt=plan.prompts[dice.randrange(len(plan.prompts))], seed=dice.getrandbits(64))
        for n in range(round(part))
    ]


async def write(process: EngineProcess, orders: list[Order], sampling: Sampling) -> list[Claim]:
    claims: list[Claim] = []
    for start in range(0, len(orders), ROWS_AT_ONCE):
        part = orders[start : start + ROWS_AT_ONCE]
        for order, done in zip(part, await process.generate(part, sampling), strict=True):
            text = Text(number=order.number, prompt=order.prompt, output=done.tokens, seed=order.seed)
            claims.append(Claim(text=text, logprobs=done.logprobs, proofs=done.proofs))
    return claims


async def read(process: EngineProcess, claims: list[Claim], sampling: Sampling, seed: Digest) -> list[RowNumbers]:
    rows: list[RowNumbers] = []
    for start in range(0, len(claims), ROWS_AT_ONCE):
        rows += await process.check(claims[start : start + ROWS_AT_ONCE], sampling, seed)
    return rows
