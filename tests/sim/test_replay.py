"""The same seed replays exactly, in any process; other seeds do not; the fast path for signatures changes nothing."""

import os
import subprocess
import sys

from prime_lab.simulator.cli import main, make_parser, parse_args, replay_command
from prime_lab.simulator.plan import draw_plan
from prime_lab.simulator.simulation import simulate

COMMAND = ["-m", "prime_lab.simulator", "--seed", "11", "--nodes", "24", "--steps", "2"]


def run_process(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, *COMMAND], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def test_two_processes_end_with_the_same_root() -> None:
    first, second = run_process("1"), run_process("2")
    assert first == second
    assert "root=0x" in first


def test_opening_every_envelope_gives_the_same_log_as_the_fast_path() -> None:
    fast = simulate(draw_plan(12, nodes=24, steps=2))
    slow = simulate(draw_plan(12, nodes=24, steps=2, every_signature=True))
    assert fast.root == slow.root
    assert not slow.complaints


def test_another_seed_gives_another_log() -> None:
    roots = {simulate(draw_plan(seed, nodes=16, steps=1, malicious=0.0)).root for seed in (1, 2)}
    assert len(roots) == 2


def test_the_replay_command_names_the_same_plan() -> None:
    args = parse_args(
        ["--seed", "3", "--seeds", "9", "--adversaries", "thief,lazy", "--loss", "0.1", "--every-signature"]
    )
    options = {name: value for name, value in vars(args).items() if name not in ("seed", "seeds", "jobs")}
    again = parse_args(replay_command(7, options).split()[3:])
    assert draw_plan(7, **options) == draw_plan(
        again.seed, **{name: value for name, value in vars(again).items() if name not in ("seed", "seeds", "jobs")}
    )


def test_a_failing_seed_is_named_and_ends_with_1(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("prime_lab.simulator.invariants.INVARIANTS", (lambda scene: iter(["the sky is green"]),))
    assert main(["--seed", "4", "--nodes", "16", "--steps", "1"]) == 1
    shown = capsys.readouterr().out
    assert "seed 4: FAILED" in shown
    assert "the sky is green" in shown
    assert "--seed 4 --nodes 16" in shown
    assert shown.splitlines()[-1].startswith("RESULT seeds=1 failed=1")


def test_help_lists_every_option_of_a_plan() -> None:
    text = make_parser().format_help()
    for name in ("--seed", "--nodes", "--malicious", "--loss", "--host-crashes", "--jobs"):
        assert name in text
