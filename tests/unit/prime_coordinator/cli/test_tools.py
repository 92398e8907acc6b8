"""Commands that another program carries out."""

from importlib.util import find_spec

import pytest

from prime_coordinator.admin.calibrations import NAMED_CALIBRATIONS
from prime_coordinator.cli import main as command_line
from prime_coordinator.cli.arguments import LAB_PROGRAMS
from prime_coordinator.cli.main import EXIT_REFUSED, main


@pytest.mark.parametrize("command", LAB_PROGRAMS)
def test_a_lab_command_without_the_lab_says_how_to_install_it(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "find_spec", lambda name: None)
    assert main([command, "--help"]) == EXIT_REFUSED
    assert "pip install 'prime-swarm[lab]'" in capsys.readouterr().err


@pytest.mark.parametrize("program", [program for program, _ in LAB_PROGRAMS.values()])
def test_each_lab_command_names_a_program_that_exists(program: str) -> None:
    assert find_spec(f"{program}.__main__") is not None


def test_named_calibrations_are_listed_with_what_they_were_measured_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "calibrations"]) == 0
    shown = capsys.readouterr().out
    for each in NAMED_CALIBRATIONS:
        assert each.name in shown
        assert each.measured_on in shown
    assert "vocab_size 49152" in shown
    assert "prime-node calibrate" in shown
