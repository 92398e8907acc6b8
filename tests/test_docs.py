"""Every command in the documentation exists, with every flag that it is shown with."""

import re
from collections.abc import Callable, Sequence

import pytest

from prime_coordinator.cli.arguments import LAB_PROGRAMS
from prime_coordinator.cli.main import parse_args as parse_coordinator
from prime_lab.attacks.cli import make_parser as make_attacks_parser
from prime_lab.devnet.cli import parse_args as parse_devnet
from prime_lab.simulator.cli import parse_args as parse_simulator
from prime_node.cli.main import parse_args as parse_node
from prime_trainer.cli import parse_args as parse_trainer
from support.doc_commands import PAGES, ROOT, DocCommand, list_all_commands, list_blocks

COMMANDS = list_all_commands()
LAB: dict[str, Callable[[Sequence[str]], object]] = {
    "attacks": make_attacks_parser().parse_args,
    "devnet": lambda words: parse_devnet(list(words)),
    "simulate": lambda words: parse_simulator(list(words)),
}
PLACEHOLDERS = {"URL|FOLDER": "FOLDER", "N": "1", "…": ""}
"""Words of the docs that stand for a value of another form."""


def parse(words: Sequence[str]) -> None:
    program, *rest = (PLACEHOLDERS.get(word, word) for word in words)
    if program == "prime-coordinator" and rest and rest[0] in LAB:
        LAB[rest[0]](rest[1:])
    else:
        parsers = {"prime-coordinator": parse_coordinator, "prime-node": parse_node}
        parsers.get(program, lambda given: parse_trainer(list(given)))(rest)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_of_the_docs_is_accepted(command: DocCommand, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        parse(command.words)
    except SystemExit as left:
        said = capsys.readouterr().err
        is_cut = not command.is_whole and "the following arguments are required" in said
        assert left.code == 0 or is_cut, f"{command}\n{said}"


def test_the_docs_show_commands_of_every_program() -> None:
    assert len(COMMANDS) > 150
    assert set(LAB) == set(LAB_PROGRAMS)


def test_every_target_of_make_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for block in list_blocks(page):
            for named in re.findall(r"^\s*make ([a-z-]+)", block.text, re.MULTILINE):
                assert named in targets, f"{page}:{block.line}: make {named}"


def test_every_script_in_the_docs_exists() -> None:
    for page in PAGES:
        for block in list_blocks(page):
            for named in re.findall(r"python (\w[\w/]+\.py)\b", block.text):
                assert (ROOT / named).exists(), f"{page}:{block.line}: {named}"
