"""`prime-node selftest`: tries this machine's engines against references and each other."""

import asyncio
import json
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from prime_node.cli.context import NodeCliContext
from prime_node.doctor.machine import list_gpus, load_nvml, read_cpu, read_memory
from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.selftest.report import COLUMNS, find_problems, list_lines
from prime_node.selftest.session import EngineVariant, SelftestPlan, run_selftest
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_runtime.random_model import write_random_model

EXIT_PROBLEM = 3
SMALL = {"vocabulary": 2048, "hidden": 128, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 512}
LARGE = {"vocabulary": 151_936, "hidden": 1536, "layers": 28, "heads": 12, "kv_heads": 2, "intermediate": 8960}
"""The shape of Qwen2.5-1.5B: 3.1 GB in bfloat16."""
IMITATED = "bfloat16-imitated"


def run(context: NodeCliContext) -> int:
    args, screen = context.args, context.screen
    if args.out.exists():
        raise LocalError(f"{args.out} exists already; name another file with --out")
    base = context.resolve().config.engine
    has_gpu = base.device != "cpu" and bool(list_gpus(load_nvml()).gpus)
    with tempfile.TemporaryDirectory(prefix="prime-selftest-") as name:
        folder = Path(name)
        plan = make_plan(context, base, folder, has_gpu=has_gpu)
        report = asyncio.run(run_selftest(plan, base, folder, screen.print_line))
    report["problems"] = find_problems(report)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    if args.json:
        screen.print_json(report)
    else:
        screen.show(screen.table(COLUMNS, list(list_lines(report))))
        for problem in report["problems"]:
            screen.print_line(f"problem: {problem}")
        screen.print_line(f"written to {args.out}: send it with a report, it names the hardware and no keys")
    return EXIT_PROBLEM if report["problems"] else 0


def make_plan(context: NodeCliContext, base: EngineConfig, folder: Path, *, has_gpu: bool) -> SelftestPlan:
    args = context.args
    checkpoint = args.checkpoint.absolute() if args.checkpoint else None
    if checkpoint is None:
        context.screen.print_line("writing a model with random weights")
        checkpoint = write_random_model(folder / "model", **(LARGE if has_gpu else SMALL))
    engines, left_out = find_engines(base, args.vllm_python, has_gpu=has_gpu)
    gpus = list_gpus(load_nvml()).gpus
    return SelftestPlan(
        checkpoint=checkpoint,
        engines=engines,
        left_out=left_out,
        precision=Precision.BFLOAT16,
        sequences=args.sequences or (256 if has_gpu else 8),
        tokens=args.tokens or (256 if has_gpu else 64),
        vocabulary=LARGE["vocabulary"] if has_gpu else SMALL["vocabulary"],
        rows=256 if has_gpu else 2,
        machine={"cpu": asdict(read_cpu()), "memory": asdict(read_memory()), "gpus": [asdict(gpu) for gpu in gpus]},
    )


def find_engines(
    base: EngineConfig, vllm_python: Path | None, *, has_gpu: bool
) -> tuple[tuple[EngineVariant, ...], dict[str, str]]:
    """torch always and vLLM if it is installed, each in both precisions; and what is left out."""
    rounded = "bfloat16" if has_gpu else IMITATED
    found = [EngineVariant(EngineKind.TORCH, "float32"), EngineVariant(EngineKind.TORCH, rounded)]
    python = vllm_python or (base.python if base.engine is EngineKind.VLLM else None)
    if python is None and find_spec("vllm") is None:
        return tuple(found), {"vllm": "it is not installed here; --vllm-python names an interpreter that has it"}
    place = python.absolute() if python else None
    found += [EngineVariant(EngineKind.VLLM, "float32", place), EngineVariant(EngineKind.VLLM, rounded, place)]
    return tuple(found), {}
