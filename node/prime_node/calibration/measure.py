"""Runs honest engines against each other: each writes completions, each reads those of all. What differs is noise.

One engine at a time, in a process of its own as in a node. What the noise means is decided in calibration.py.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.interface import EngineFacts, GenerateRequest, Sampling, TokenSequence
from prime_node.engine.measurement import ClaimedRow, RowMeasurement
from prime_node.engine.process import EngineProcess, build_command, build_environment
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest, digest_fields

FLOAT32, BFLOAT16, EMULATED = "float32", "bfloat16", "bfloat16-imitated"
EMULATED_SHARE = 4
"""Where bfloat16 is imitated it is many times slower, so it writes less, and reads less of what others wrote."""
FASTEST_SHARE = 4
"""What the fastest setup of a kind writes for each completion of another."""
ROWS_AT_ONCE = 512
PROMPT_TOKENS_MAX = 64
DECOY_SEED = digest_fields("calibration/1")
"""Of the decoys. Nobody lies here, so nobody gains by knowing it."""
T = TypeVar("T")
PrintLine = Callable[[str], None]
RowsByPair = dict[str, list[RowMeasurement]]
"""What reading gave, by who wrote and who read. The number of a row is that of the completion."""


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One honest way to run the model."""

    engine: EngineKind
    precision: str
    python: Path | None
    batch_max: int
    threads: int
    share: int
    """Of the completions that are written, against the other setups."""
    reads_one_in: int
    """Of the completions that faster ones wrote."""

    @property
    def kind(self) -> str:
        """What noise is told apart by. Batch sizes and threads are only there to bring it out."""
        return f"{self.engine} {self.precision}"

    def __str__(self) -> str:
        return f"{self.kind}, batch {self.batch_max}, {self.threads} threads"

    def config(self, base: EngineConfig) -> EngineConfig:
        return replace(base, engine=self.engine, python=self.python, batch_max=self.batch_max, threads=self.threads)

    def command(self, base: EngineConfig) -> list[str]:
        words = list(build_command(self.config(base), Precision.FLOAT32))
        words[words.index("--precision") + 1] = self.precision
        return words


