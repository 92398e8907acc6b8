"""Command line of the devnet: `python -m prime_lab.devnet`, `prime-coordinator devnet`, and `make demo`.

Exit codes: 0 all checks of the result passed, 1 one failed (the text says which), 2 bad arguments, 130 interrupted.
"""

import argparse
import asyncio
import contextlib
import math
import os
import sys
import tempfile
from pathlib import Path

FOLDER = "prime-devnet"


def make_parser() -> argparse.ArgumentParser:
    from prime_lab.cheats.registry import CHEATS
    from prime_lab.devnet.recipe import SLOTS

    parser = argparse.ArgumentParser(
        prog="prime-coordinator devnet",
        description="A whole network on this machine: coordinator, trainer, relay, workers, validators and a cheater, "
        "each in its own process. It trains a tiny model and prints the result.",
    )
    parser.add_argument("--nodes", type=int, default=3, help="honest workers (default 3)")
    parser.add_argument("--validators", type=int, default=2, help="validators (default 2)")
    parser.add_argument("--cheaters", type=int, default=1, help="workers that cheat (default 1)")
    parser.add_argument("--idlers", type=int, default=0, help="validators that judge without reading (default 0)")
    parser.add_argument(
        "--malicious", type=float, metavar="SHARE", help="share of all workers that cheat; replaces --cheaters"
    )
    parser.add_argument(
        "--attack",
        default="answer-sheet",
        metavar="NAME[,NAME...]",
        help=f"attacks of the cheaters, in turn: {', '.join(sorted(CHEATS))} (default answer-sheet)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="train this instead of the tiny model: a folder, or `recurrent` for a tiny one without attention",
    )
    parser.add_argument("--steps", type=int, default=60, help="training steps (default 60)")
    parser.add_argument("--slots", type=int, default=SLOTS, help=f"tasks of a step, 16 answers each (default {SLOTS})")
    parser.add_argument("--seed", type=int, default=0, help="of the tiny model (default 0)")
    parser.add_argument(
        "--folder", type=Path, help="folder for the files of all parties; default: one that is removed at the end"
    )
    parser.add_argument(
        "--settlement",
        choices=("embedded", "evm"),
        default="embedded",
        help="where value is held: in the log, or on a chain",
    )
    parser.add_argument("--limit-s", type=int, default=900, help="time limit in seconds (default 900)")
    parser.add_argument("--exit", action="store_true", help="exit when the run is done, with a line for scripts")
    return parser


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    from prime_lab.cheats.registry import CHEATS

    parser = make_parser()
    args = parser.parse_args(argv)
    if args.nodes < 1 or args.validators < 2 or min(args.cheaters, args.idlers) < 0 or min(args.steps, args.slots) < 1:
        parser.error("there must be at least 1 worker, 2 validators (one for an appeal), 1 step and 1 slot")
    args.attack = tuple(args.attack.split(","))
    if unknown := set(args.attack) - CHEATS.keys():
        parser.error(f"no attack is called {sorted(unknown)[0]!r}; there are {', '.join(sorted(CHEATS))}")
    if args.malicious is not None:
        if not 0 <= args.malicious < 1:
            parser.error(f"--malicious {args.malicious} must be from 0 to less than 1")
        args.cheaters = count_cheaters(args.nodes, args.malicious)
    return args


def count_cheaters(honest: int, share: float) -> int:
    """The fewest that make up this share of all workers. Slightly rounded down: few shares are exact in binary."""
    return math.ceil(share * honest / (1 - share) - 1e-9)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    from prime_protocol.errors import LocalError, RemoteError

    try:
        with contextlib.ExitStack() as stack:
            folder = args.folder
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{FOLDER}-")))
            return asyncio.run(run(args, folder))
    except KeyboardInterrupt:
        return 130
    except (LocalError, RemoteError) as error:
        print(f"the devnet failed: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"the devnet needs {error.name}: pip install 'prime-swarm[node,trainer,lab]'", file=sys.stderr)
        return 1


async def run(args: argparse.Namespace, folder: Path) -> int:
    from prime_lab.devnet.monitor import DevnetConsole
    from prime_lab.devnet.plan import RECURRENT, DevnetPlan
    from prime_lab.devnet.run import Devnet, run_devnet
    from prime_lab.devnet.summary import describe_summary, format_result, list_failures

    is_recurrent = args.model == Path(RECURRENT)
    plan = DevnetPlan(
        folder=folder.absolute(),
        seed=args.seed,
        workers=args.nodes,
        validators=args.validators,
        cheaters=args.cheaters,
        attacks=args.attack,
        idlers=args.idlers,
        steps=args.steps,
        slots=args.slots,
        model=None if is_recurrent else args.model,
        is_recurrent=is_recurrent,
        # On a chain the demonstration also has a wrong verdict, and the appeal that overturns it.
        false_witnesses=1 if args.settlement == "evm" else 0,
        settles_on_chain=args.settlement == "evm",
        limit_s=args.limit_s,
    )
    async with contextlib.AsyncExitStack() as stack:
        screen = stack.enter_context(DevnetConsole(plan.steps))
        devnet = Devnet(plan, screen.say, screen.show, os.environ)
        screen.names = devnet.names
        stack.push_async_callback(devnet.stop)
        summary = await run_devnet(devnet)
        screen.close()
        told, missing = await devnet.tell_chain()
        for line in [*describe_summary(summary), *told]:
            screen.say(line)
        failures = [*list_failures(summary), *missing]
        for failure in failures:
            screen.say(f"FAILED: {failure}")
        if args.exit:
            screen.say(format_result(summary))
        else:
            screen.say(f"explorer   {devnet.url}   (Ctrl-C ends everything)")
            await asyncio.Event().wait()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
