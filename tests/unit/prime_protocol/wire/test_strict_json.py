"""Hostile JSON is refused by name, and deep JSON before the parser sees it."""

import subprocess
import sys

import pytest

from prime_protocol.constants import JSON_DEPTH_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.strict_json import compute_depth, parse_json


@pytest.mark.parametrize(
    ("text", "value"),
    [(b"null", None), (b' {"a": [1, 2.5, "x", true]} ', {"a": [1, 2.5, "x", True]}), ('"é"'.encode(), "é")],
)
def test_json_is_read(text: bytes, value: object) -> None:
    assert parse_json("field", text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1,]",
        b"nul",
        b"\xff",
        b'"\\ud800"',
        b"1e999",
        b"NaN",
        b"-Infinity",
        b'{"a": 1, "a": 1}',
        b"9" * 5000,
    ],
)
def test_what_is_not_strict_json_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_json("field", text)
    assert caught.value.field == "field"


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"", 0),
        (b"1", 0),
        (b"[[]]", 2),
        (b'{"a": [{}]}', 3),
        (b'["[[[", "]]]"]', 1),
        (rb'["\"[[", "\\"]', 1),
        (b'[["]]]]", [["]]]]"', 4),
        (b'"[[[', 3),
    ],
)
def test_depth_counts_brackets_outside_of_strings(text: bytes, depth: int) -> None:
    assert compute_depth(text) == depth


def test_the_limit_itself_is_allowed() -> None:
    parse_json("field", b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX)
    with pytest.raises(RemoteError, match="deeper"):
        parse_json("field", b"[" * (JSON_DEPTH_MAX + 1) + b"]" * (JSON_DEPTH_MAX + 1))


def test_deep_json_does_not_kill_a_process_whose_recursion_limit_was_raised() -> None:
    script = (
        "import sys; sys.setrecursionlimit(10**9)\n"
        "from prime_protocol.wire.strict_json import parse_json\n"
        "from prime_protocol.errors import RemoteError\n"
        "try: parse_json('f', b'[' * 10**6)\n"
        "except RemoteError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n")
