"""Commands about a model alone, without a run: a warm start, a test, the choice of tasks worth training on.

`prime-trainer`: the command that owns the weights. It parses, then imports, then runs.

Exit codes: 0 done, or stopped as asked, 1 refused (the text says what to do), 2 wrong command line, 3 the weights do
not match, 4 the trainer is not running, or does not answer, 130 interrupted.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prime_protocol.errors import LocalError
from prime_runtime.cli import HELP_ALL, add_version, find_command

Say = Callable[[str], None]

MODEL_COMMANDS = {
    "sft": "learn examples by heart, so that some answers are right before reinforcement begins",
    "eval": "try a model on tasks and print its mean reward",
    "filter": "write down the tasks that a model gets right sometimes: neither too easy nor hopeless",
}


def add_model_commands(commands: Any, command: str) -> None:
    """Flags are made for the command that is meant only: they need more imports than `--help` should."""
    for name, text in MODEL_COMMANDS.items():
        parser = commands.add_parser(name, help=text, description=text)
        if name != "sft":
            parser.add_argument("--json", action="store_true", help="print JSON")
        if name == "filter":
            parser.add_argument("--low", type=float, default=0.1, help="least mean reward (default 0.1)")
            parser.add_argument("--high", type=float, default=0.9, help="most mean reward (default 0.9)")
            parser.add_argument("--out", type=Path, required=True, help="file for the numbers of the tasks, one a line")
        if command == name:
            from prime_runtime.settings.flags import add_flags

            parser.add_argument("--config", type=Path, help="TOML file with settings; flags overrule it")
            add_flags(parser, _get_config_type(name))


def _get_config_type(name: str) -> type:
    from prime_trainer.config import EvalConfig, SftConfig

    return SftConfig if name == "sft" else EvalConfig


def run_model_command(args: argparse.Namespace, environ: Mapping[str, str], say: Say) -> int:
    from prime_runtime.settings.flags import read_flags
    from prime_runtime.settings.loader import load_config

    kind = _get_config_type(args.command)
    config: Any = load_config(kind, read_flags(args, kind), environ, args.config)
    return {"sft": run_sft, "eval": run_eval, "filter": run_filter}[args.command](args, config, say)


def run_sft(args: argparse.Namespace, config: Any, say: Say) -> int:
    from prime_trainer.sft import train_sft

    every = max(1, config.steps // 10)

    def tell(step: int, loss: float) -> None:
        if step % every == 0:
            say(f"step {step} of {config.steps}: loss {loss:.4f}")

    train_sft(config, tell)
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


CLEAR_SCREEN = "\x1b[H\x1b[2J"
RUN_SETTINGS = ("store", "coordinator", "run", "key", "password_file")
COMMON_SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "start": {
        "run": RUN_SETTINGS,
        "training": ("folder", "model", "steps", "lag_max", "device", "precision", "threads"),
        "learning": ("optimizer.learning_rate", "batch.groups", "batch.tokens", "loss.kl_weight"),
        "evaluation": ("evaluation.task_set", "evaluation.every"),
    },
    "publish": {"run": RUN_SETTINGS, "weights": ("keyframe_every", "keep", "shard_bytes")},
    "origin": {"run": RUN_SETTINGS, "server": ("announce", "listen.host", "listen.port", "upload.bytes_per_s")},
}
"""Flags that `--help` of a command shows, by group; `--help-all` shows the others too."""


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if argv is None else argv
    command, show_all = find_command(words), HELP_ALL in words
    parser = argparse.ArgumentParser(prog="prime-trainer", description="Learn from verified rollouts, publish weights.")
    add_version(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    weights = commands.add_parser("weights", help="name, compare and patch checkpoints of safetensors files")
    actions = weights.add_subparsers(dest="action", required=True, metavar="ACTION")
    root = actions.add_parser("root", help="print the root that names a checkpoint's weights")
    root.add_argument("checkpoint", type=Path, help="a safetensors file, or a folder of them")
    diff = actions.add_parser("diff", help="write the lossless delta from one checkpoint to another")
    diff.add_argument("old", type=Path)
    diff.add_argument("new", type=Path)
    diff.add_argument("--out", type=Path, required=True, help="folder for the delta and its manifest")
    patch = actions.add_parser("patch", help="apply a delta to a copy of its base, and prove the result")
    patch.add_argument("base", type=Path)
    patch.add_argument("delta", type=Path, help="folder written by `diff`")
    patch.add_argument("--out", type=Path, required=True, help="where the patched checkpoint goes")
    for action in (root, diff, patch):
        action.add_argument("--run", default="local", help="name of the run in the manifests (default: local)")
        action.add_argument("--step", type=int, default=0, help="step of the (old) checkpoint (default: 0)")
    add_model_commands(commands, command)
    add_start(commands)
    add_status_and_stop(commands)
    add_publish(commands)
    add_origin(commands)
    if command in COMMON_SETTINGS:
        add_settings(commands.choices[command], command, show_all=show_all)
    return parser.parse_args(words)


def add_start(commands: Any) -> None:
    text = (
        "learn from what the run accepts and publish each step, until stopped; goes on where it was, however it ended"
    )
    commands.add_parser("start", help=text, description=text)


def add_status_and_stop(commands: Any) -> None:
    status = commands.add_parser("status", help="what the running trainer does, waits for and has learnt")
    status.add_argument("--json", action="store_true", help="print JSON instead of text")
    status.add_argument("--watch", action="store_true", help="keep showing it, every second, until interrupted")
    stop = commands.add_parser("stop", help="stop the running trainer after its running step, and wait until it has")
    stop.add_argument("--wait-s", type=float, default=600.0, help="how long to wait (default: 600)")
    for command in (status, stop):
        command.add_argument("--folder", type=Path, help="the trainer's folder ($PRIME_FOLDER)")


def add_publish(commands: Any) -> None:
    text = "publish a checkpoint: into the store, to the coordinator, into the log; again after a crash is harmless"
    publish = commands.add_parser("publish", help=text, description=text)
    publish.add_argument("checkpoint", type=Path, help="a safetensors file, or a folder of them; do not write it again")
    publish.add_argument("--step", type=int, required=True, help="number of the training step")
    kind = publish.add_mutually_exclusive_group()
    kind.add_argument(
        "--keyframe", action="store_const", const=True, help="whole, and as a delta where there is a base"
    )
    kind.add_argument(
        "--delta", dest="keyframe", action="store_const", const=False, help="only the change, if it can be"
    )
    publish.add_argument("--trained-on", type=Path, help="file with the names of the submissions it learnt from")


def add_origin(commands: Any) -> None:
    text = "serve the published weights and announce them, until interrupted"
    commands.add_parser("origin", help=text, description=text)


def add_settings(parser: argparse.ArgumentParser, command: str, *, show_all: bool) -> None:
    """The flags of one command's settings, made only for the command that is typed: they import what they configure."""
    from prime_runtime.settings.flags import add_flags
    from prime_trainer.config import OriginServerConfig, PublishConfig, TrainConfig

    config = {"start": TrainConfig, "publish": PublishConfig, "origin": OriginServerConfig}[command]
    parser.add_argument("--config", type=Path, help="TOML file with settings; flags and environment overrule it")
    add_flags(parser, config, COMMON_SETTINGS[command], show_all=show_all)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    from prime_protocol.errors import LocalError, RemoteError
    from prime_runtime.http.control_api import ProgramNotRunning

    try:
        return COMMANDS[args.command](args)
    except KeyboardInterrupt:
        return 130
    except ProgramNotRunning as error:
        print(f"prime-trainer: {error}", file=sys.stderr)
        return 4
    except LocalError as error:
        print(f"prime-trainer: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"prime-trainer: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except RemoteError as error:
        print(f"prime-trainer: refused: {error}", file=sys.stderr)
        return 3


def run_weights(args: argparse.Namespace) -> int:
    from prime_protocol.wire.ids import RunId, Step
    from prime_trainer.publish import checkpoint_delta as weights

    run, step = RunId(args.run), Step(args.step)
    if args.action == "root":
        print(weights.open_checkpoint(args.checkpoint, run, step).manifest.root)
    elif args.action == "diff":
        old, new = (weights.open_checkpoint(path, run, step) for path in (args.old, args.new))
        manifest = weights.write_delta(old, new, Step(step + 1), args.out)
        share = manifest.transport_bytes / new.manifest.transport_bytes
        print(f"{manifest.transport_bytes} bytes, {share:.2%} of the full checkpoint\nroot {manifest.root}")
    else:
        print(f"root {weights.apply_delta(args.base, args.delta, args.out, run, step).root}")
    return 0


def run_publish(args: argparse.Namespace) -> int:
    import asyncio

    from prime_protocol.wire.ids import Step
    from prime_runtime.clock import SystemClock
    from prime_runtime.settings.flags import read_flags
    from prime_runtime.settings.loader import load_config
    from prime_trainer.config import PublishConfig
    from prime_trainer.publish import publisher as publishing

    config = load_config(PublishConfig, read_flags(args, PublishConfig), os.environ, args.config)
    step, trained_on = Step(args.step), publishing.read_trained_on(args.trained_on)
    keyframe = publishing.choose_keyframe(step, forced=args.keyframe, every=config.keyframe_every)
    done = asyncio.run(
        publishing.publish_step(
            config,
            config.load_key(),
            args.checkpoint,
            step,
            keyframe=keyframe,
            trained_on=trained_on,
            clock=SystemClock(),
        )
    )
    for signed in done.made:
        manifest = signed.manifest
        print(f"{manifest.kind}  {signed.digest}  {manifest.transport_bytes} bytes in {len(manifest.shards)} shards")
    print(f"root {done.named.root}")
    print(f"step {step} stands in the log as entry {done.logged.index}")
    if not done.announced:
        print("the coordinator did not pass the announcement on; the origin will repeat it", file=sys.stderr)
    if done.removed:
        print(f"{done.removed} old versions were removed from the store")
    return 0


def run_origin(args: argparse.Namespace) -> int:
    import asyncio

    from prime_runtime.logs import configure_logging
    from prime_runtime.settings.flags import read_flags
    from prime_runtime.settings.loader import list_secrets, load_config
    from prime_trainer.config import OriginServerConfig
    from prime_trainer.publish import origin

    config = load_config(OriginServerConfig, read_flags(args, OriginServerConfig), os.environ, args.config)
    configure_logging(config.log, stream=sys.stderr, secrets=list_secrets(config))
    return asyncio.run(origin.run_origin(config))


def run_start(args: argparse.Namespace) -> int:
    import logging

    from prime_runtime.logs import configure_logging
    from prime_runtime.settings.flags import read_flags
    from prime_runtime.settings.loader import describe_config, list_secrets, resolve_config
    from prime_trainer.config import TrainConfig

    resolved = resolve_config(TrainConfig, read_flags(args, TrainConfig), os.environ, args.config)
    configure_logging(resolved.config.log, stream=sys.stderr, secrets=list_secrets(resolved.config))
    if os.environ.get("RANK", "0") == "0":
        # The first of those that torchrun started, or the only one.
        check_not_running(resolved.config.folder)
    for line in describe_config(resolved):
        level = logging.DEBUG if line.endswith("(default)") else logging.INFO
        logging.getLogger(__name__).log(level, "setting %s", line)
    from prime_trainer.app import run_trainer

    return run_trainer(resolved.config)


def check_not_running(folder: Path) -> None:
    """Before torch is loaded; life.py takes the lock."""
    from prime_runtime.lock import hold_process_lock
    from prime_trainer.config import TRAINER_LOCK_NAME

    if (folder / TRAINER_LOCK_NAME).exists():
        with hold_process_lock(folder / TRAINER_LOCK_NAME, "trainer", advice="give --folder a folder"):
            return


def run_status(args: argparse.Namespace) -> int:
    import asyncio
    import json
    import time

    from prime_runtime.http.control_api import call_control_api
    from prime_trainer.status import render_status

    while True:
        report = asyncio.run(
            call_control_api(get_lock_path(args), "trainer", "GET", "/status", start="prime-trainer start")
        )
        text = json.dumps(report, indent=None if args.watch else 2) if args.json else render_status(report)
        print(CLEAR_SCREEN + text if args.watch and not args.json else text, flush=True)
        if not args.watch:
            return 0
        time.sleep(1)


def run_stop(args: argparse.Namespace) -> int:
    import asyncio

    from prime_runtime.http.control_api import call_control_api, wait_until_stopped

    async def stop() -> None:
        await call_control_api(get_lock_path(args), "trainer", "POST", "/stop", start="prime-trainer start")
        await wait_until_stopped(get_lock_path(args), "trainer", int(args.wait_s * 1000))

    asyncio.run(stop())
    print("stopped")
    return 0


def get_lock_path(args: argparse.Namespace) -> Path:
    from prime_protocol.errors import LocalError
    from prime_trainer.config import TRAINER_LOCK_NAME

    folder = args.folder or os.environ.get("PRIME_FOLDER")
    if not folder:
        raise LocalError("which trainer? give its --folder, or set PRIME_FOLDER")
    return Path(folder).absolute() / TRAINER_LOCK_NAME


def run_model(args: argparse.Namespace) -> int:

    return run_model_command(args, os.environ, lambda text: print(text, flush=True))


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "sft": run_model,
    "eval": run_model,
    "filter": run_model,
    "start": run_start,
    "status": run_status,
    "stop": run_stop,
    "weights": run_weights,
    "publish": run_publish,
    "origin": run_origin,
}


if __name__ == "__main__":
    sys.exit(main())
