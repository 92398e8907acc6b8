"""`prime-node calibrate`: measure the numerical noise between engines of several machines, and write a run's bounds.

`write` generates completions here, `read` measures those of any machine here, `merge` fits the bounds to all
measurements. `machine` does the three for this machine alone.
"""

import asyncio
import secrets
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prime_node.calibration.files import CalibrationFile, MeasuredModel
from prime_node.calibration.measure import (
    BFLOAT16,
    EMULATED,
    FLOAT32,
    CalibrationPlan,
    CalibrationSite,
    EngineSetup,
    plan_setups,
    random_prompts,
    read_completions,
    write_completions,
)
from prime_node.cli.context import NodeCliContext
from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.interface import Sampling
from prime_node.jobs.examination import compute_checkpoint_root
from prime_node.storage.keys import load_key
from prime_node.storage.node_folder import NodeFolder
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.model_files import ModelFiles
from prime_runtime.task_sets import open_task_set

TASKS = 256
"""Prompts used from a task set."""


def write(context: NodeCliContext) -> int:
    args = context.args
    make_folder(args.out)
    with tempfile.TemporaryDirectory(prefix="prime-calibrate-") as folder:
        report_files(context, write_files(context, make_site(context, args.out, Path(folder))))
    context.screen.print_line("send them to the other machines, which run: prime-node calibrate read")
    return 0


def read(context: NodeCliContext) -> int:
    args = context.args
    make_folder(args.out)
    with tempfile.TemporaryDirectory(prefix="prime-calibrate-") as folder:
        report_files(context, read_files(context, args.files, make_site(context, args.out, Path(folder))))
    context.screen.print_line("send them to the operator, who runs: prime-node calibrate merge")
    return 0


def machine(context: NodeCliContext) -> int:
    from prime_node.cli.calibrate_merge import check_output_path, merge_files

    check_output_path(context.args.out)
    with tempfile.TemporaryDirectory(prefix="prime-calibrate-") as folder:
        site = make_site(context, Path(folder), Path(folder) / "engine")
        return merge_files(context, read_files(context, write_files(context, site), site), frozenset())


def write_files(context: NodeCliContext, site: CalibrationSite) -> list[Path]:
    model = ModelFiles.open(context.args.checkpoint)
    plan = make_plan(context.args, site.base, model)
    context.screen.print_line(f"{len(plan.setups)} ways to run {context.args.checkpoint}")
    measured = MeasuredModel(
        weights=compute_checkpoint_root(context.args.checkpoint),
        model_files=model.digest,
        precision=Precision(context.args.precision),
        temperature=plan.sampling.temperature,
        eos=tuple(sorted(plan.sampling.eos)),
        tokens_max=plan.sampling.tokens_max,
    )
    return asyncio.run(write_completions(plan, measured, site))


def read_files(context: NodeCliContext, paths: Sequence[Path], site: CalibrationSite) -> list[Path]:
    """LocalError: the files are not for this checkpoint, or not for one run."""
    args = context.args
    files = [CalibrationFile.open(path) for path in paths]
    check_files(files, compute_checkpoint_root(args.checkpoint))
    setups = choose_setups(args, site.base, files[0].header.model.precision)
    context.screen.print_line(f"{len(setups)} ways to run {args.checkpoint}, for {len(files)} files")
    reading = read_completions(files, setups, args.checkpoint.absolute(), site, slow_rows=args.slow_rows)
    return asyncio.run(reading)


def check_files(files: Sequence[CalibrationFile], weights: Digest) -> None:
    for file in files:
        if file.header.reader is not None:
            raise LocalError(f"{file.path} has measurements; `read` takes completions, as `write` makes them")
        if file.header.model.weights != weights:
            raise LocalError(f"{file.path} was written with other weights: {file.header.model.weights}, here {weights}")
        if file.header.model != files[0].header.model:
            raise LocalError(f"{file.path} and {files[0].path} are for different runs: sampling or precision differ")
    if len({file.digest for file in files}) < len(files):
        raise LocalError("the same file is given twice")


def make_site(context: NodeCliContext, out: Path, engine_folder: Path) -> CalibrationSite:
    return CalibrationSite(
        base=context.resolve().config.engine,
        engine_folder=engine_folder,
        out=out,
        key=choose_key(context),
        now_ms=SystemClock().now_ms(),
        print_line=context.screen.print_line,
    )


def choose_key(context: NodeCliContext) -> WalletKey:
    """The node's key, so that others know whose file it is; a fresh one where the folder has no node."""
    config = context.resolve().config
    if NodeFolder(config.folder).key.exists():
        return load_key(context.with_password(config))
    return WalletKey.from_secret(secrets.token_bytes(32))


def report_files(context: NodeCliContext, paths: Sequence[Path]) -> None:
    for path in paths:
        author = CalibrationFile.open(path).header.author
        context.screen.print_line(f"{path}: {path.stat().st_size} bytes, signed by {author}")


def make_plan(args: Namespace, base: EngineConfig, model: ModelFiles) -> CalibrationPlan:
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
        setups=choose_setups(args, base, Precision(args.precision)),
        completions=args.completions,
        sampling=Sampling(temperature=args.temperature, eos=model.eos, tokens_max=args.tokens),
        prompts=prompts,
        seed=args.seed,
    )


def choose_setups(args: Namespace, base: EngineConfig, precision: Precision) -> tuple[EngineSetup, ...]:
    default = str(base.tensor_parallel or 1)
    return plan_setups(
        find_engines(base, args.vllm_python),
        find_precisions(base, precision),
        batches=parse_numbers("--batch-sizes", args.batch_sizes),
        threads=parse_numbers("--thread-counts", args.thread_counts),
        splits=parse_numbers("--splits", args.splits or default),
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
    """A bfloat16 run also has machines without bfloat16, so on a CPU both precisions are measured."""
    if wanted == FLOAT32:
        return [FLOAT32]
    from prime_node.engine.torch.device import choose_device, has_bf16

    device = choose_device(base.device)
    if device.type == "cuda":
        return [BFLOAT16]
    return [FLOAT32, BFLOAT16 if has_bf16(device) else EMULATED]


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


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot make the folder {path}: {error.strerror}") from None
