"""Commands that another program carries out."""

import importlib.util

import pytest

from prime_coordinator.cli import tools
from prime_coordinator.cli.arguments import LAB_PROGRAMS
from prime_coordinator.cli.main import EXIT_REFUSED, main


@pytest.mark.parametrize("command", LAB_PROGRAMS)
def test_a_lab_command_without_the_lab_says_how_to_install_it(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools, "find_spec", lambda name: None)
    assert main([command, "--help"]) == EXIT_REFUSED
    assert "pip install 'prime-swarm[lab]'" in capsys.readouterr().err


@pytest.mark.parametrize("program", [program for program, _ in LAB_PROGRAMS.values()])
def test_each_lab_command_names_a_program_that_exists(program: str) -> None:
    assert importlib.util.find_spec(f"{program}.__main__") is not None
