"""`prime-coordinator quickstart`: make and run a whole test network on this machine, for others to join."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from prime_coordinator.cli.context import OperatorContext
from prime_coordinator.quickstart.plan import TINY, TINY_TASKS, QuickstartPlan, list_invites
from prime_coordinator.quickstart.run import Quickstart
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import NetworkId, RunId

QUESTIONS = {
    "network": "name of the network",
    "host": "name or address by which other machines reach this one (empty: this machine only)",
    "model": f"model: {TINY}, or the folder of a model",
    "task_set": "task set",
}
"""What is asked on a terminal where no flag says it."""
DEFAULTS = {"network": "devnet", "host": "", "model": TINY, "task_set": TINY_TASKS}


def quickstart(context: OperatorContext) -> int:
    plan = make_plan(context)
    screen = context.screen
    screen.print_line(f"everything of this network goes into {plan.folder}")
    started = Quickstart(plan, context.variables, screen.print_line)
    with suppress(KeyboardInterrupt):
        asyncio.run(run_quickstart(context, plan, started))
    return 0


async def run_quickstart(context: OperatorContext, plan: QuickstartPlan, started: Quickstart) -> None:
    say = context.screen.print_line
    try:
        await started.prepare()
        say("")
        say(f"the network runs. Explorer: {plan.url}")
        say(f"what it lacks: prime-coordinator check --folder {plan.coordinator}")
        say("contributors join with, on this machine or on others:")
        for invite in list_invites(plan):
            say(f"  {invite}")
        say("Ctrl-C stops it; the same command starts it again.")
        sys.stdout.flush()
        if not context.args.exit:
            await started.watch()
    finally:
        await started.stop()


def make_plan(context: OperatorContext) -> QuickstartPlan:
    args = context.args
    answers = {name: given if (given := getattr(args, name)) is not None else ask(context, name) for name in QUESTIONS}
    folder = Path(args.folder or "~/prime-quickstart").expanduser().absolute()
    try:
        NetworkId(answers["network"])
        RunId(args.run)
    except RemoteError as error:
        raise LocalError(str(error)) from None
    return QuickstartPlan(folder=folder, run=args.run, port=args.port, **answers)


def ask(context: OperatorContext, name: str) -> str:
    """The answer on a terminal; the default elsewhere, or with --yes."""
    default = DEFAULTS[name]
    if context.args.yes or not sys.stdin.isatty():
        return default
    try:
        return input(f"{QUESTIONS[name]} [{default}]: ").strip() or default
    except EOFError:
        raise LocalError("no answer was typed; nothing was done") from None
