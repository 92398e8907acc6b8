"""Laws of tasks: decided by the index alone, and a reward that only the right completion reaches."""

from hypothesis import given, settings
from hypothesis import strategies as st

from prime_protocol.errors import RemoteError
from prime_protocol.tasks.characters import HashRandom
from prime_protocol.tasks.family import (
    Grade,
    TaskSetSpec,
    extract_boxed,
    extract_program,
    extract_tagged,
    strip_thinking,
)
from prime_protocol.tasks.python_code import is_same_result, is_same_text
from prime_protocol.tasks.registry import open_family

REWARDS = st.sampled_from(["exact", "shaped"])
SEEDS = st.integers(0, 99)
SPECS = st.one_of(
    st.builds("sort-digits?digits={}&reward={}&seed={}".format, st.integers(2, 18), REWARDS, SEEDS),
    st.builds(
        "arithmetic?digits={}&operation={}&padded={}&reward={}&seed={}".format,
        st.integers(1, 18),
        st.sampled_from(["add", "subtract", "multiply"]),
        st.sampled_from(["yes", "no"]),
        REWARDS,
        SEEDS,
    ),
)
PIECES = st.sampled_from(
    ["\\boxed{", "{", "}", "\\", "```python\n", "```\n", "<answer>", "</answer>", "</think>", "1", "\n"]
)
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=40).map("".join)


@given(SPECS, st.integers(0, 9_999), st.text(alphabet="0123456789$^>+-* x", max_size=40))
def test_same_index_same_task_and_only_its_key_is_right(text: str, index: int, completion: str) -> None:
    spec = TaskSetSpec.parse(text)
    task = open_family(spec).make(index)
    assert task == open_family(spec).make(index)
    grade = open_family(spec).grade(task, completion)
    assert isinstance(grade, Grade)
    assert (grade.reward == 1.0) == (completion == task.key + "$")
    assert grade.reward in (1.0,) or grade.reward <= 0.5


@given(st.text(max_size=20), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 2**64))
def test_draws_stay_below_their_bound(name: str, seed: int, index: int, bound: int) -> None:
    draw = HashRandom(name, seed, index).below(bound)
    assert 0 <= draw < bound
    assert draw == HashRandom(name, seed, index).below(bound)


@given(
    st.text(max_size=60) | st.from_regex(r"[a-z-]{1,8}(\?[a-z]{1,3}=[0-9a-z]{1,3}(&[a-z]{1,3}=[0-9a-z]{1,3}){0,3})?")
)
def test_a_spec_that_is_read_is_printed_the_same(text: str) -> None:
    try:
        spec = TaskSetSpec.parse(text)
    except RemoteError:
        return
    assert str(spec) == text


@given(TEXTS)
def test_an_answer_found_is_a_part_of_the_text(text: str) -> None:
    for answer in (extract_boxed(text), extract_tagged(text), strip_thinking(text, required=True)):
        assert answer is None or answer in text
    program = extract_program(text)
    assert program is None or program == "\n" or program[:-1] in text


@settings(max_examples=50)
@given(TEXTS.filter(lambda text: "\\" not in text and "{" not in text and "}" not in text), TEXTS)
def test_the_last_boxed_answer_is_the_one_that_counts(answer: str, before: str) -> None:
    assert extract_boxed(before + "\\boxed{" + answer + "}") == answer.strip()


@given(st.text(), st.text())
def test_comparing_outputs_never_fails_and_equals_are_the_same(one: str, other: str) -> None:
    assert is_same_text(one, one)
    assert is_same_text(one, other) == is_same_text(other, one)
    assert is_same_result(one, other) in (True, False)
