"""`prime-node`: the command a contributor types. It parses, then imports, then runs.

Exit codes:
  0    done, or stopped as asked
  1    refused, and the text says why and what to do
  2    wrong command line
  4    the node is not running, or does not answer
  130  interrupted
"""

import argparse
import getpass
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

EXIT_REFUSED, EXIT_NOT_RUNNING, EXIT_INTERRUPTED = 1, 4, 130


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if argv is None else argv
    command = next((word for word in words if not word.startswith("-")), "")
    parser = argparse.ArgumentParser(
        prog="prime-node",
        description="Lend a machine to a training run.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(folder=None)
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
    add_life(commands, with_settings=command == "start")
    return parser.parse_args(words)


def add_life(commands: Any, *, with_settings: bool) -> None:
    start = commands.add_parser("start", help="run the node until it is stopped; the first start makes its folder")
    start.set_defaults(task="start:start")
    if with_settings:
        from prime_node.config import NodeConfig
        from prime_runtime.settings import add_flags

        add_flags(start, NodeConfig)
    status = commands.add_parser("status", help="what the running node does, holds, fetches and serves")
    status.set_defaults(task="local:show_status")
    status.add_argument("--json", action="store_true", help="print JSON instead of text")
    status.add_argument("--watch", action="store_true", help="keep showing it, every second, until interrupted")
    stop = commands.add_parser("stop", help="stop the running node and wait until it has")
    stop.set_defaults(task="local:stop")
    for command in (status, stop):
        command.add_argument("--folder", type=Path, help="the node's folder ($PRIME_FOLDER). Default: ~/prime-node.")


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        return run_keys(args) if args.command == "keys" else run_task(args)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone: nothing more to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REFUSED


def run_task(args: argparse.Namespace) -> int:
    from prime_node.commands.context import Context, NotRunning
    from prime_protocol.errors import LocalError

    module, _, function = args.task.partition(":")
    try:
        context = Context(args, os.environ, lambda text: print(text, flush=True))
        code: int = getattr(import_module(f"prime_node.commands.{module}"), function)(context)
        return code
    except NotRunning as error:
        print(f"prime-node: {error}", file=sys.stderr)
        return EXIT_NOT_RUNNING
    except LocalError as error:
        print(f"prime-node: {error}", file=sys.stderr)
        return EXIT_REFUSED


def run_keys(args: argparse.Namespace) -> int:
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
