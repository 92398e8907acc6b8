"""The last answer after the thinking is found, at a cost that the text cannot drive up."""

import pytest

from prime_protocol.constants import ANSWER_CHARS_MAX, COMPLETION_CHARS_MAX
from prime_protocol.tasks.family import extract_boxed, extract_program, extract_tagged, strip_thinking

MILLION = 10**6


def test_thinking_ends_at_the_last_tag() -> None:
    assert strip_thinking("a</think>b</think>c", required=True) == "c"
    assert strip_thinking("no tag", required=True) is None
    assert strip_thinking("no tag", required=False) == "no tag"
    assert strip_thinking("</think>" + "x" * COMPLETION_CHARS_MAX, required=False) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\\}", r"\\"),
        (r"\boxed{ 4 }", "4"),
        (r"\boxed{}", ""),
        (r"\boxed{1", None),
        (r"\boxed{1\}", None),
        (r"\boxed{1} \boxed{2", None),
        (r"boxed{1}", None),
        ("\\boxed{1\\", None),
        ("no box", None),
    ],
)
def test_last_boxed(text: str, answer: str | None) -> None:
    assert extract_boxed(text) == answer


@pytest.mark.parametrize("filler", ["{", "}", "\\", "\\boxed{", "```python\n", "```\n", "<answer>", "</think>", "\n"])
def test_a_million_marks_are_looked_at_once(filler: str) -> None:
    text = (filler * MILLION)[:MILLION]
    assert strip_thinking(text, required=False) is not None
    assert extract_boxed(text) is None
    assert extract_boxed("\\boxed{" + "x" * ANSWER_CHARS_MAX + "}") is None
    assert extract_program(text) in (None, "", "\n") or filler.startswith("```")
    assert extract_tagged(text) is None


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\ntext\n```python\nb\n```", "b\n"),
        ("```py\na\n```", "a\n"),
        ("```Python3\na\n```", "a\n"),
        ("```python\na\n```\n```python\nunfinished", "a\n"),
        ("```python\n  a\n\tb  \n```", "  a\n\tb  \n"),
        ("```python\n```python\n```", "```python\n"),
        ("```\na\n```", None),
        ("```java\na\n```", None),
        ("print(1)", None),
    ],
)
def test_last_program(text: str, program: str | None) -> None:
    assert extract_program(text) == program


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer><answer> 2 </answer>", "2"),
        ("<answer>1</answer> text", "1"),
        ("<answer><answer>3</answer></answer>", "3"),
        ("<answer>1</answer><answer>2", None),
        ("1</answer>", None),
        ("", None),
    ],
)
def test_last_tagged(text: str, answer: str | None) -> None:
    assert extract_tagged(text) == answer
