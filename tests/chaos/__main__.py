"""`python -m chaos --seed N`: break a network of real processes by a schedule, and check that nothing was lost.

Exit codes: 0 nothing was, 1 something was (the text says what), 2 bad arguments.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from chaos.hosts import find_abilities
from chaos.report import describe, result_line
from chaos.run import play
from chaos.schedule import Ability, Arena, Kind, first_faults
from prime_protocol.errors import LocalError


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="which schedule (default 1)")
    parser.add_argument("--seconds", type=float, default=120, help="inject faults for so long (default 120)")
    parser.add_argument("--faults", type=int, default=10**6, help="stop after so many faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--validators", type=int, default=2)
    parser.add_argument(
        "--services", action="store_true", help="PostgreSQL and a bucket instead of SQLite and a folder"
    )
    parser.add_argument("--chain", action="store_true", help="stake and pay on a chain, which goes away too")
    parser.add_argument("--only", default="", help="kinds whose names hold one of these words: kill,clock")
    parser.add_argument("--plan", action="store_true", help="only print the schedule's first 40 faults")
    parser.add_argument("--folder", type=Path, help="keep everybody's files and words there")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    abilities = find_abilities() | {Ability.SERVICES if args.services else Ability.FILES}
    if args.chain:
        abilities |= {Ability.CHAIN}
    only = frozenset(kind for kind in Kind if any(part in kind for part in args.only.split(",")))
    arena = Arena(workers=args.workers, validators=args.validators, abilities=abilities, only=only)
    if not arena.kinds:
        print(f"--only {args.only} leaves nothing that this machine can do", file=sys.stderr)
        return 2
    if args.plan:
        print("\n".join(map(str, first_faults(args.seed, arena, 40))))
        return 0
    for missing in sorted({Ability.NAMESPACES, Ability.MOUNTS, Ability.CLOCKS} - abilities):
        print(f"left out, as this machine or user has no {missing}")
    folder = args.folder or Path(tempfile.mkdtemp(prefix="prime-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        work = play(
            folder,
            arena,
            args.seed,
            seconds=args.seconds,
            faults_max=args.faults,
            say=lambda line: print(line, flush=True),
        )
        outcome = asyncio.run(work)
    except (LocalError, AssertionError) as error:
        print(f"chaos with seed {args.seed} failed: {error}; everybody's files are in {folder}", file=sys.stderr)
        return 1
    print("\n".join(describe(outcome)))
    for trouble in outcome.trouble:
        print(f"TROUBLE: {trouble}")
    if outcome.trouble:
        print(f"everybody's files are in {folder}")
    elif args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    print(result_line(outcome, args.seed))
    return 1 if outcome.trouble else 0


if __name__ == "__main__":
    sys.exit(main())
