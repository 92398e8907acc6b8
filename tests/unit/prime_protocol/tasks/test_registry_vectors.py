"""The tasks that any other implementation must make from the same specs."""

import json
from pathlib import Path

import pytest

from prime_protocol.tasks.family import Grade, TaskSetSpec
from prime_protocol.tasks.registry import open_family

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "tasks.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["tasks"], ids=lambda vector: f"{vector['spec']}#{vector['index']}")
def test_tasks(vector: dict[str, object]) -> None:
    task = open_family(TaskSetSpec.parse(str(vector["spec"]))).make(int(str(vector["index"])))
    assert (task.prompt, task.key) == (vector["prompt"], vector["key"])


@pytest.mark.parametrize("vector", VECTORS["grades"], ids=lambda vector: repr(vector["completion"]))
def test_grades(vector: dict[str, object]) -> None:
    family = open_family(TaskSetSpec.parse(str(vector["spec"])))
    grade = family.grade(family.make(int(str(vector["index"]))), str(vector["completion"]))
    assert isinstance(grade, Grade)
    assert (grade.reward, grade.reason) == (vector["reward"], vector["reason"])
