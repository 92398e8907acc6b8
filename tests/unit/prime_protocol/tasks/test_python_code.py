"""Programs: what is run, what is never handed over, and when the outputs are right."""

import json
from hashlib import sha256

import pytest

from prime_protocol.constants import PROGRAM_CHARS_MAX
from prime_protocol.tasks.family import Grade, GradeReason, JobEnd, SandboxJob, SandboxOutcome, TaskFamily, TaskSetSpec
from prime_protocol.tasks.python_code import is_same_result, is_same_text
from prime_protocol.tasks.registry import open_family
from support import problem_files as examples

RIGHT, WRONG, CRASHED = Grade(1.0, GradeReason.RIGHT), Grade(0.0, GradeReason.WRONG), Grade(0.0, GradeReason.CRASHED)


@pytest.fixture(scope="module")
def family() -> TaskFamily:
    digest = "0x" + sha256(examples.CODE).hexdigest()
    return open_family(TaskSetSpec.parse(f"python-code?dataset={digest}"), examples.CODE)


def conclude(family: TaskFamily, index: int, result: object, stdout: bytes = b"") -> Grade:
    raw = result if isinstance(result, bytes) else json.dumps(result).encode()
    return family.grade_outcome(family.make(index), SandboxOutcome(JobEnd.EXIT, 0, stdout, b"", raw))


def test_the_job_holds_the_inputs_and_nothing_that_is_expected(family: TaskFamily) -> None:
    task = family.make(0)
    assert family.size == 3
    assert task.key == ""
    job = family.grade(task, "</think>```python\nprint(input())\n```")
    assert isinstance(job, SandboxJob)
    assert json.loads(job.stdin) == {"program": "print(input())\n", "function": "", "cases": ["1 2\n", "-5 5\n"]}
    assert job.prepare == ""
    called = family.grade(family.make(1), "</think>```python\npass\n```")
    assert isinstance(called, SandboxJob)
    assert json.loads(called.stdin)["cases"] == [[[1, 2]], [[]]]


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("</think>print(3)", GradeReason.NO_ANSWER),
        ("```python\nprint(3)\n```", GradeReason.NO_ANSWER),
        ("```python\nprint(3)\n```</think>", GradeReason.NO_ANSWER),
        ("</think>```python\n" + "#" * PROGRAM_CHARS_MAX + "\n```", GradeReason.TOO_LONG),
        ("</think>" + "```python\n" * 10**5, GradeReason.NO_ANSWER),
    ],
)
def test_a_completion_without_a_program_gets_nothing(family: TaskFamily, completion: str, reason: GradeReason) -> None:
    assert family.grade(family.make(0), completion) == Grade(0.0, reason)


def test_every_test_must_pass(family: TaskFamily) -> None:
    assert conclude(family, 0, ["3\n", "0\n"]) == RIGHT
    assert conclude(family, 0, ["3", " 0".strip() + "  \n\n"]) == RIGHT
    assert conclude(family, 0, ["3\n", "1\n"]) == WRONG
    assert conclude(family, 0, ["3\n", 0]) == WRONG
    assert conclude(family, 1, ["[2, 4]", "[]"]) == RIGHT
    assert conclude(family, 1, ["[2, 4]", "[0]"]) == WRONG
    assert conclude(family, 2, ["1.5", "4"]) == RIGHT


@pytest.mark.parametrize(
    "result", [b"", b"[", b"{}", b"null", ["3\n"], ["3\n", "0\n", ""], b"\xff", b"[" * 100_000, b'["3", NaN]']
)
def test_a_result_that_is_not_one_output_per_test_is_a_crash(family: TaskFamily, result: object) -> None:
    assert conclude(family, 0, result) == CRASHED


def test_a_program_that_runs_out_of_time_is_told_from_one_that_fails(family: TaskFamily) -> None:
    assert conclude(family, 0, b"", stdout=b"-24") == Grade(0.0, GradeReason.TIMEOUT)
    assert conclude(family, 0, b"", stdout=b"1") == CRASHED
    timeout = SandboxOutcome(JobEnd.TIMEOUT, 0, b"", b"", b'["3\\n", "0\\n"]')
    assert family.grade_outcome(family.make(0), timeout) == Grade(0.0, GradeReason.TIMEOUT)


@pytest.mark.parametrize(
    ("wanted", "given", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 \n2\n", "1\n2\n\n\n", True),
        ("1\n2", "1 2", False),
        ("1\n\n2", "1\n2", False),
        ("1", " 1", False),
        ("a", "A", False),
    ],
)
def test_texts_are_compared_by_line(wanted: str, given: str, same: bool) -> None:
    assert is_same_text(wanted, given) is same


@pytest.mark.parametrize(
    ("wanted", "given", "same"),
    [
        ("1", "1", True),
        ("1", "1.0", False),
        ("1", "true", False),
        ("true", "true", True),
        ("null", "0", False),
        ('"a"', '"a"', True),
        ("0.3", "0.30000000000000004", True),
        ("1.0", "1", True),
        ("1.0", "true", False),
        ("1.0", '"1.0"', False),
        ("1.0", "1" + "0" * 400, False),
        ("[1, [2.0]]", "[1, [2]]", True),
        ("[1]", "[1, 1]", False),
        ("[1]", '{"0": 1}', False),
        ('{"a": 1.0}', '{"a": 1}', True),
        ('{"a": 1}', '{"b": 1}', False),
        ("1", "NaN", False),
        ("1", "", False),
        ("1", "[" * 10**5, False),
    ],
)
def test_results_are_compared_by_value_and_kind(wanted: str, given: str, same: bool) -> None:
    assert is_same_result(wanted, given) is same


def test_an_output_that_is_no_text_is_wrong() -> None:
    assert not is_same_text("1", 1)
    assert not is_same_result("1", 1)
