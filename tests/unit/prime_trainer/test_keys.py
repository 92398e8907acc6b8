"""The trainer's key: made, shown, and never replaced."""

import json
from pathlib import Path

import pytest

from prime_protocol.wire.ids import checksum_address
from prime_runtime.keys import load_key_file
from prime_trainer.cli import main


def test_a_key_is_made_and_shown_and_the_run_takes_what_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, password = tmp_path / "trainer.json", tmp_path / "password"
    password.write_text("correct horse\n")
    make = ["keys", "new", "--key", str(key), "--password-file", str(password)]
    assert main(make) == 0
    made = load_key_file(key, "correct horse").node
    assert f"address  {checksum_address(made)}" in capsys.readouterr().out
    assert main(["keys", "show", "--key", str(key)]) == 0
    assert capsys.readouterr().out == f"{checksum_address(made)}\n"
    before = json.loads(key.read_text())
    assert main(make) == 1, "it never replaces a key"
    assert "exists" in capsys.readouterr().err
    assert json.loads(key.read_text()) == before


def test_a_key_that_cannot_be_made_or_shown_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "show", "--key", str(tmp_path / "none.json")]) == 1
    assert "none.json does not exist" in capsys.readouterr().err
    assert main(["keys", "new", "--key", str(tmp_path / "k.json")]) == 1, "no terminal and no file"
    assert "password" in capsys.readouterr().err
