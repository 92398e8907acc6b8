"""The command line of prime-node: every command is carried out by something, and every shell can complete it."""

import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from prime_node.cli.arguments import EXIT_CODES, build_parser
from prime_node.cli.main import parse_args
from prime_runtime.cli import build_completion_script, walk_parser


def find(parser: Any, words: tuple[str, ...]) -> Any:
    for word in words:
        (group,) = (action for action in parser._actions if isinstance(action.choices, dict))
        parser = group.choices[word]
    return parser


def test_every_command_has_a_task_that_exists() -> None:
    parser = build_parser(with_settings=True)
    for spot in walk_parser(parser, ()):
        task = find(parser, spot.words).get_default("task")
        if task is None:
            assert spot.commands, f"{spot.words} does nothing"
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
    script.write_text(build_completion_script(build_parser(with_settings=True), "bash"))
    line = " ".join(f"'{word}'" for word in ["prime-node", *words])
    program = f'source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _prime_node; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]
    assert done.stderr == ""
