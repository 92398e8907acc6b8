"""`prime-node`: parses the command line, then imports the command's module, then runs it.

The exit codes are in arguments.py, where --help shows them.
"""

import argparse
import getpass
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from prime_node.cli.arguments import WITH_SETTINGS, build_parser
from prime_runtime.cli import choose_settings_help, collect_less_often, find_command

EXIT_REFUSED, EXIT_NOT_RUNNING, EXIT_INTERRUPTED = 1, 4, 130


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if argv is None else argv
    return build_parser(choose_settings_help(words, WITH_SETTINGS), find_command(words)).parse_args(words)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        return run_task(args)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone. Point stdout at /dev/null, so that the flush at exit does not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REFUSED


def run_task(args: argparse.Namespace) -> int:
    collect_less_often()
    from prime_node.cli.context import NodeCliContext
    from prime_protocol.errors import LocalError, RemoteError
    from prime_runtime.console import CommandOutput
    from prime_runtime.http.control_api import ProgramNotRunning

    context = NodeCliContext(args, os.environ, CommandOutput(sys.stdout), ask_password)
    module, _, function = args.task.partition(":")
    try:
        code: int = getattr(import_module(f"prime_node.cli.{module}"), function)(context)
        sys.stdout.flush()
        return code
    except ProgramNotRunning as error:
        print_error(str(error))
        return EXIT_NOT_RUNNING
    except (LocalError, RemoteError) as error:
        print_error(str(error))
        return EXIT_REFUSED


def print_error(text: str) -> None:
    print(f"prime-node: {text}", file=sys.stderr)


def ask_password(question: str, confirm: bool) -> str | None:
    """None without a terminal."""
    if not sys.stdin.isatty():
        return None
    from prime_protocol.errors import LocalError

    try:
        password = getpass.getpass(f"{question}: ")
        if confirm and getpass.getpass("again: ") != password:
            raise LocalError("the two passwords differ")
    except EOFError:
        raise LocalError("no password was typed; nothing was done") from None
    return password
