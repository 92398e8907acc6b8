"""Commands of a trainer whose extra is not installed say which one it is."""

import sys

import pytest

from prime_trainer.cli import main


def test_a_command_without_torch_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "prime_trainer.evaluate", raising=False)
    assert main(["eval", "--model", "nowhere", "--task-set", "sort-digits"]) == 1
    assert "this command needs torch: pip install 'prime-swarm[trainer]'" in capsys.readouterr().err
