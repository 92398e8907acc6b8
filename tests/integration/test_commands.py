"""The three commands as a user types them: real processes, real files, and what they say when something is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
COMMANDS = ["prime-node", "prime-coordinator", "prime-trainer"]
HELP_SECONDS_MAX = 0.4
HEAVY = {"aiohttp", "libp2p", "numpy", "pyarrow", "pydantic", "sqlalchemy", "torch", "transformers", "vllm", "web3"}
LAB = ["attacks", "devnet", "simulate"]
EVERY_HELP = r"""
import contextlib, io, re, sys
from MODULE import main
asked = 0
def visit(words):
    global asked
    asked, text = asked + 1, io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    choices = re.search(r"^  (?:COMMAND|ACTION)\n((?:    .*\n)+)", text.getvalue(), re.MULTILINE)
    for name in re.findall(r"^    ([a-z][a-z-]*)", choices[1] if choices else "", re.MULTILINE):
        visit([*words, name])
visit([])
print(asked, *sorted({name.split(".")[0] for name in sys.modules}))
"""
"""Asks for the help of every command and action that help itself lists, then prints how many, and what is imported."""


def run(*words: str | Path, stdin: str = "", environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / words[0]), *map(str, words[1:])]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, env=environ)


@pytest.mark.parametrize(
    ("module", "commands_min"),
    [("prime_node.cli.main", 30), ("prime_coordinator.cli.main", 30), ("prime_trainer.cli", 12)]
    + [(f"prime_lab.{name}.cli", 1) for name in ("attacks", "devnet", "simulator")],
)
def test_no_help_of_any_command_imports_anything_heavy(module: str, commands_min: int) -> None:
    script = EVERY_HELP.replace("MODULE", module)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    asked, *imported = done.stdout.splitlines()[-1].split()
    assert int(asked) >= commands_min
    assert not HEAVY & set(imported)


def test_a_command_of_the_operator_does_not_import_the_coordinator_that_it_calls() -> None:
    script = "import sys, prime_coordinator.cli.admin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "jinja2", "prime_coordinator.core", "prime_explorer.handlers"} & set(done.stdout.split())


@pytest.mark.parametrize(
    "words",
    [[name, *words] for name in COMMANDS for words in ([], ["start"])]
    + [["prime-coordinator", "run", "create"], *(["prime-coordinator", name] for name in LAB)],
    ids=" ".join,
)
def test_help_is_there_at_once(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    # With bytecode, as an installed program has it. The first run of all writes it.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.getbasetemp() / "bytecode")

    def measure_cpu_s(name: str, *command: str) -> float:
        before = os.times()
        shown = subprocess.run(
            [BIN / name, *command, "--help"], capture_output=True, text=True, timeout=60, env=environ
        )
        after = os.times()
        assert (shown.returncode, shown.stdout.startswith("usage: ")) == (0, True)
        return after.children_user + after.children_system - before.children_user - before.children_system

    def is_fast() -> bool:
        # Other programs on the same cores slow down everything, so a help without settings is the measure then: one
        # with settings takes three to four times as long, and took eight times as long with numpy and pydantic.
        return measure_cpu_s(*words) < max(HELP_SECONDS_MAX, 6 * measure_cpu_s("prime-node"))

    assert any(is_fast() for _ in range(3))


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_command_line_exits_2_and_shows_the_usage(name: str) -> None:
    done = run(name, "no-such-thing")
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_key_is_made_shown_and_never_overwritten(tmp_path: Path) -> None:
    password, key = tmp_path / "password", tmp_path / "key.json"
    password.write_text("correct horse\n")
    made = run("prime-node", "keys", "new", "--out", key, "--password-file", password)
    assert made.returncode == 0, made.stderr
    assert key.stat().st_mode & 0o777 == 0o600
    shown = run("prime-node", "keys", "show", key, "--password-file", password)
    assert shown.stdout.splitlines() == made.stdout.splitlines()[:3]
    before = key.read_bytes()
    again = run("prime-node", "keys", "new", "--out", key, "--password-file", password)
    assert again.returncode == 1
    assert "exists and is kept" in again.stderr
    assert key.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        (lambda text: text.replace('"version": 3', '"version": 9'), "only version 3"),
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: "", "damaged"),
        (lambda text: text.replace('"mac": "', '"mac": "00'), "wrong password, or"),
    ],
)
def test_damaged_key_file_is_told_and_left_alone(tmp_path: Path, damage, hint: str) -> None:
    password, key = tmp_path / "password", tmp_path / "key.json"
    password.write_text("pw")
    run("prime-node", "keys", "new", "--out", key, "--password-file", password)
    key.write_text(damage(key.read_text()))
    shown = run("prime-node", "keys", "show", key, "--password-file", password)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert hint in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["prime-node", "keys", "show", "absent.json", "--password-file", "absent"], "cannot read the password file"),
        (
            ["prime-node", "keys", "new", "--out", "absent/key.json", "--password-file", "/dev/null"],
            "password is empty",
        ),
        (["prime-coordinator", "log", "verify", "absent"], "is the copy of the log complete?"),
        (["prime-trainer", "weights", "root", "absent"], "neither a .safetensors file nor a folder"),
    ],
)
def test_missing_input_is_one_clear_line(words: list[str], hint: str) -> None:
    done = run(*words)
    assert done.returncode == 1
    assert hint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def write_checkpoint(path: Path, values: dict[str, list[float]]) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({name: np.array(row, dtype=np.float32) for name, row in values.items()}, path)


def test_delta_between_two_checkpoints_patches_to_the_same_root(tmp_path: Path) -> None:
    old, new, delta, out = (
        tmp_path / name for name in ("old.safetensors", "new.safetensors", "delta", "out.safetensors")
    )
    write_checkpoint(old, {"a": [0.0] * 1000, "b": [1.0] * 10})
    write_checkpoint(new, {"a": [0.0] * 999 + [3.0], "b": [1.0] * 10})
    diff = run("prime-trainer", "weights", "diff", old, new, "--out", delta)
    assert diff.returncode == 0, diff.stderr
    patched = run("prime-trainer", "weights", "patch", old, delta, "--out", out)
    assert patched.returncode == 0, patched.stderr
    roots = {run("prime-trainer", "weights", "root", path).stdout.strip() for path in (new, out)}
    assert roots == {patched.stdout.split()[-1]}
    assert out.read_bytes() == new.read_bytes()


def test_delta_on_the_wrong_base_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    old, new, delta, out = (
        tmp_path / name for name in ("old.safetensors", "new.safetensors", "delta", "out.safetensors")
    )
    write_checkpoint(old, {"a": [0.0] * 1000})
    write_checkpoint(new, {"a": [0.0] * 999 + [3.0]})
    run("prime-trainer", "weights", "diff", old, new, "--out", delta)
    wrong = run("prime-trainer", "weights", "patch", new, delta, "--out", out)
    assert wrong.returncode == 3
    assert "base:" in wrong.stderr
    damaged = bytearray((delta / "weights.delta").read_bytes())
    damaged[-1] ^= 1
    (delta / "weights.delta").write_bytes(damaged)
    assert "shards[0].digest" in run("prime-trainer", "weights", "patch", old, delta, "--out", out).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["delta", "new.safetensors", "old.safetensors"]
