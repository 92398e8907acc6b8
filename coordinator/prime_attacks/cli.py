"""Command line of the gallery: `python -m prime_attacks`, `prime-coordinator attacks`, and `make attacks`.

Exit codes: 0 every attack came to what it must come to and no honest work was refused, 1 not so (the table says what),
2 bad arguments, 130 interrupted.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prime-coordinator attacks",
        description="Run every attack that we know against the real checks, with honest work beside it, and print what "
        "each came to.",
    )
    parser.add_argument("--small", action="store_true", help="every attack once, on a tiny model: about a minute")
    return parser


def main(argv: list[str] | None = None) -> int:
    make_parser().parse_args(argv)
    from prime_protocol.errors import LocalError, RemoteError

    try:
        with tempfile.TemporaryDirectory(prefix="prime-attacks-") as folder:
            return asyncio.run(run(Path(folder)))
    except KeyboardInterrupt:
        return 130
    except (LocalError, RemoteError) as error:
        print(f"the gallery failed: {error}", file=sys.stderr)
        return 1


async def run(folder: Path) -> int:
    from prime_attacks.small import run_small
    from prime_attacks.table import describe

    began = time.monotonic()
    tally = await run_small(folder, lambda text: print(text, flush=True))
    print(f"{time.monotonic() - began:.0f} s")
    for line in describe(tally):
        print(line)
    return 0 if tally.is_good else 1
