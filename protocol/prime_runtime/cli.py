"""What the command lines of all programs share: `--version`, `--help-all` and shell completion."""

import argparse
import gc
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NoReturn

SHELLS = ("bash", "zsh", "fish")
HELP_ALL = "--help-all"
COLLECTOR_ALLOCATIONS = 20_000
"""Allocations between two runs of the garbage collector; Python's default of 700 is two heartbeats."""


class SettingsHelp(Enum):
    """Which settings a parser has flags for, and which of them its help lists."""

    NONE = "none"
    """No flags: making them imports what they configure, which plain `--help` does not wait for."""
    COMMON = "common"
    """All flags; help lists those that people use."""
    ALL = "all"


def choose_settings_help(words: Sequence[str], commands_with_settings: Sequence[str]) -> SettingsHelp:
    """What the parser of this command line needs."""
    if find_command(words) not in commands_with_settings:
        return SettingsHelp.NONE
    return SettingsHelp.ALL if HELP_ALL in words else SettingsHelp.COMMON


def collect_less_often() -> None:
    """Before a program imports its modules, which stay: collecting among them takes a tenth of a start."""
    gc.set_threshold(COLLECTOR_ALLOCATIONS, 20, 20)


class ShowVersion(argparse.Action):
    """`--version`: the release and the protocol version. Reading the release takes time, so only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        from importlib.metadata import version

        from prime_protocol.constants import PROTOCOL_VERSION

        print(f"{parser.prog} {version('prime-swarm')} (protocol {PROTOCOL_VERSION})")
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="print the version and exit")


def find_command(words: Sequence[str]) -> str:
    """The command among the words of a command line; empty if there is none."""
    return next((word for word in words if not word.startswith("-")), "")


def add_completion(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser("completion", help="print a script that completes commands in a shell")
    parser.add_argument("shell", choices=SHELLS)
    return parser


def build_completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    import shtab

    return str(shtab.complete(parser, shell=shell))


def walk_parser(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every parser below this one, with the command words that lead to it."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from walk_parser(child, (*words, name))
