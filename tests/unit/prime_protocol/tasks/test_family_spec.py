"""A task set has one spelling, and what it does not know it refuses by name."""

import pytest

from prime_protocol.constants import TASK_PARAMETERS_MAX, TASK_SET_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest


def test_spec_is_printed_as_it_was_read() -> None:
    for text in ("sort-digits", "sort-digits?digits=5&size=100000", "arithmetic?digits=3&operation=add&padded=yes"):
        assert str(TaskSetSpec.parse(text)) == text


def test_problem_file_is_a_digest_and_not_the_name_of_a_generator() -> None:
    digest = Digest(bytes(range(32)))
    assert TaskSetSpec.parse(f"math-answer?dataset={digest}").problem_file == digest
    assert TaskSetSpec.parse("reasoning-gym?dataset=chain_sum").problem_file is None
    assert TaskSetSpec.parse("sort-digits").problem_file is None
    with pytest.raises(RemoteError):
        _ = TaskSetSpec.parse("math-answer?dataset=0x12").problem_file


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "task_set.family"),
        ("Sort", "task_set.family"),
        ("sort-digits?", "task_set"),
        ("sort-digits?digits", "task_set.digits"),
        ("sort-digits?digits=", "task_set.digits"),
        ("sort-digits?digits=5&", "task_set"),
        ("sort-digits?size=5&digits=5", "task_set.digits"),
        ("sort-digits?digits=5&digits=5", "task_set.digits"),
        ("sort-digits?digits=5 ", "task_set.digits"),
        ("sort-digits?digits=%35", "task_set.digits"),
        ("sort-digits?digits=5=5", "task_set.digits"),
        ("a?" + "&".join(f"p{number:03}=1" for number in range(TASK_PARAMETERS_MAX + 1)), "task_set"),
        ("a" * (TASK_SET_CHARS_MAX + 1), "task_set"),
    ],
)
def test_other_spellings_are_refused(text: str, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        TaskSetSpec.parse(text)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("no-such-family", "task_set.family"),
        ("sort-digits?colour=red", "task_set.colour"),
        ("sort-digits?digits=0", "task_set.digits"),
        ("sort-digits?digits=05", "task_set.digits"),
        ("sort-digits?digits=+5", "task_set.digits"),
        ("sort-digits?digits=99999999999999999999", "task_set.digits"),
        ("sort-digits?reward=double", "task_set.reward"),
        ("arithmetic?padded=maybe", "task_set.padded"),
        ("math-answer", "task_set.dataset"),
        ("python-code?dataset=0xabc", "Digest"),
    ],
)
def test_what_a_family_does_not_know_is_named(text: str, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        open_family(TaskSetSpec.parse(text))
    assert caught.value.field == field
