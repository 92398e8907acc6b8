"""A problem file is read strictly: what is wrong with it is named by line and field."""

import json
from hashlib import sha256

import pytest

from prime_protocol import constants
from prime_protocol.errors import RemoteError
from prime_protocol.tasks import dataset
from prime_protocol.tasks.dataset import parse_code_problems, parse_math_problems, verify_dataset_digest
from prime_protocol.wire.ids import Digest
from support import problem_files as examples

MATH = {"prompt": "p", "answers": ["1"]}
STDIN = {"prompt": "p", "kind": "stdin", "tests": [{"input": "", "output": "1"}]}
CALL = {"prompt": "p", "kind": "call", "function": "f", "tests": [{"arguments": [], "result": None}]}


def line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def refusal(data: bytes, *, code: bool = False) -> str:
    with pytest.raises(RemoteError) as caught:
        (parse_code_problems if code else parse_math_problems)(data)
    return caught.value.field


def test_examples_are_read() -> None:
    assert [problem.answers[0] for problem in parse_math_problems(examples.MATH)][:2] == ["42", "\\frac{5}{6}"]
    assert [problem.function for problem in parse_code_problems(examples.CODE)] == ["", "double", "Solution.half"]
    assert parse_code_problems(line(STDIN))[0].tests == (("", "1"),)
    assert parse_code_problems(line(CALL))[0].tests == (("[]", "null"),)


def test_another_file_than_the_run_names_is_refused() -> None:
    verify_dataset_digest(b"x", Digest(sha256(b"x").digest()))
    with pytest.raises(RemoteError, match="dataset"):
        verify_dataset_digest(b"y", Digest(sha256(b"x").digest()))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "dataset"),
        (line(MATH)[:-1], "dataset"),
        (b"\n", "dataset[0]"),
        (line(MATH) + b"\n", "dataset[1]"),
        (b"[]\n", "dataset[0]"),
        (b"\xff\n", "dataset[0]"),
        (b'{"prompt":"p","prompt":"p","answers":["1"]}\n', "dataset[0]"),
        (b'{"prompt":NaN}\n', "dataset[0]"),
        (b'{"prompt":1e999}\n', "dataset[0]"),
        (b'{"prompt":"\\ud800","answers":["1"]}\n', "dataset[0]"),
        (b"[" * 100_000 + b"\n", "dataset[0]"),
        (b"1" * 5_000 + b"\n", "dataset[0]"),
        (line({"prompt": "p"}), "dataset[0].answers"),
        (line({**MATH, "extra": 1}), "dataset[0]"),
        (line({**MATH, "prompt": 1}), "dataset[0].prompt"),
        (line({**MATH, "prompt": ""}), "dataset[0].prompt"),
        (line({**MATH, "prompt": "p" * (constants.DATASET_PROMPT_CHARS_MAX + 1)}), "dataset[0].prompt"),
        (line({**MATH, "answers": "1"}), "dataset[0].answers"),
        (line({**MATH, "answers": []}), "dataset[0].answers"),
        (line({**MATH, "answers": ["1"] * (constants.DATASET_ANSWERS_MAX + 1)}), "dataset[0].answers"),
        (line(MATH) + line({**MATH, "answers": ["1", 2]}), "dataset[1].answers[1]"),
        (b" " * (constants.DATASET_LINE_BYTES_MAX + 1) + b"\n", "dataset[0]"),
    ],
)
def test_a_bad_math_line_is_named(data: bytes, field: str) -> None:
    assert refusal(data) == field


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (MATH, "dataset[0].kind"),
        ({**STDIN, "function": "f"}, "dataset[0]"),
        ({**CALL, "function": "f()"}, "dataset[0].function"),
        ({**CALL, "function": "a.b.c"}, "dataset[0].function"),
        ({**CALL, "function": "__import__('os')"}, "dataset[0].function"),
        ({**STDIN, "tests": []}, "dataset[0].tests"),
        ({**STDIN, "tests": ["1"]}, "dataset[0].tests[0]"),
        ({**STDIN, "tests": [{"input": "1"}]}, "dataset[0].tests[0].output"),
        ({**STDIN, "tests": [{"input": 1, "output": "1"}]}, "dataset[0].tests[0].input"),
        ({**STDIN, "tests": [{"input": "1", "output": ""}]}, "dataset[0].tests[0].output"),
        ({**CALL, "tests": [{"arguments": 1, "result": 1}]}, "dataset[0].tests[0].arguments"),
        ({**CALL, "tests": [{"arguments": ["x" * 100_001], "result": 1}]}, "dataset[0].tests[0]"),
    ],
)
def test_a_bad_code_line_is_named(value: object, field: str) -> None:
    assert refusal(line(value), code=True) == field


def test_a_file_over_the_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset.constants, "DATASET_BYTES_MAX", 10)
    assert refusal(b"x" * 11) == "dataset"
