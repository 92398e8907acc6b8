"""`prime-coordinator`: the command an operator types, and anybody who checks a log. It parses, then imports, then runs.

Exit codes: 0 done, 1 refused (the text says what to do), 2 wrong command line, 3 the log does not hold.
"""

import argparse
import json
import sys
from pathlib import Path


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prime-coordinator", description="Order a run's work and keep its books.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    log = commands.add_parser("log", help="read and check the append-only log")
    actions = log.add_subparsers(dest="action", required=True, metavar="ACTION")
    verify = actions.add_parser("verify", help="replay a mirror of a log, offline, and check everything in it")
    verify.add_argument(
        "folder", type=Path, help="folder with `checkpoint` and `tile/`, as the coordinator serves them"
    )
    verify.add_argument("--key", help="the log's verifier key, as the operator published it")
    verify.add_argument("--json", action="store_true", help="print the books as JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    from prime_coordinator.books_check import check_log
    from prime_coordinator.books_report import describe, summarise
    from prime_coordinator.mirror import read_head, read_leaves, read_tile
    from prime_protocol.errors import LocalError, RemoteError
    from prime_protocol.note import VerifierKey

    try:
        key = VerifierKey.parse(args.key) if args.key else None
        checked = check_log(
            read_head(args.folder),
            lambda size: read_leaves(args.folder, size),
            lambda tile: read_tile(args.folder, tile),
            key,
        )
    except LocalError as error:
        print(f"prime-coordinator: {error}", file=sys.stderr)
        return 1
    except RemoteError as error:
        print(f"prime-coordinator: the log does not hold: {error}", file=sys.stderr)
        return 3
    print(json.dumps(summarise(checked), indent=2) if args.json else "\n".join(describe(checked)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
