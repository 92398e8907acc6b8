"""Commands about a model alone, without a run: a warm start, a test, the choice of tasks worth training on."""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prime_protocol.errors import LocalError

Say = Callable[[str], None]

TEXTS = {
    "sft": "learn examples by heart, so that some answers are right before reinforcement begins",
    "eval": "try a model on tasks and print its mean reward",
    "filter": "write down the tasks that a model gets right sometimes: neither too easy nor hopeless",
}


def add_model_commands(commands: Any, command: str) -> None:
    """Flags are made for the command that is meant only: they need more imports than `--help` should."""
    for name, text in TEXTS.items():
        parser = commands.add_parser(name, help=text, description=text)
        if name != "sft":
            parser.add_argument("--json", action="store_true", help="print JSON")
        if name == "filter":
            parser.add_argument("--low", type=float, default=0.1, help="least mean reward (default 0.1)")
            parser.add_argument("--high", type=float, default=0.9, help="most mean reward (default 0.9)")
            parser.add_argument("--out", type=Path, required=True, help="file for the numbers of the tasks, one a line")
        if command == name:
            from prime_runtime.settings import add_flags

            parser.add_argument("--config", type=Path, help="TOML file with settings; flags overrule it")
            add_flags(parser, _config_of(name))


def _config_of(name: str) -> type:
    from prime_trainer.model_config import EvalConfig, SftConfig

    return SftConfig if name == "sft" else EvalConfig


def run_model_command(args: argparse.Namespace, environ: Mapping[str, str], say: Say) -> int:
    from prime_runtime.settings import load_config, read_flags

    kind = _config_of(args.command)
    config: Any = load_config(kind, read_flags(args, kind), environ, args.config)
    return {"sft": run_sft, "eval": run_eval, "filter": run_filter}[args.command](args, config, say)


def run_sft(args: argparse.Namespace, config: Any, say: Say) -> int:
    from prime_trainer.sft import warm_up

    every = max(1, config.steps // 10)

    def tell(step: int, loss: float) -> None:
        if step % every == 0:
            say(f"step {step} of {config.steps}: loss {loss:.4f}")

    warm_up(config, tell)
    say(f"written to {config.out}")
    return 0


def run_eval(args: argparse.Namespace, config: Any, say: Say) -> int:
    from prime_trainer.evaluate import evaluate

    scored = asyncio.run(evaluate(config))
    mean = sum(each.mean for each in scored) / len(scored)
    answers = len(scored) * config.samples
    if args.json:
        say(json.dumps({"reward_mean": mean, "tasks": len(scored), "answers": answers}))
    else:
        say(f"mean reward {mean:.4f} over {answers} answers to {len(scored)} tasks of {config.task_set}")
    return 0


def run_filter(args: argparse.Namespace, config: Any, say: Say) -> int:
    from prime_trainer.evaluate import choose_tasks, evaluate

    if not 0 <= args.low <= args.high <= 1:
        raise LocalError(f"--low {args.low} and --high {args.high} must be from 0 to 1, in this order")
    scored = asyncio.run(evaluate(config))
    chosen = choose_tasks(scored, low=args.low, high=args.high)
    args.out.write_text("".join(f"{task}\n" for task in chosen))
    if args.json:
        say(json.dumps({"tasks": len(scored), "chosen": len(chosen)}))
    else:
        say(f"{len(chosen)} of {len(scored)} tasks have a mean reward from {args.low} to {args.high}: {args.out}")
    return 0
