"""Hostile problem files and task-set texts."""

import pytest

from fuzz.harness import assert_survives
from prime_protocol.errors import RemoteError
from prime_protocol.tasks.characters import SortDigits
from prime_protocol.tasks.dataset import parse_code_problems, parse_math_problems
from prime_protocol.tasks.family import TaskParameters, TaskSetSpec
from prime_protocol.wire.strict_json import parse_json
from support import problem_files as examples

pytestmark = pytest.mark.fuzz

SPECS = [b"sort-digits", b"sort-digits?digits=5&reward=shaped&seed=3&size=100000"]


def open_sort_digits(data: bytes) -> SortDigits:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RemoteError("task_set", "is not UTF-8") from None
    parameters = TaskParameters(TaskSetSpec.parse(text))
    family = SortDigits.open(parameters, b"")
    parameters.finish()
    family.make(family.size - 1)
    return family


def test_math_problem_files_survive() -> None:
    assert_survives(parse_math_problems, [examples.MATH])


def test_code_problem_files_survive() -> None:
    assert_survives(parse_code_problems, [examples.CODE])


def test_results_from_the_sandbox_survive() -> None:
    assert_survives(
        lambda data: parse_json("result", data), [b'["3\\n", "0"]', b'[[1, {"a": [2.5, null]}], "\\u00e9"]']
    )


def test_task_set_texts_survive() -> None:
    assert_survives(open_sort_digits, SPECS)
