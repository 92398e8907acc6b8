"""`prime-node`: the command a contributor types. It parses, then imports, then runs.

Exit codes: 0 done, 1 refused (the text says what to do), 2 wrong command line.
"""

import argparse
import getpass
import os
import sys
from pathlib import Path


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prime-node", description="Lend a machine to a training run.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    keys = commands.add_parser("keys", help="make and show the wallet key that is this node's identity")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="draw a key and write it, encrypted, to a file")
    new.add_argument(
        "--out", type=Path, required=True, help="keystore file to write; an existing one is never replaced"
    )
    show = actions.add_parser("show", help="print the address and peer id of a keystore file")
    show.add_argument("file", type=Path)
    for action in (new, show):
        action.add_argument("--password-file", type=Path, help="read the password from this file instead of asking")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    from prime_protocol.errors import LocalError
    from prime_runtime import key_file

    try:
        if args.action == "new":
            password = read_password(args.password_file, confirm=True)
            print(key_file.describe(key_file.create(args.out, password, os.urandom)))
            print(f"written to {args.out}. Copy that file and remember the password: without both, the stake is lost.")
        else:
            print(key_file.describe(key_file.load(args.file, read_password(args.password_file, confirm=False))))
    except LocalError as error:
        print(f"prime-node: {error}", file=sys.stderr)
        return 1
    return 0


def read_password(file: Path | None, *, confirm: bool) -> str:
    """From a file's first line, or asked for on the terminal."""
    from prime_protocol.errors import LocalError

    if file is not None:
        try:
            return file.read_text().split("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            raise LocalError(f"cannot read the password file {file}: {error}") from None
    try:
        password = getpass.getpass("password: ")
        if confirm and getpass.getpass("again: ") != password:
            raise LocalError("the two passwords differ")
    except EOFError:
        raise LocalError("no terminal to ask for the password; use --password-file") from None
    return password


if __name__ == "__main__":
    sys.exit(main())
