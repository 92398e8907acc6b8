"""Completion of prime-coordinator in the real zsh and fish; for bash see test_listing.py and test_arguments.py."""

import os
import pty
import select
import shutil
import subprocess
from pathlib import Path

import pytest

from prime_coordinator.cli.arguments import build_parser
from prime_runtime.cli import SettingsHelp, build_completion_script

PROGRAM = "prime-coordinator"
TYPED = {
    "nod": "nodes",
    "nodes dr": "drain",
    "run create demo --la": "--lag-max",
    "run --folder x cl": "close",
    "start --listen-p": "--listen-port",
    "completion f": "fish",
}
PATIENCE_S = 20
"""Longest time that a shell may stay silent."""


def write(shell: str, path: Path) -> Path:
    path.write_text(build_completion_script(build_parser(SettingsHelp.ALL, SettingsHelp.ALL), shell))
    return path


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_commands_and_flags(tmp_path: Path) -> None:
    script = write("fish", tmp_path / f"{PROGRAM}.fish")
    asked = "".join(f"complete -C '{PROGRAM} {words}'\n" for words in TYPED)
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = ["fish", "--no-config", "-c", f"source {script}\n{asked}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == list(TYPED.values())
    assert done.stderr == ""


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_commands_and_flags_at_the_first_key(tmp_path: Path) -> None:
    write("zsh", tmp_path / f"_{PROGRAM}")
    terminal, its_end = pty.openpty()
    streams = {"stdin": its_end, "stdout": its_end, "stderr": its_end}
    process = subprocess.Popen(
        ["zsh", "-f", "-i"], env={**os.environ, "TERM": "dumb"}, start_new_session=True, **streams
    )
    os.close(its_end)
    try:
        send(terminal, f"fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; PS1='READY''> '\n")
        until(terminal, b"READY> ")
        for words, expected in TYPED.items():
            if "--folder x" in words:
                continue  # shtab's script for zsh stops at a flag between a command and its action
            send(terminal, f"{PROGRAM} {words}\t!")
            seen = until(terminal, b"!")
            assert seen.split()[-2].decode() == expected, f"{words}: {seen!r}"
            send(terminal, "\x15")  # empties the line
    finally:
        os.close(terminal)
        process.kill()
        process.wait()


def send(terminal: int, text: str) -> None:
    os.write(terminal, text.encode())


def until(terminal: int, sign: bytes) -> bytes:
    seen = b""
    while sign not in seen:
        ready, _, _ = select.select([terminal], [], [], PATIENCE_S)
        assert ready, f"silent after {seen!r}"
        seen += os.read(terminal, 4096)
    return seen.replace(b"\x08", b"")
