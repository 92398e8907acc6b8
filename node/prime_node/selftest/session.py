"""Runs a selftest: the probe of every engine in its own interpreter, then all pairs of engines as a node runs them."""

import asyncio
import json
import platform
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.interface import GenerateRequest, Sampling, TokenSequence
from prime_node.engine.measurement import ClaimedRow
from prime_node.engine.process import EngineProcess, build_command, build_environment
from prime_node.selftest.report import REPORT_VERSION, PairReport, ProbeOptions, summarize_pair
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest

PROMPT_TOKENS_MAX = 100
AUDIT_SEED = Digest(bytes(range(Digest.SIZE)))
"""Of the decoys. All engines are honest here, so it may be public."""
PROBE_S = 3600
STDERR_CHARS = 500


@dataclass(frozen=True, slots=True)
class EngineVariant:
    """One way to run the model on this machine."""

    engine: EngineKind
    precision: str
    python: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.engine} {self.precision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestPlan:
    """What is tried, and how much of it."""

    checkpoint: Path
    engines: tuple[EngineVariant, ...]
    left_out: dict[str, str]
    """Engines that are not tried, and why."""
    precision: Precision
    """Of the tolerance that pairs of engines are judged by."""
    sequences: int
    tokens: int
    vocabulary: int
    rows: int
    machine: dict[str, Any]


async def run_selftest(
    plan: SelftestPlan, base: EngineConfig, folder: Path, print_line: Callable[[str], None]
) -> dict[str, Any]:
    """The report, as JSON."""
    engines: dict[str, Any] = {}
    for tested in plan.engines:
        print_line(f"trying {tested.name}")
        engines[tested.name] = await run_probe(plan, tested, base, folder)
    working = [tested for tested in plan.engines if "problem" not in engines[tested.name]]
    print_line("comparing all pairs of engines")
    pairs = await compare_engines(plan, working, base, folder) if working else []
    return {
        "version": REPORT_VERSION,
        "machine": {"system": platform.platform(), **plan.machine},
        "sequences": plan.sequences,
        "tokens": plan.tokens,
        "engines": engines,
        "left_out": plan.left_out,
        "pairs": [asdict(pair) for pair in pairs],
    }


async def run_probe(plan: SelftestPlan, tested: EngineVariant, base: EngineConfig, folder: Path) -> dict[str, Any]:
    """What probe.py prints, or why it printed nothing."""
    config = replace(base, engine=tested.engine, python=tested.python)
    options = ProbeOptions(
        engine=tested.engine,
        device=base.device,
        precision=tested.precision,
        threads=base.threads,
        checkpoint=str(plan.checkpoint),
        sequences=plan.sequences,
        tokens=plan.tokens,
        vocabulary=plan.vocabulary,
        rows=plan.rows,
    )
    process = await asyncio.create_subprocess_exec(
        build_command(config, plan.precision)[0],
        *("-m", "prime_node.selftest.probe", json.dumps(asdict(options))),
        env=build_environment(config, folder),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROBE_S):
            output, errors = await process.communicate()
    except TimeoutError:
        return {"problem": f"it was not done after {PROBE_S} s"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        tail = errors.decode(errors="replace").strip()[-STDERR_CHARS:]
        return {"problem": f"exit code {process.returncode}: {tail}"}
    return found


async def compare_engines(
    plan: SelftestPlan, engines: Sequence[EngineVariant], base: EngineConfig, folder: Path
) -> list[PairReport]:
    """Each engine reads what all of them wrote. One is loaded at a time: they share the device's memory."""
    sampling = Sampling(temperature=1.0, eos=frozenset(), tokens_max=plan.tokens)
    written: dict[str, list[ClaimedRow]] = {}
    pairs = []
    for tested in engines:
        async with AsyncExitStack() as stack:
            process, vocabulary = await start_engine(stack, plan, tested, base, folder)
            orders = make_orders(plan.sequences, vocabulary)
            done = await process.generate(orders, sampling)
        written[tested.name] = [
            ClaimedRow(
                sequence=TokenSequence(number=order.number, prompt=order.prompt, output=row.tokens, seed=order.seed),
                logprobs=row.logprobs,
                proofs=row.proofs,
            )
            for order, row in zip(orders, done, strict=True)
        ]
    for tested in engines:
        async with AsyncExitStack() as stack:
            process, _ = await start_engine(stack, plan, tested, base, folder)
            for writer, claims in written.items():
                rows = await process.check(claims, sampling, AUDIT_SEED)
                pairs.append(summarize_pair(writer, tested.name, rows, plan.precision))
    return pairs


async def start_engine(
    stack: AsyncExitStack, plan: SelftestPlan, tested: EngineVariant, base: EngineConfig, folder: Path
) -> tuple[EngineProcess, int]:
    """The engine with the checkpoint, and the size of its vocabulary."""
    config = replace(base, engine=tested.engine, python=tested.python)
    command = build_command(config, plan.precision)
    command[command.index("--precision") + 1] = tested.precision
    process = await EngineProcess.start(
        command, build_environment(config, folder), folder, start_ms=config.start_ms, stall_ms=config.stall_ms
    )
    stack.push_async_callback(process.close)
    return process, (await process.load(plan.checkpoint)).vocabulary


def make_orders(count: int, vocabulary: int) -> list[GenerateRequest]:
    """Prompts of all lengths."""
    if count < 1:
        raise LocalError(f"--sequences is {count}, the least is 1")
    dice = np.random.default_rng(6)
    lengths = dice.integers(1, PROMPT_TOKENS_MAX + 1, count).tolist()
    return [
        GenerateRequest(number=n, prompt=dice.integers(0, vocabulary, length).astype(np.int32), seed=2**63 + n)
        for n, length in enumerate(lengths)
    ]
