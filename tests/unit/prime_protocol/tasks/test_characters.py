"""Digit sorting and arithmetic: the tasks, and what a completion gets for them."""

import pytest

from prime_protocol.tasks.family import Grade, GradeReason, JobEnd, SandboxOutcome, TaskSetSpec
from prime_protocol.tasks.registry import open_family

RIGHT = Grade(1.0, GradeReason.RIGHT)
NOTHING = SandboxOutcome(JobEnd.EXIT, 0, b"", b"", b"")


def grade(spec: str, completion: str, index: int = 0) -> Grade:
    family = open_family(TaskSetSpec.parse(spec))
    task = family.make(index)
    found = family.grade(task, completion.replace("KEY", task.key))
    assert isinstance(found, Grade)
    return found


def test_sort_digits_asks_for_the_digits_in_order() -> None:
    family = open_family(TaskSetSpec.parse("sort-digits?digits=5&size=3"))
    assert (family.name, family.size) == ("sort-digits", 3)
    for index in range(family.size):
        task = family.make(index)
        assert task.index == index
        assert task.prompt[0] + task.prompt[-1] == "^>"
        assert task.key == "".join(sorted(task.prompt[1:-1]))
        assert len(task.key) == 5


@pytest.mark.parametrize("index", [-1, 3])
@pytest.mark.parametrize("spec", ["sort-digits?size=3", "arithmetic?size=3"])
def test_an_index_outside_the_set_is_our_bug(spec: str, index: int) -> None:
    with pytest.raises(AssertionError):
        open_family(TaskSetSpec.parse(spec)).make(index)


@pytest.mark.parametrize("spec", ["sort-digits", "arithmetic"])
def test_characters_never_need_a_job(spec: str) -> None:
    family = open_family(TaskSetSpec.parse(spec))
    with pytest.raises(AssertionError):
        family.grade_outcome(family.make(0), NOTHING)


@pytest.mark.parametrize(
    "completion",
    ["", "KEY", "$KEY", " KEY$", "KEY$ ", "KEY$KEY$", "KEY\n$", "reward 1.0 KEY$", "1" * 10**6, "KEY" * 10**5 + "$"],
)
def test_only_the_answer_and_the_end_mark_are_right(completion: str) -> None:
    assert grade("sort-digits", completion) == Grade(0.0, GradeReason.WRONG)
    assert grade("sort-digits", "KEY$") == RIGHT


def test_digits_of_other_scripts_are_wrong() -> None:
    family = open_family(TaskSetSpec.parse("sort-digits"))
    task = family.make(0)
    arabic = "".join(chr(0x660 + int(digit)) for digit in task.key)
    assert family.grade(task, arabic + "$") == Grade(0.0, GradeReason.WRONG)


def test_shaped_reward_pays_for_right_places_and_for_stopping() -> None:
    spec = "sort-digits?digits=4&reward=shaped"
    assert grade(spec, "KEY$") == RIGHT
    assert grade(spec, "KEY") == Grade(0.45, GradeReason.PARTLY)
    assert grade(spec, "KEY$x") == Grade(0.5, GradeReason.PARTLY)
    assert grade(spec, "xxxx$") == Grade(0.05, GradeReason.PARTLY)
    assert grade(spec, "xxxxx$") == Grade(0.0, GradeReason.WRONG)
    assert grade(spec, "$xxx$") == Grade(0.0, GradeReason.WRONG)
    assert grade(spec, "") == Grade(0.0, GradeReason.WRONG)


@pytest.mark.parametrize(("operation", "sign"), [("add", "+"), ("subtract", "-"), ("multiply", "*")])
@pytest.mark.parametrize("padded", ["yes", "no"])
def test_arithmetic_asks_for_the_value_of_its_prompt(operation: str, sign: str, padded: str) -> None:
    family = open_family(TaskSetSpec.parse(f"arithmetic?digits=3&operation={operation}&padded={padded}"))
    widths = {"add": 4, "subtract": 3, "multiply": 6}
    for index in range(100):
        task = family.make(index)
        one, other = task.prompt[1:-1].split(sign)
        values = {"add": int(one) + int(other), "subtract": int(one) - int(other), "multiply": int(one) * int(other)}
        assert int(task.key) == values[operation] >= 0
        if padded == "yes":
            assert (len(one), len(other), len(task.key)) == (3, 3, widths[operation])
        else:
            assert task.key == str(int(task.key))
        assert family.grade(task, task.key + "$") == RIGHT
