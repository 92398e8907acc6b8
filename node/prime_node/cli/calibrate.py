"""`prime-node calibrate`: measure the numerical noise of engines on a model, and write a run's tolerance."""

import asyncio
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prime_node.calibration.fit import CalibrationTarget, collect_noise, fit_tolerance
from prime_node.calibration.measure import (
    BFLOAT16,
    EMULATED,
    FLOAT32,
    CalibrationPlan,
    measure,
    plan_setups,
    random_prompts,
)
from prime_node.calibration.report import COLUMNS, list_bounds, list_noise, render_toml
from prime_node.cli.context import NodeCliContext
from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.interface import Sampling
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.tolerance import Precision
from prime_runtime.clock import SystemClock
from prime_runtime.model_files import ModelFiles
from prime_runtime.task_sets import open_task_set

TASKS = 256
"""Prompts used from a task set."""


def calibrate(context: NodeCliContext) -> int:
    args, base = context.args, context.resolve().config.engine
    target = CalibrationTarget(
        false_rejects=args.false_rejects, confidence=args.confidence, file_tokens=args.file_tokens
    )
    check_output_path(args.out)
    model = ModelFiles.open(args.checkpoint)
    plan = make_plan(context, base, model)
    context.screen.print_line(f"{len(plan.setups)} ways to run {args.checkpoint}, each reads what all of them wrote")
    with tempfile.TemporaryDirectory(prefix="prime-calibrate-") as folder:
        rows, facts = asyncio.run(measure(plan, base, Path(folder), context.screen.print_line))
    noises = [collect_noise(pairing, found) for pairing, found in rows.items()]
    tolerance = fit_tolerance(noises, target, precision=Precision(args.precision), hidden=facts.hidden)
    screen = context.screen
    screen.show(screen.table(COLUMNS, list_noise(noises)))
    screen.show(screen.table(["bound", "largest seen", "value"], list_bounds(tolerance, noises)))
    measured = f"the model files {model.digest}"
    write_file(args.out, render_toml(tolerance, target, noises, model=measured, at_ms=SystemClock().now_ms()))
    screen.print_line(f"written to {args.out}: prime-coordinator run create --terms {args.out} takes it")
    return 0


def make_plan(context: NodeCliContext, base: EngineConfig, model: ModelFiles) -> CalibrationPlan:
    args = context.args
    prompts = (
        task_prompts(model, args.task_set)
        if args.task_set
        else random_prompts(model.vocabulary, model.context_max, args.seed)
    )
    longest = max(len(prompt) for prompt in prompts)
    if longest + args.tokens > model.context_max:
        raise LocalError(f"prompts of {longest} tokens leave no room for {args.tokens} in {model.context_max}")
    return CalibrationPlan(
        checkpoint=args.checkpoint.absolute(),
        setups=plan_setups(
            find_engines(base, args.vllm_python),
            find_precisions(base, args.precision),
            batches=parse_numbers("--batch-sizes", args.batch_sizes),
            threads=parse_numbers("--thread-counts", args.thread_counts),
        ),
        completions=args.completions,
        sampling=Sampling(temperature=args.temperature, eos=model.eos, tokens_max=args.tokens),
        prompts=prompts,
        seed=args.seed,
    )


def find_engines(base: EngineConfig, vllm_python: Path | None) -> list[tuple[EngineKind, Path | None]]:
    """torch always, and vLLM if it is installed."""
    engines: list[tuple[EngineKind, Path | None]] = [(EngineKind.TORCH, None)]
    python = vllm_python or (base.python if base.engine is EngineKind.VLLM else None)
    if python is not None:
        engines.append((EngineKind.VLLM, python.absolute()))
    elif find_spec("vllm") is not None:
        engines.append((EngineKind.VLLM, None))
    return engines


def find_precisions(base: EngineConfig, wanted: str) -> list[str]:
    """A bfloat16 run also has machines without bfloat16, so both precisions are measured."""
    if wanted == FLOAT32:
        return [FLOAT32]
    from prime_node.engine.torch.device import choose_device, has_bf16

    return [FLOAT32, BFLOAT16 if has_bf16(choose_device(base.device)) else EMULATED]


def task_prompts(model: ModelFiles, task_set: str) -> list[NDArray[np.int32]]:
    try:
        family = open_task_set(task_set)
    except RemoteError as error:
        raise LocalError(f"--task-set: {error}") from None
    prompts = [family.make(task).prompt for task in range(min(TASKS, family.size))]
    return [np.array(tokens, np.int32) for tokens in model.encode_prompts(prompts)]


def parse_numbers(flag: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise LocalError(f"{flag} is {text!r}; write whole numbers with commas between them, such as 1,16")
    return numbers


def check_output_path(path: Path) -> None:
    """Fail before an hour of measuring, not after it."""
    if path.exists():
        raise LocalError(f"{path} exists already; name another file with --out")
    if not path.absolute().parent.is_dir():
        raise LocalError(f"there is no folder {path.absolute().parent} for {path.name}")


def write_file(path: Path, text: str) -> None:
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from None
