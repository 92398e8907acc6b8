"""Problem files: JSON lines, named by their SHA-256 digest, read strictly. One bad line refuses the file.

    {"prompt": "What is 6 times 7?", "answers": ["42"]}
    {"prompt": "...", "kind": "stdin", "tests": [{"input": "1 2\n", "output": "3\n"}]}
    {"prompt": "...", "kind": "call", "function": "add", "tests": [{"arguments": [1, 2], "result": 3}]}

What makes a completion right is not decided here; see math_answer.py and python_code.py.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

from prime_protocol import constants
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.strict_json import Json, parse_json

FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}(?:\.[A-Za-z_][A-Za-z0-9_]{0,63})?", re.ASCII)
"""A function, or a method of a class that is made without arguments."""

Problem = TypeVar("Problem")


@dataclass(frozen=True, slots=True)
class MathProblem:
    """A question and the answers that are right, in LaTeX."""

    prompt: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A question and its unit tests: pairs of input and expected output, or of arguments and result as JSON text."""

    prompt: str
    function: str
    """What is called; empty where tests go through standard input and output."""
    tests: tuple[tuple[str, str], ...]


def verify_dataset_digest(data: bytes, digest: Digest) -> None:
    """The file is the one that the run names."""
    found = Digest(sha256(data).digest())
    if found != digest:
        raise RemoteError("dataset", f"has the digest {found}, the run names {digest}")


def parse_math_problems(data: bytes) -> tuple[MathProblem, ...]:
    return parse_lines(data, parse_math_problem)


def parse_code_problems(data: bytes) -> tuple[CodeProblem, ...]:
    return parse_lines(data, parse_code_problem)


def parse_lines(data: bytes, parse: Callable[[str, dict[str, Json]], Problem]) -> tuple[Problem, ...]:
    """Every line an object; every line ended; none empty."""
    if len(data) > constants.DATASET_BYTES_MAX:
        raise RemoteError("dataset", f"is {len(data)} bytes, the limit is {constants.DATASET_BYTES_MAX}")
    if not data.endswith(b"\n"):
        raise RemoteError("dataset", "must end with a line feed")
    problems = []
    for number, line in enumerate(data[:-1].split(b"\n")):
        field = f"dataset[{number}]"
        if len(line) > constants.DATASET_LINE_BYTES_MAX:
            raise RemoteError(field, f"is {len(line)} bytes, the limit is {constants.DATASET_LINE_BYTES_MAX}")
        value = parse_json(field, line)
        if not isinstance(value, dict):
            raise RemoteError(field, "must be an object")
        problems.append(parse(field, value))
    return tuple(problems)


def parse_math_problem(field: str, value: dict[str, Json]) -> MathProblem:
    require_names(field, value, {"prompt", "answers"})
    answers = require_list(f"{field}.answers", value["answers"], constants.DATASET_ANSWERS_MAX)
    texts = [
        require_text(f"{field}.answers[{number}]", answer, constants.MATH_ANSWER_CHARS_MAX)
        for number, answer in enumerate(answers)
    ]
    return MathProblem(require_prompt(field, value), tuple(texts))


def parse_code_problem(field: str, value: dict[str, Json]) -> CodeProblem:
    kind = value.get("kind")
    if kind not in ("stdin", "call"):
        raise RemoteError(f"{field}.kind", "must be stdin or call")
    names = {"prompt", "kind", "tests"}
    require_names(field, value, names if kind == "stdin" else names | {"function"})
    function = "" if kind == "stdin" else require_text(f"{field}.function", value["function"], 129)
    if kind == "call" and not FUNCTION.fullmatch(function):
        raise RemoteError(f"{field}.function", "must be a name, or a class and a method with a dot between")
    tests = require_list(f"{field}.tests", value["tests"], constants.DATASET_TESTS_MAX)
    parse = parse_call_test if kind == "call" else parse_stdin_test
    cases = [parse(f"{field}.tests[{number}]", test) for number, test in enumerate(tests)]
    return CodeProblem(require_prompt(field, value), function, tuple(cases))


def parse_stdin_test(field: str, value: Json) -> tuple[str, str]:
    case = require_names(field, value, {"input", "output"})
    limit = constants.DATASET_TEST_CHARS_MAX
    if case["input"] == "":
        return "", require_text(f"{field}.output", case["output"], limit)
    return require_text(f"{field}.input", case["input"], limit), require_text(f"{field}.output", case["output"], limit)


def parse_call_test(field: str, value: Json) -> tuple[str, str]:
    case = require_names(field, value, {"arguments", "result"})
    if not isinstance(case["arguments"], list):
        raise RemoteError(f"{field}.arguments", "must be a list")
    texts = json.dumps(case["arguments"]), json.dumps(case["result"])
    if max(map(len, texts)) > constants.DATASET_TEST_CHARS_MAX:
        raise RemoteError(field, f"is longer than {constants.DATASET_TEST_CHARS_MAX} characters")
    return texts


def require_prompt(field: str, value: dict[str, Json]) -> str:
    return require_text(f"{field}.prompt", value["prompt"], constants.DATASET_PROMPT_CHARS_MAX)


def require_names(field: str, value: Json, names: set[str]) -> dict[str, Json]:
    """An object with exactly these names."""
    if not isinstance(value, dict):
        raise RemoteError(field, "must be an object")
    for name in sorted(names - set(value)):
        raise RemoteError(f"{field}.{name}", "is missing")
    if len(value) != len(names):
        raise RemoteError(field, f"must have exactly the names {', '.join(sorted(names))}")
    return value


def require_list(field: str, value: Json, most: int) -> list[Json]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise RemoteError(field, f"must be a list of 1 to {most}")
    return value


def require_text(field: str, value: Json, most: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise RemoteError(field, f"must be a text of 1 to {most} characters")
    return value
