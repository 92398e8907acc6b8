"""A tokenizer's process: what it computes, every way it can fail or lie, and when it is started again."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from prime_protocol.errors import LocalError
from prime_runtime.tokenizer_process import (
    BATCH_BYTES,
    JOBS_FORGIVEN,
    RESTART_PAUSE_MS,
    TokenizerLimits,
    TokenizerProcess,
    build_command,
    build_environment,
    split_batches,
)
from prime_trainer.model.tiny import make_tokenizer

FAKE_TOKENIZER = str(Path(__file__).parents[2] / "support" / "fake_tokenizer.py")
HONEST = make_tokenizer(32)
SLOW = {"type": "Split", "pattern": {"Regex": "(?:1|11|111){0,12}[^0-9]"}, "behavior": "Isolated", "invert": False}
ENDLESS = HONEST | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SLOW] * 1000}}


class Setup:
    """A tokenizer whose processes the test chooses, with a clock that the test moves."""

    def __init__(self, *behaviours: str, file: dict[str, object] = HONEST, wall_ms: int = 60_000) -> None:
        self.behaviours = list(behaviours)
        self.started = 0
        self.now_ms = 0
        self.tokenizer = TokenizerProcess(
            json.dumps(file).encode(),
            "the file",
            limits=TokenizerLimits(wall_ms=wall_ms),
            command=self.choose_command,
            uptime_ms=lambda: self.now_ms,
        )

    def choose_command(self, limits: TokenizerLimits) -> Sequence[str]:
        """The behaviours in their order, then honest processes."""
        self.started += 1
        return [sys.executable, FAKE_TOKENIZER, self.behaviours.pop(0)] if self.behaviours else build_command(limits)

    def fail(self, match: str) -> None:
        with pytest.raises(LocalError, match=match):
            self.tokenizer.encode(["1"])


def test_one_process_encodes_and_decodes_every_batch() -> None:
    setup = Setup()
    assert setup.tokenizer.pid is None, "it starts when it is first needed"
    assert setup.tokenizer.encode(["12", "3"]) == [[1, 2], [3]]
    pid = setup.tokenizer.pid
    assert setup.tokenizer.decode([[1, 2], [], [3]]) == ["12", "", "3"]
    assert setup.tokenizer.encode([]) == setup.tokenizer.decode([]) == []
    assert setup.tokenizer.encode(["1" * 10]) == [[1] * 10]
    assert (setup.tokenizer.pid, setup.started, setup.tokenizer.problem) == (pid, 1, "")


def test_large_input_goes_in_several_batches_and_a_longer_item_alone() -> None:
    small, large = b"x" * (BATCH_BYTES // 2), b"x" * (BATCH_BYTES + 1)
    assert [len(batch) for batch in split_batches([small, small, small, large, small])] == [2, 1, 1, 1]
    assert [len(batch) for batch in split_batches([b""] * (2**16 + 1))] == [2**16, 1]
    assert list(split_batches([])) == []


def test_text_that_the_tokenizer_does_not_know_fails_alone() -> None:
    setup = Setup()
    with pytest.raises(LocalError, match="the file cannot encode the text 'é'"):
        setup.tokenizer.encode(["1", "é"])
    with pytest.raises(LocalError, match="not valid Unicode"):
        setup.tokenizer.encode(["\ud800"])
    assert setup.tokenizer.encode(["1"]) == [[1]]
    assert setup.started == 1


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("dies", r"crashed \(SIGKILL"),
        ("exits", r"crashed \(exit code 3"),
        ("half", r"crashed|took longer"),
        ("endless", r"malformed reply: frame: is 4294967295 bytes"),
        ("noise", r"malformed reply"),
        ("empty", r"malformed reply"),
        ("other-number", r"replied to job 2 instead of 1"),
        ("too-few", r"another number of texts"),
        ("too-many", r"another number of texts"),
        ("odd-tokens", r"malformed reply"),
    ],
)
def test_a_process_that_dies_or_lies_is_ended_and_replaced_after_a_pause(behaviour: str, problem: str) -> None:
    setup = Setup(behaviour, wall_ms=2_000 if behaviour == "half" else 60_000)
    setup.fail(problem)
    assert setup.tokenizer.pid is None
    assert "the file" in setup.tokenizer.problem
    setup.fail("It is tried again in 5 s")
    assert setup.started == 1
    setup.now_ms += RESTART_PAUSE_MS
    assert setup.tokenizer.encode(["1"]) == [[1]]
    assert (setup.started, setup.tokenizer.problem) == (2, "")


def test_text_that_is_not_utf8_is_a_malformed_reply() -> None:
    setup = Setup("not-utf8")
    with pytest.raises(LocalError, match="malformed reply"):
        setup.tokenizer.decode([[1]])


def test_a_second_reply_to_one_job_is_not_taken_for_the_reply_to_the_next() -> None:
    setup = Setup("twice")
    assert setup.tokenizer.encode(["1"]) == [[1]]
    setup.fail("replied to job 1 instead of 2")


@pytest.mark.parametrize("behaviour", ["silent", "deaf"])
def test_a_process_that_does_not_answer_is_killed(behaviour: str) -> None:
    setup = Setup(behaviour, file=HONEST | {"unread": "x" * 2**20}, wall_ms=1_000)
    setup.fail("took longer than 1000 ms")


def test_a_process_killed_in_the_middle_of_a_job_costs_that_job() -> None:
    setup = Setup(file=ENDLESS)
    problems: list[str] = []

    def encode() -> None:
        try:
            setup.tokenizer.encode(["1" * 40])
        except LocalError as error:
            problems.append(str(error))

    thread = threading.Thread(target=encode)
    thread.start()
    while (pid := setup.tokenizer.pid) is None and thread.is_alive():
        pass
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    thread.join(timeout=30)
    assert len(problems) == 1
    assert "crashed (SIGKILL" in problems[0]


def test_a_process_killed_between_two_jobs_is_replaced_at_once() -> None:
    setup = Setup()
    setup.tokenizer.encode(["1"])
    assert setup.tokenizer.pid is not None
    os.kill(setup.tokenizer.pid, signal.SIGKILL)
    os.waitid(os.P_PID, setup.tokenizer.pid, os.WEXITED | os.WNOWAIT)
    assert setup.tokenizer.encode(["1"]) == [[1]]
    assert (setup.started, setup.tokenizer.problem) == (2, "")


def test_close_ends_the_process_and_a_later_call_starts_another() -> None:
    setup = Setup()
    setup.tokenizer.close()
    setup.tokenizer.encode(["1"])
    pid = setup.tokenizer.pid
    assert pid is not None
    setup.tokenizer.close()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert setup.tokenizer.encode(["1"]) == [[1]]


def test_the_pause_doubles_with_each_failure_up_to_ten_minutes() -> None:
    setup = Setup(file=HONEST | {"model": {}})
    for number, pause_s in enumerate((5, 10, 20, 40, 80, 160, 320, 600, 600), start=1):
        setup.fail("the file cannot be read: [^.]*[.] The run's trainer published this file")
        setup.fail(f"It is tried again in {pause_s} s")
        setup.now_ms += 1000 * pause_s - 1
        setup.fail("It is tried again in 1 s")
        assert setup.started == number
        setup.now_ms += 1


def test_many_jobs_without_a_failure_forgive_the_earlier_ones() -> None:
    setup = Setup("dies", "dies")
    setup.fail("crashed")
    setup.now_ms += RESTART_PAUSE_MS
    setup.fail("crashed")
    setup.fail("It is tried again in 10 s")
    setup.now_ms += 2 * RESTART_PAUSE_MS
    for _ in range(JOBS_FORGIVEN):
        setup.tokenizer.decode([[1]])
    setup.behaviours.append("dies")
    assert setup.tokenizer.pid is not None
    os.kill(setup.tokenizer.pid, signal.SIGKILL)
    os.waitid(os.P_PID, setup.tokenizer.pid, os.WEXITED | os.WNOWAIT)
    setup.fail("crashed")
    setup.fail("It is tried again in 5 s")


def test_a_tokenizer_that_nobody_uses_any_more_leaves_no_process() -> None:
    setup = Setup()
    setup.tokenizer.encode(["1"])
    pid = setup.tokenizer.pid
    assert pid is not None
    del setup
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_program_that_cannot_be_started_is_named() -> None:
    tokenizer = TokenizerProcess(b"{}", "the file", limits=TokenizerLimits(), command=lambda limits: ["/nonexistent"])
    with pytest.raises(LocalError, match="/nonexistent cannot be started: No such file"):
        tokenizer.encode(["1"])


def test_the_process_gets_no_variable_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_NODE_PASSWORD", "secret")
    assert build_environment().keys() == {"PYTHONPATH", "LC_ALL", "TOKENIZERS_PARALLELISM"}


@pytest.mark.parametrize(
    ("source", "error"),
    [("bytearray(2**30)", "MemoryError"), ("open('mark', 'w', buffering=1).write('x\\n')", "Error")],
)
def test_the_process_has_little_memory_and_writes_no_file(source: str, error: str, tmp_path: Path) -> None:
    program = f"from prime_runtime.tokenizer_process import drop_privileges; drop_privileges(2**28); {source}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=build_environment(), check=False)
    assert done.returncode == 1
    assert error in done.stderr.decode()
    assert not any(path.stat().st_size for path in tmp_path.iterdir())