MakeCommand = Callable[[EngineSetup, EngineConfig], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPlan:
    """What is measured."""

    checkpoint: Path
    setups: tuple[EngineSetup, ...]
    completions: int
    """Written by all engines together."""
    sampling: Sampling
    prompts: Sequence[NDArray[np.int32]]
    """Used again and again, with other seeds."""
    seed: int
    at_once: int = 1
    """Engines that run beside each other."""


def plan_setups(
    engines: Sequence[tuple[EngineKind, Path | None]],
    precisions: Sequence[str],
    *,
    batches: Sequence[int],
    threads: Sequence[int],
    imitated_share: int = EMULATED_SHARE,
) -> tuple[EngineSetup, ...]:
    """Each engine and precision with the first number of threads at every size of batch, and with the others at one.

    Most is written in the largest batch with the first number of threads, as that is the fastest.
    """
    ways = [(batches[-1], threads[0], FASTEST_SHARE)]
    ways += [(batch, threads[0], 1) for batch in batches[:-1]] + [(batches[-1], count, 1) for count in threads[1:]]
    slowness = {EMULATED: imitated_share}
    factors = [(precision, slowness.get(precision, 1)) for precision in precisions]
    return tuple(
        EngineSetup(engine, precision, python, batch, count, share * imitated_share // factor, factor)
        for engine, python in engines
        for precision, factor in factors
        for batch, count, share in ways
    )


def random_prompts(vocabulary: int, context_max: int, seed: int) -> list[NDArray[np.int32]]:
    """Prompts of all lengths, where no task set is given: a model answers anything."""
    dice = np.random.default_rng(seed)
    longest = min(PROMPT_TOKENS_MAX, context_max // 2)
    return [dice.integers(0, vocabulary, dice.integers(1, longest + 1)).astype(np.int32) for _ in range(256)]


async def measure(
    plan: CalibrationPlan, base: EngineConfig, folder: Path, say: PrintLine, command: MakeCommand = EngineSetup.command
) -> tuple[RowsByPair, EngineFacts]:
    """What the rows gave, by pairing of kinds. LocalError where an engine does not run."""
    turns = asyncio.Semaphore(plan.at_once)

    @asynccontextmanager
    async def opened(number: int) -> AsyncIterator[tuple[EngineProcess, EngineFacts]]:
        config = plan.setups[number].config(base)
        async with turns:
            process = await EngineProcess.start(
                command(plan.setups[number], base),
                build_environment(config, folder),
                folder,
                start_ms=config.start_ms,
                stall_ms=config.stall_ms,
            )
            try:
                yield process, await process.load(plan.checkpoint)
            finally:
                await process.close()

    async def write_part(number: int) -> list[ClaimedRow]:
        async with opened(number) as (process, _):
            claims = await generate_claims(process, make_requests(plan, number), plan.sampling)
        tokens = sum(len(claim.sequence.output) for claim in claims)
        say(f"written by {plan.setups[number]}: {len(claims)} completions, {tokens} tokens")
        return claims

    async def read_parts(number: int) -> EngineFacts:
        async with opened(number) as (process, facts):
            for writer, claims in zip(plan.setups, written, strict=True):
                part = choose_claims(plan.setups, number, writer, claims)
                # In another order than they were written, so that other rows stand beside each other.
                mixed = random.Random(number).sample(part, len(part))
                rows[f"{writer.kind} → {plan.setups[number].kind}"] += await check_claims(
                    process, mixed, plan.sampling, DECOY_SEED
                )
        say(f"read by {plan.setups[number]}")
        return facts

    everybody = range(len(plan.setups))
    written = await gather_all([write_part(number) for number in everybody])
    rows: RowsByPair = {f"{writer.kind} → {reader.kind}": [] for reader in plan.setups for writer in plan.setups}
    facts = await gather_all([read_parts(number) for number in everybody])
    return rows, facts[0]


async def gather_all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results. The first failure ends the others, and the engines they started."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def choose_claims(
    setups: Sequence[EngineSetup], number: int, writer: EngineSetup, claims: Sequence[ClaimedRow]
) -> list[ClaimedRow]:
    """What one setup reads of another's: each kind reads every row once, its setups in turn; slow ones read less."""
    reader = setups[number]
    alike = [setup for setup in setups if setup.kind == reader.kind]
    part = claims[alike.index(reader) :: len(alike)]
    return list(part[:: reader.reads_one_in] if reader.reads_one_in > writer.reads_one_in else part)


def make_requests(plan: CalibrationPlan, number: int) -> list[GenerateRequest]:
    """This setup's part. Seeds and prompts are its own."""
    part = plan.completions * plan.setups[number].share / sum(setup.share for setup in plan.setups)
    dice = random.Random(f"{plan.seed}/{number}")
    return [
        GenerateRequest(number=n, prompt=plan.prompts[dice.randrange(len(plan.prompts))], seed=dice.getrandbits(64))
        for n in range(round(part))
    ]


async def generate_claims(
    process: EngineProcess, orders: list[GenerateRequest], sampling: Sampling
) -> list[ClaimedRow]:
    claims: list[ClaimedRow] = []
    for start in range(0, len(orders), ROWS_AT_ONCE):
        part = orders[start : start + ROWS_AT_ONCE]
        for order, done in zip(part, await process.generate(part, sampling), strict=True):
            text = TokenSequence(number=order.number, prompt=order.prompt, output=done.tokens, seed=order.seed)
            claims.append(ClaimedRow(sequence=text, logprobs=done.logprobs, proofs=done.proofs))
    return claims


async def check_claims(
    process: EngineProcess, claims: list[ClaimedRow], sampling: Sampling, seed: Digest
) -> list[RowMeasurement]:
    rows: list[RowMeasurement] = []
    for start in range(0, len(claims), ROWS_AT_ONCE):
        rows += await process.check(claims[start : start + ROWS_AT_ONCE], sampling, seed)
    return rows
