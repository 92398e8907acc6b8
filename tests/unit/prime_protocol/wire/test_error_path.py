"""The path of a value in a frame."""

import msgpack
import pytest

from prime_protocol.constants import DEPTH_MAX, ITEMS_MAX
from prime_protocol.wire.error_path import find_first_difference, find_path_at, find_unreadable_path, format_key

FRAME: bytes = msgpack.packb({"a": 1, "list": [10, {"x": "text", "y": b"bytes"}, []], "z": None})


def test_every_byte_of_a_frame_belongs_to_one_path() -> None:
    paths = [find_path_at(FRAME, at) for at in range(len(FRAME))]
    assert list(dict.fromkeys(paths)) == [
        "",
        ".a",
        ".list",
        ".list[0]",
        ".list[1]",
        ".list[1].x",
        ".list[1].y",
        ".list[2]",
        ".z",
    ]
    assert paths[FRAME.index(b"text")] == ".list[1].x"


def test_a_byte_behind_the_frame_belongs_to_the_whole() -> None:
    assert find_path_at(FRAME, len(FRAME)) == ""


@pytest.mark.parametrize(
    ("frame", "path"),
    [
        (b"", ""),
        (b"\xc1", ""),
        (b"\x82\xa1a\x01\xa1b\xa1\xff", ".b"),
        (b"\x81\xa1a\x92\x01\xa1\xff", ".a[1]"),
        (b"\x81\xa1a\x92\x01", ".a[1]"),
        (b"\x81\xa1\xff\x01", ""),
        (b"\x81\x07\xc1", ".?"),
        (b"\xde\x00", ""),
        (b"\x81\xa1a\xdc\xff\xff", ".a"),
        (b"\x81\xa1a\xdf\xff\xff\xff\xff", ".a"),
        (b"\x81\xa1a\x91" + b"\x91" * 100, ".a" + "[0]" * (DEPTH_MAX - 1)),
    ],
)
def test_the_value_that_cannot_be_read_is_found(frame: bytes, path: str) -> None:
    assert find_unreadable_path(frame, list_max=10, map_max=10) == path


def test_a_huge_claim_costs_no_walk() -> None:
    frame = b"\xdd" + (ITEMS_MAX + 1).to_bytes(4, "big") + bytes(ITEMS_MAX + 1)
    assert find_path_at(frame, len(frame) - 1) == ""
    assert find_path_at(b"\xdd" + ITEMS_MAX.to_bytes(4, "big") + bytes(ITEMS_MAX), 5) == "[0]"


def test_the_first_difference_is_found_wherever_it_is() -> None:
    honest = bytes(range(200))
    for at in range(200):
        assert find_first_difference(honest, honest[:at] + b"\xff" + honest[at + 1 :]) == at
    assert find_first_difference(honest, honest[:7]) == 7


def test_a_step_is_short_and_printable_whatever_the_key() -> None:
    assert format_key("name") == ".name"
    assert format_key("two words") == ".'two words'"
    assert format_key("\x1b") == ".'\\x1b'"
    assert format_key(b"raw") == ".b'raw'"
    assert format_key(7) == ".?"
    assert format_key("x" * 1000) == "." + "x" * 40
