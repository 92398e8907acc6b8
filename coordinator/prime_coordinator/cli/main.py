"""The `prime-coordinator` command: parses, imports the module of the command, runs it.

The exit codes are in arguments.py, where --help shows them.
"""

import argparse
import getpass
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from prime_coordinator.cli.arguments import LAB_PROGRAMS, build_parser
from prime_runtime.cli import choose_settings_help, collect_less_often, find_command

EXIT_REFUSED, EXIT_NOT_REACHED, EXIT_INTERRUPTED = 1, 4, 130


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if argv is None else argv
    settings, terms = choose_settings_help(words, ("init", "start")), choose_settings_help(words, ("run",))
    return build_parser(settings, terms, find_command(words)).parse_args(words)


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    try:
        if words and words[0] in LAB_PROGRAMS:
            # Everything after the command belongs to the other program, including --help.
            return run_lab_program(LAB_PROGRAMS[words[0]][0], words[1:])
        return run_task(parse_args(words))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone: discard the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REFUSED


def run_lab_program(program: str, words: Sequence[str]) -> int:
    """In a process of its own: the lab also runs the node's code, which this program does not import."""
    if find_spec("prime_lab") is None:
        print_error("this command is part of the lab, which is not installed: pip install 'prime-swarm[lab]'")
        return EXIT_REFUSED
    return subprocess.run([sys.executable, "-m", program, *words], check=False).returncode


def run_task(args: argparse.Namespace) -> int:
    collect_less_often()
    from prime_coordinator.cli.context import CoordinatorUnreachable, OperatorContext
    from prime_protocol.errors import LocalError, RemoteError
    from prime_runtime.console import CommandOutput

    module, _, function = args.task.partition(":")
    context = OperatorContext(args, os.environ, CommandOutput(sys.stdout), print_error, ask_password)
    try:
        code: int = getattr(import_module(f"prime_coordinator.cli.{module}"), function)(context)
        sys.stdout.flush()
        return code
    except CoordinatorUnreachable as error:
        print_error(str(error))
        return EXIT_NOT_REACHED
    except (LocalError, RemoteError) as error:
        print_error(str(error))
        return EXIT_REFUSED


def print_error(text: str) -> None:
    print(f"prime-coordinator: {text}", file=sys.stderr)


def ask_password(confirm: bool) -> str | None:
    if not sys.stdin.isatty():
        return None
    from prime_protocol.errors import LocalError

    try:
        password = getpass.getpass("password of the coordinator's key: ")
        if confirm and getpass.getpass("again: ") != password:
            raise LocalError("the two passwords differ")
    except EOFError:
        raise LocalError("no password was typed; nothing was done") from None
    return password


if __name__ == "__main__":
    sys.exit(main())
