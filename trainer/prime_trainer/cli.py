"""`prime-trainer`: trains a run's model and publishes its weights. It parses, then imports, then runs.

Exit codes: 0 done or stopped on request, 1 refused (the message says what to do), 2 wrong command line, 3 verification
of weights or messages failed, 4 the trainer is not running or does not answer, 5 a plan does not fit, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prime_runtime.cli import HELP_ALL, add_version, collect_less_often, find_command
from prime_trainer.plan_command import add_plan, judge_plan

CLEAR_SCREEN = "\x1b[H\x1b[2J"
MODEL_COMMANDS = {
    "sft": "fine-tune a model on examples, so that some answers are right before reinforcement learning starts",
    "eval": "evaluate a model on tasks and print its mean reward",
    "filter": "write the indexes of tasks that a model solves sometimes: neither too easy nor too hard",
}
EXTRA_MODULES = ("torch", "transformers", "tokenizers", "safetensors", "tensorboard")
"""What the extra `trainer` brings."""
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


# --- Arguments --------------------------------------------------------------------------------------------------------


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if argv is None else argv
    command, show_all = find_command(words), HELP_ALL in words
    parser = argparse.ArgumentParser(
        prog="prime-trainer", description="Train on verified rollouts and publish the weights."
    )
    add_version(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_keys(commands)
    add_model(commands)
    add_weights(commands)
    add_model_commands(commands, command)
    text = "train on what the run accepts and publish each step, until stopped; resumes after any kind of exit"
    commands.add_parser("start", help=text, description=text)
    add_plan(commands)
    add_status_and_stop(commands)
    add_publish(commands)
    text = "serve the published weights and announce them, until interrupted"
    commands.add_parser("origin", help=text, description=text)
    if command in COMMON_SETTINGS:
        add_settings(commands.choices[command], command, show_all=show_all)
    return parser.parse_args(words)


def add_keys(commands: Any) -> None:
    keys = commands.add_parser("keys", help="make the trainer's key, or show its address")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a key; it never replaces a file")
    show = actions.add_parser("show", help="print the address of a key: run create --trainer takes it")
    for action in (new, show):
        action.add_argument("--key", type=Path, default=Path("trainer.json"), help="its file (default: trainer.json)")
    new.add_argument("--password-file", type=Path, help="file whose first line is the password; prompts if not given")


def add_model(commands: Any) -> None:
    model = commands.add_parser("model", help="make a model to try a network with")
    actions = model.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "write a tiny model with random weights: it can learn sort-digits and arithmetic on a CPU"
    tiny = actions.add_parser("tiny", help=text, description=text)
    tiny.add_argument("--out", type=Path, required=True, help="folder to write; it must not exist or be empty")
    tiny.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes (default: 0)")
    tiny.add_argument("--recurrent", action="store_true", help="one without attention")


def add_weights(commands: Any) -> None:
    weights = commands.add_parser("weights", help="hash, compare and patch checkpoints of safetensors files")
    actions = weights.add_subparsers(dest="action", required=True, metavar="ACTION")
    root = actions.add_parser("root", help="print the root hash of a checkpoint's weights")
    root.add_argument("checkpoint", type=Path, help="a safetensors file, or a folder of them")
    diff = actions.add_parser("diff", help="write the lossless delta from one checkpoint to another")
    diff.add_argument("old", type=Path)
    diff.add_argument("new", type=Path)
    diff.add_argument("--out", type=Path, required=True, help="folder for the delta and its manifest")
    patch = actions.add_parser("patch", help="apply a delta to a copy of its base, and verify the result")
    patch.add_argument("base", type=Path)
    patch.add_argument("delta", type=Path, help="folder written by `diff`")
    patch.add_argument("--out", type=Path, required=True, help="path for the patched checkpoint")
    for action in (root, diff, patch):
        action.add_argument("--run", default="local", help="name of the run in the manifests (default: local)")
        action.add_argument("--step", type=int, default=0, help="step of the (old) checkpoint (default: 0)")


def add_model_commands(commands: Any, command: str) -> None:
    """Commands about a model without a run. Only the typed command gets its flags: they need slow imports."""
    for name, text in MODEL_COMMANDS.items():
        parser = commands.add_parser(name, help=text, description=text)
        if name != "sft":
            parser.add_argument("--json", action="store_true", help="print JSON")
        if name == "filter":
            parser.add_argument("--low", type=float, default=0.1, help="lowest mean reward (default: 0.1)")
            parser.add_argument("--high", type=float, default=0.9, help="highest mean reward (default: 0.9)")
            parser.add_argument("--out", type=Path, required=True, help="file for the task indexes, one per line")
        if command == name:
            from prime_runtime.settings.flags import add_flags

            parser.add_argument("--config", type=Path, help="TOML file with settings; flags override it")
            add_flags(parser, get_model_config_type(name))


def add_status_and_stop(commands: Any) -> None:
    status = commands.add_parser("status", help="show what the running trainer does, waits for and has trained")
    status.add_argument("--json", action="store_true", help="print JSON instead of text")
    status.add_argument("--watch", action="store_true", help="refresh every second, until interrupted")
    stop = commands.add_parser("stop", help="stop the running trainer after its current step, and wait for it")
    stop.add_argument("--wait-s", type=float, default=600.0, help="seconds to wait (default: 600)")
    for command in (status, stop):
        command.add_argument("--folder", type=Path, help="the trainer's folder ($PRIME_FOLDER)")


def add_publish(commands: Any) -> None:
    text = "publish a checkpoint to the store, the coordinator and the log; safe to repeat after a crash"
    publish = commands.add_parser("publish", help=text, description=text)
    publish.add_argument("checkpoint", type=Path, help="a safetensors file or a folder of them; do not change it later")
    publish.add_argument("--step", type=int, required=True, help="number of the training step")
    kind = publish.add_mutually_exclusive_group()
    kind.add_argument("--keyframe", action="store_const", const=True, help="a keyframe, and a delta if possible")
    kind.add_argument("--delta", dest="keyframe", action="store_const", const=False, help="only a delta, if possible")
    publish.add_argument("--trained-on", type=Path, help="file with the names of the submissions it was trained on")


def add_settings(parser: argparse.ArgumentParser, command: str, *, show_all: bool) -> None:
    """Only the typed command gets its flags: they import what they configure."""
    from prime_runtime.settings.flags import add_flags
    from prime_trainer.config import OriginServerConfig, PublishConfig, TrainConfig

    config = {"start": TrainConfig, "publish": PublishConfig, "origin": OriginServerConfig}[command]
    parser.add_argument("--config", type=Path, help="TOML file with settings; flags and environment override it")
    add_flags(parser, config, COMMON_SETTINGS[command], show_all=show_all)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    collect_less_often()
    from prime_protocol.errors import LocalError, RemoteError
    from prime_runtime.http.control_api import ProgramNotRunning

    try:
        return COMMANDS[args.command](args)
    except KeyboardInterrupt:
        return 130
    except ProgramNotRunning as error:
        return fail(4, str(error))
    except LocalError as error:
        return fail(1, str(error))
    except ModuleNotFoundError as error:
        if error.name not in EXTRA_MODULES:
            raise
        return fail(1, f"this command needs {error.name}: pip install 'prime-swarm[trainer]'")
    except OSError as error:
        return fail(1, f"{error.filename}: {error.strerror}")
    except RemoteError as error:
        return fail(3, f"refused: {error}")


def fail(code: int, message: str) -> int:
    print(f"prime-trainer: {message}", file=sys.stderr)
    return code


def load_settings(args: argparse.Namespace, config: type) -> Any:
    from prime_runtime.settings.flags import read_flags
    from prime_runtime.settings.loader import load_config

    return load_config(config, read_flags(args, config), os.environ, args.config)


def run_keys(args: argparse.Namespace) -> int:
    from prime_trainer.setup_commands import make_key, show_key

    print(show_key(args.key) if args.action == "show" else make_key(args.key, args.password_file))
    return 0


def run_model(args: argparse.Namespace) -> int:
    from prime_trainer.setup_commands import make_model

    print(make_model(args.out, seed=args.seed, is_recurrent=args.recurrent))
    return 0


# --- Commands about a model -------------------------------------------------------------------------------------------


def get_model_config_type(command: str) -> type:
    from prime_trainer.config import EvalConfig, SftConfig

    return SftConfig if command == "sft" else EvalConfig


def run_sft(args: argparse.Namespace) -> int:
    config = load_settings(args, get_model_config_type("sft"))
    from prime_trainer.sft import train_sft

    every = max(1, config.steps // 10)

    def show_loss(step: int, loss: float) -> None:
        if step % every == 0:
            print(f"step {step} of {config.steps}: loss {loss:.4f}", flush=True)

    train_sft(config, show_loss)
    print(f"written to {config.out}")
    return 0


def run_eval(args: argparse.Namespace) -> int:
    import asyncio
    import json

    config = load_settings(args, get_model_config_type("eval"))
    from prime_trainer.evaluate import evaluate

    scored = asyncio.run(evaluate(config))
    mean = sum(each.mean for each in scored) / len(scored)
    answers = len(scored) * config.samples
    if args.json:
        print(json.dumps({"reward_mean": mean, "tasks": len(scored), "answers": answers}))
    else:
        print(f"mean reward {mean:.4f} over {answers} answers to {len(scored)} tasks of {config.task_set}")
    return 0


def run_filter(args: argparse.Namespace) -> int:
    import asyncio
    import json

    from prime_protocol.errors import LocalError

    config = load_settings(args, get_model_config_type("filter"))
    from prime_trainer.evaluate import choose_tasks, evaluate

    if not 0 <= args.low <= args.high <= 1:
        raise LocalError(f"--low {args.low} and --high {args.high} must be from 0 to 1, and low at most high")
    scored = asyncio.run(evaluate(config))
    chosen = choose_tasks(scored, low=args.low, high=args.high)
    args.out.write_text("".join(f"{task}\n" for task in chosen))
    if args.json:
        print(json.dumps({"tasks": len(scored), "chosen": len(chosen)}))
    else:
        print(f"{len(chosen)} of {len(scored)} tasks have a mean reward from {args.low} to {args.high}: {args.out}")
    return 0


def run_plan(args: argparse.Namespace) -> int:
    text, fits = judge_plan(args)
    print(text)
    return 0 if fits else 5


# --- Commands about a run ---------------------------------------------------------------------------------------------


def run_weights(args: argparse.Namespace) -> int:
    from prime_protocol.wire.ids import RunId, Step
    from prime_trainer.publish.checkpoint_delta import apply_delta, open_checkpoint, write_delta

    run, step = RunId(args.run), Step(args.step)
    if args.action == "root":
        print(open_checkpoint(args.checkpoint, run, step).manifest.root)
    elif args.action == "diff":
        old, new = (open_checkpoint(path, run, step) for path in (args.old, args.new))
        manifest = write_delta(old, new, Step(step + 1), args.out)
        share = manifest.transport_bytes / new.manifest.transport_bytes
        print(f"{manifest.transport_bytes} bytes, {share:.2%} of the full checkpoint\nroot {manifest.root}")
    else:
        print(f"root {apply_delta(args.base, args.delta, args.out, run, step).root}")
    return 0


def run_publish(args: argparse.Namespace) -> int:
    import asyncio

    from prime_protocol.wire.ids import Step
    from prime_runtime.clock import SystemClock
    from prime_trainer.config import PublishConfig
    from prime_trainer.publish.publisher import choose_keyframe, publish_step, read_trained_on

    config = load_settings(args, PublishConfig)
    step, trained_on = Step(args.step), read_trained_on(args.trained_on)
    done = asyncio.run(
        publish_step(
            config,
            config.load_key(),
            args.checkpoint,
            step,
            keyframe=choose_keyframe(step, forced=args.keyframe, every=config.keyframe_every),
            trained_on=trained_on,
            clock=SystemClock(),
        )
    )
    for signed in done.made:
        manifest = signed.manifest
        print(f"{manifest.kind}  {signed.digest}  {manifest.transport_bytes} bytes in {len(manifest.shards)} shards")
    print(f"root {done.named.root}")
    print(f"step {step} is entry {done.logged.index} of the log")
    if not done.announced:
        print("the coordinator did not relay the announcement; the origin will repeat it", file=sys.stderr)
    if done.removed:
        print(f"removed {done.removed} old versions from the store")
    return 0


def run_origin(args: argparse.Namespace) -> int:
    import asyncio

    from prime_runtime.logs import configure_logging
    from prime_runtime.settings.loader import list_secrets
    from prime_trainer.config import OriginServerConfig
    from prime_trainer.publish import origin

    config = load_settings(args, OriginServerConfig)
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
        # The first rank of `torchrun`, or the only process.
        check_not_running(resolved.config.folder)
    for line in describe_config(resolved):
        level = logging.DEBUG if line.endswith("(default)") else logging.INFO
        logging.getLogger(__name__).log(level, "setting %s", line)
    from prime_trainer.app import run_trainer

    return run_trainer(resolved.config)


def check_not_running(folder: Path) -> None:
    """Fail before torch is imported, which takes seconds. app.py takes the lock itself."""
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


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "keys": run_keys,
    "model": run_model,
    "sft": run_sft,
    "eval": run_eval,
    "filter": run_filter,
    "plan": run_plan,
    "start": run_start,
    "status": run_status,
    "stop": run_stop,
    "weights": run_weights,
    "publish": run_publish,
    "origin": run_origin,
}


if __name__ == "__main__":
    sys.exit(main())
