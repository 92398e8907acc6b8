"""What the commands print and how they are typed: words for values, markup of strangers, completion, help."""

import io
import re
import subprocess
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from prime_coordinator.cli.arguments import EXIT_CODES, LAB_PROGRAMS, build_parser
from prime_coordinator.cli.context import find_route
from prime_coordinator.cli.listing import COLUMNS, format_fields, format_row, format_value
from prime_coordinator.cli.main import parse_args
from prime_explorer.pages.live import NodePresence
from prime_explorer.pages.tables import AppealSummary
from prime_protocol.errors import LocalError
from prime_runtime.cli import SettingsHelp, build_completion_script, walk_parser
from prime_runtime.console import CommandOutput
from prime_runtime.formatting import format_amount, format_relative_time, format_time, parse_amount


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("nano", "shown"), [(0, "0"), (1, "0.000000001"), (12_500_000_000, "12.5"), (10**18, "1,000,000,000")]
)
def test_amounts_are_shown_to_the_last_digit(nano: int, shown: str) -> None:
    assert format_amount(nano) == shown
    assert nano == 0 or parse_amount(shown.replace(",", "")) == nano


@pytest.mark.parametrize("text", ["0", "-1", "1e-10", "NaN", "Infinity", "ten", "", "9223372037"])
def test_wrong_amount_is_refused(text: str) -> None:
    with pytest.raises(LocalError, match=r"is not an? (valid )?amount"):
        parse_amount(text)


@pytest.mark.parametrize(
    ("at_s", "shown"),
    [
        (1000, "0 s ago"),
        (900, "100 s ago"),
        (1, "16 min ago"),
        (1030, "in 30 s"),
        (11_800, "in 3 h"),
        (260_200, "in 3 d"),
    ],
)
def test_times_are_shown_as_distances(at_s: int, shown: str) -> None:
    assert format_relative_time(at_s * 1000, 1_000_000) == shown


def test_times_are_utc() -> None:
    assert format_time(1_800_000_000_000) == "2027-01-15 08:00:00"
    assert (format_time(None), format_relative_time(None, 0)) == ("-", "-")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (True, "yes"), ([], "-"), (["a", "b"], "a, b"), ({"a": 1, "b": [2]}, "a=1, b=2"), (3, "3")],
)
def test_values_are_shown_in_words(value: Any, shown: str) -> None:
    assert format_value(value) == shown


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_show_fields_that_the_rows_have(name: str) -> None:
    (view,) = find_route(name).views
    table = get_type_hints(view)[name] if is_dataclass(view) else view
    (row,) = get_args(table)
    shown = [*fields(row), *(fields(NodePresence) if name == "nodes" else ())]
    assert set(COLUMNS[name].values()) <= {field.name for field in shown}


def test_detail_shows_every_field_but_lists_of_rows() -> None:
    row = {"summary": {"node": "0x1", "stake_nano": 5 * 10**9}, "at_ms": 1000, "leases": [{"lease": 1}], "audits": []}
    row |= {"work": {"tokens_per_s": 2.0}, "verdicts": {"rows": [{"idx": 1}], "next": None}, "charted": [{"step": 1}]}
    names = [name for name, _ in format_fields(row, 1000)]
    assert names == ["node", "stake", "at", "audits", "tokens_per_s"]


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_text_of_strangers_is_not_taken_for_markup(make: type[io.StringIO]) -> None:
    file = make()
    screen = CommandOutput(file)
    hostile = "[bold red]x[/] :smile: [link=http://evil]y[/link]"
    screen.show(screen.table(["reason"], [[hostile]]), screen.key_value_table([("reason", hostile)]))
    assert file.getvalue().replace("\n", "").count(hostile) == 2


def test_pipe_gets_no_colour_no_box_and_whole_lines() -> None:
    file = io.StringIO()
    screen = CommandOutput(file)
    wide = "0x" + "ab" * 32
    screen.show(screen.table(["submission", "node", "x"], [[wide, wide, "y" * 300]]))
    with screen.spinner("unseen"):
        pass
    assert "\x1b" not in file.getvalue()
    assert file.getvalue().splitlines()[1].split() == [wide, wide, "y" * 300]
    assert all(line == line.rstrip() for line in file.getvalue().splitlines())


def test_narrow_terminal_folds_ids_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file = Terminal()
    screen = CommandOutput(file)
    wide = "0x" + "0123456789abcdef" * 4
    screen.show(screen.table(["submission"], [[wide]]))
    assert wide in "".join(line.strip() for line in file.getvalue().splitlines()[2:])


def test_row_of_every_listing_becomes_cells() -> None:
    row = AppealSummary(
        idx=1,
        run="r",
        submission="0x",
        node="0x",
        progress="appealed",
        appealed_idx=2,
        appealed_ms=0,
        appealed_by="0x",
        appeal_reason="",
    )
    assert format_row("appeals", asdict(row), 5000) == ["2", "5 s ago", "0x", "0x", "appealed", ""]


# --- The command line -----------------------------------------------------------------------------------------------


def test_help_lists_the_exit_codes() -> None:
    assert EXIT_CODES in build_parser().format_help()


def test_every_command_has_a_task_that_exists() -> None:
    from importlib import import_module

    parser = build_parser(SettingsHelp.ALL, SettingsHelp.ALL)
    for words, command in walk_parser(parser):
        task = command.get_default("task")
        if task is None:
            has_actions = any(isinstance(action.choices, dict) for action in command._actions)
            assert has_actions or words[0] in LAB_PROGRAMS, f"{words} does nothing"
            continue
        module, _, function = task.partition(":")
        assert callable(getattr(import_module(f"prime_coordinator.cli.{module}"), function))


def test_flags_of_a_listing_hold_for_its_actions_wherever_they_stand() -> None:
    before = parse_args(["nodes", "--folder", "x", "--json", "show", "0x"])
    after = parse_args(["nodes", "show", "0x", "--folder", "x", "--json"])
    assert (
        (before.folder, before.json, before.task)
        == (after.folder, after.json, after.task)
        == (Path("x"), True, "listing:show_detail")
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["no"], "nodes"),
        (["nodes", "dr"], "drain"),
        (["run", "create", "demo", "--la"], "--lag-max"),
        (["run", "--folder", "x", "cl"], "close"),
        (["start", "--listen-p"], "--listen-port"),
        (["completion", "f"], "fish"),
    ],
)
def test_bash_completes_commands_and_flags(tmp_path: Path, words: list[str], expected: str) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(build_completion_script(build_parser(SettingsHelp.ALL, SettingsHelp.ALL), "bash"))
    line = " ".join(f"'{word}'" for word in ["prime-coordinator", *words])
    typed = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}"
    program = f'source {script}; {typed}; _shtab_prime_coordinator; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_that_knows_the_commands(shell: str) -> None:
    script = build_completion_script(build_parser(), shell)
    for name in ("init", "start", "submissions", "restore"):
        assert name in script


def test_version_names_the_release_and_the_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"prime-coordinator [0-9.]+ \(protocol [0-9]+\)\n", capsys.readouterr().out)
