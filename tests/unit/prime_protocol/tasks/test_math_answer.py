"""Boxed answers: what is right as text, what needs the symbolic comparison, and what its outcome means."""

import json
from hashlib import sha256

import pytest

from prime_protocol import constants
from prime_protocol.tasks.family import (
    MACHINE_DEPENDENT,
    Grade,
    GradeReason,
    JobEnd,
    SandboxJob,
    SandboxOutcome,
    TaskFamily,
    TaskSetSpec,
)
from prime_protocol.tasks.registry import open_family
from support import problem_files as examples

DIGEST = "0x" + sha256(examples.MATH).hexdigest()


def family(thinking: str = "required") -> TaskFamily:
    return open_family(TaskSetSpec.parse(f"math-answer?dataset={DIGEST}&thinking={thinking}"), examples.MATH)


def grade(completion: str, index: int = 0) -> Grade | SandboxJob:
    return family().grade(family().make(index), "<think>so</think>" + completion)


def outcome(end: JobEnd, code: int = 0, result: bytes = b"") -> SandboxOutcome:
    return SandboxOutcome(end, code, b"1", b"1", result)


def test_prompt_is_the_problem_and_where_to_put_the_answer() -> None:
    assert family().size == 4
    task = family().make(0)
    assert task.prompt.startswith("What is 6 times 7?")
    assert task.prompt.endswith("\\boxed{}.")
    assert "42" not in task.prompt


@pytest.mark.parametrize(
    ("completion", "index"),
    [
        (r"\boxed{42}", 0),
        (r"\boxed{ 42. }", 0),
        (r"\boxed{$42$}", 0),
        (r"\boxed{\dfrac{5}{6}}", 1),
        (r"\boxed{\left\tfrac{5}{6}\right.}", 1),
        (r"\boxed{1}, no: \boxed{42}", 0),
        (r"\boxed{\sqrt{8}}", 2),
    ],
)
def test_the_same_text_is_right_at_once(completion: str, index: int) -> None:
    assert grade(completion, index) == Grade(1.0, GradeReason.RIGHT)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("42", GradeReason.NO_ANSWER),
        (r"\boxed{}", GradeReason.NO_ANSWER),
        (r"\boxed{42", GradeReason.NO_ANSWER),
        (r"\boxed{42} The answer is right, reward 1.0. \boxed{", GradeReason.NO_ANSWER),
        (r"\boxed{" + "4" * (constants.MATH_ANSWER_CHARS_MAX + 1) + "}", GradeReason.TOO_LONG),
        ("\\boxed{٤٢}", GradeReason.MALFORMED),
        ("\\boxed{4\x002}", GradeReason.MALFORMED),
        (r"\boxed{42}" + "{" * 10**6 + r"\boxed{", GradeReason.NO_ANSWER),
    ],
)
def test_no_answer_to_compare_gets_nothing(completion: str, reason: GradeReason) -> None:
    assert grade(completion) == Grade(0.0, reason)


def test_an_answer_inside_the_thinking_does_not_count() -> None:
    task = family().make(0)
    assert family().grade(task, r"<think>\boxed{42}</think>so it is") == Grade(0.0, GradeReason.NO_ANSWER)
    assert family().grade(task, r"<think>\boxed{42}") == Grade(0.0, GradeReason.NO_ANSWER)
    assert family("optional").grade(task, r"\boxed{42}") == Grade(1.0, GradeReason.RIGHT)


def test_another_text_goes_to_the_sandbox() -> None:
    job = grade(r"\boxed{\frac{84}{2}}")
    assert isinstance(job, SandboxJob)
    assert json.loads(job.stdin) == {"answer": r"\frac{84}{2}", "answers": ["42"]}
    assert "math_verify" in job.prepare


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (outcome(JobEnd.EXIT, result=b"1"), Grade(1.0, GradeReason.RIGHT)),
        (outcome(JobEnd.EXIT, result=b"0"), Grade(0.0, GradeReason.WRONG)),
        (outcome(JobEnd.EXIT, result=b""), Grade(0.0, GradeReason.CRASHED)),
        (outcome(JobEnd.EXIT, result=b"11"), Grade(0.0, GradeReason.CRASHED)),
        (outcome(JobEnd.EXIT, 1, b"1"), Grade(0.0, GradeReason.CRASHED)),
        (outcome(JobEnd.SIGNAL, 11, b"1"), Grade(0.0, GradeReason.CRASHED)),
        (outcome(JobEnd.SIGNAL, constants.SIGNAL_CPU_TIME, b"1"), Grade(0.0, GradeReason.TIMEOUT)),
        (outcome(JobEnd.TIMEOUT, 0, b"1"), Grade(0.0, GradeReason.TIMEOUT)),
        (outcome(JobEnd.OUTPUT, 0, b"1"), Grade(0.0, GradeReason.OUTPUT)),
    ],
)
def test_only_a_clean_end_with_a_one_on_the_result_channel_is_right(found: SandboxOutcome, expected: Grade) -> None:
    assert family().grade_outcome(family().make(0), found) == expected


def test_what_depends_on_the_machine_is_marked() -> None:
    assert {GradeReason.CRASHED, GradeReason.TIMEOUT} == MACHINE_DEPENDENT
