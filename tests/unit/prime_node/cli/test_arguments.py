"""The command line of prime-node: every command is carried out by something, and every shell can complete it."""

import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from prime_node.cli.arguments import EXIT_CODES, build_parser
from prime_node.cli.main import main, parse_args
from prime_runtime.cli import SettingsHelp, build_completion_script, walk_parser


def test_every_command_has_a_task_that_exists() -> None:
    parser = build_parser(SettingsHelp.ALL)
    for words, command in walk_parser(parser):
        task = command.get_default("task")
        if task is None:
            assert any(isinstance(action.choices, dict) for action in command._actions), f"{words} does nothing"
            continue
        module, _, function = task.partition(":")
        assert callable(getattr(import_module(f"prime_node.cli.{module}"), function))


def test_help_tells_the_exit_codes() -> None:
    assert EXIT_CODES in build_parser().format_help()


def test_flags_hold_for_an_action_wherever_they_stand() -> None:
    before = parse_args(["stake", "--folder", "x", "--json"])
    after = parse_args(["stake", "--folder", "x", "add", "5", "--password-file", "p"])
    assert (before.folder, before.json, before.task, before.key) == (Path("x"), True, "stake:show", None)
    assert (after.folder, after.task, after.key_password_file) == (Path("x"), "stake:add", Path("p"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["roll"], "rollouts"),
        (["keys", "rec"], "recover"),
        (["keys", "--folder", "x", "back"], "backup"),
        (["start", "--policy-idle-o"], "--policy-idle-only"),
        (["service", "uni"], "uninstall"),
        (["completion", "f"], "fish"),
    ],
)
def test_bash_completes_commands_and_flags(tmp_path: Path, words: list[str], expected: str) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(build_completion_script(build_parser(SettingsHelp.ALL), "bash"))
    line = " ".join(f"'{word}'" for word in ["prime-node", *words])
    program = (
        f'source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_prime_node; echo "${{COMPREPLY[*]}}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]
    assert done.stderr == ""


def test_version_names_the_release_and_the_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"prime-node [0-9.]+ \(protocol [0-9]+\)\n", capsys.readouterr().out)


def test_init_writes_settings_once_and_explains_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["init", "--folder", str(tmp_path / "node"), "--weights-disk-bytes-max", "40GB"]
    assert main(words) == 0
    text = (tmp_path / "node/config.toml").read_text()
    assert "\ndisk_bytes_max = 40000000000\n" in text
    assert "\n# Limit of the folder of weights" in text
    assert main(words) == 1
    assert "exists: change it, or choose another --folder" in capsys.readouterr().err
