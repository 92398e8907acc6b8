"""Command line of the gallery: `python -m prime_lab.attacks`, `prime-coordinator attacks`, and `make attacks`.

Exit codes: 0 every attack came to what it must come to and no honest work was refused, 1 not so (the table says what),
2 bad arguments, 3 the minutes were over before all was done (the same command goes on there), 130 interrupted.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prime_lab.attacks.suite import SuiteSummary


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prime-coordinator attacks",
        description="Run every attack that we know against the real checks, with honest work beside it, and print what "
        "each came to.",
    )
    parser.add_argument("--small", action="store_true", help="every attack once, on a tiny model: about a minute")
    parser.add_argument(
        "--out", type=Path, default=Path("attacks"), help="where tables and curves go (default attacks)"
    )
    parser.add_argument("--pretrained", type=Path, help="folder of a pretrained model to attack as well")
    parser.add_argument(
        "--keep", type=Path, default=Path(".attacks"), help="where finished pieces are kept (default .attacks)"
    )
    parser.add_argument(
        "--minutes", type=float, default=24 * 60, help="begin nothing new after so many; the same command goes on there"
    )
    parser.add_argument("--chunks", type=int, default=100_000, help="honest chunks to judge on a tiny model")
    parser.add_argument("--submissions", type=int, default=80, help="submissions of each attack on a tiny model")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    from prime_protocol.errors import LocalError, RemoteError

    try:
        with tempfile.TemporaryDirectory(prefix="prime-attacks-") as folder:
            return asyncio.run(run(args, Path(folder)))
    except KeyboardInterrupt:
        return 130
    except (LocalError, RemoteError) as error:
        print(f"the gallery failed: {error}", file=sys.stderr)
        return 1


async def run(args: argparse.Namespace, folder: Path) -> int:
    from prime_lab.attacks.suite import describe_suite

    began = time.monotonic()
    summary = await run_suite(args, folder)
    print(f"{time.monotonic() - began:.0f} s")
    for line in describe_suite(summary):
        print(line)
    if not summary.is_whole:
        print(f"the time is over and not all is done: run the same command again, it goes on from {args.keep}")
        return 3
    return 0 if summary.is_good else 1


async def run_suite(args: argparse.Namespace, folder: Path) -> "SuiteSummary":
    if args.small:
        from prime_lab.attacks.suite import run_small

        return await run_small(folder, print_line)
    from prime_lab.attacks.suite import run_full

    return await run_full(
        folder,
        args.out,
        args.pretrained,
        keep=args.keep,
        ends_s=time.monotonic() + 60 * args.minutes,
        chunks=args.chunks,
        slots=args.submissions,
        report_progress=print_line,
    )


def print_line(text: str) -> None:
    print(text, flush=True)
