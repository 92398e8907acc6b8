"""The canonical codec: one frame for each value, and a refusal that names the field for everything else."""

import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NewType

import msgpack
import pytest

from prime_protocol.constants import DEPTH_MAX, FRAME_BYTES_MAX, ITEMS_MAX, TEXT_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import Range, Size, decode, encode
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "codec.json").read_text())


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    a: int
    b: float = 0.0

    def __post_init__(self) -> None:
        if self.a == 13:
            raise RemoteError("a", "is unlucky")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One field of every kind. tests/vectors/codec.json describes the same type in words."""

    count: Annotated[int, Range(0, 1000)] = 5
    ratio: Annotated[float, Range(0.0, 1.0)] = 0.5
    is_on: bool = True
    text: Annotated[str, Size(0, 8)] = "hello"
    data: Annotated[bytes, Size(0, 4)] = b"\x01"
    digest: Digest = field(default_factory=lambda: Digest(bytes(32)))
    run: RunId = field(default_factory=lambda: RunId("run-1"))
    step: Step = field(default_factory=lambda: Step(0))
    colour: Colour = Colour.RED
    maybe: int | None = None
    perhaps: Inner | None = None
    z: Annotated[tuple[Inner, ...], Size(0, 3)] = ()
    numbers: tuple[int, ...] = ()


def plain(**changed: Any) -> dict[str, Any]:
    """The map of an honest Sample, with fields replaced."""
    honest = msgpack.unpackb(encode(Sample()))
    assert set(changed) <= set(honest)
    return dict(sorted((honest | changed).items()))


def refusal(frame: bytes, kind: type = Sample) -> tuple[str, str]:
    with pytest.raises(RemoteError) as caught:
        decode(kind, frame)
    return caught.value.field, caught.value.problem


def refusal_of(**changed: Any) -> tuple[str, str]:
    return refusal(msgpack.packb(plain(**changed)))


def with_raw(name: str, raw: bytes) -> bytes:
    """An honest frame in which one field's value is these bytes."""
    parts = [msgpack.packb(key) + (raw if key == name else msgpack.packb(value)) for key, value in plain().items()]
    return bytes([0x80 + len(parts)]) + b"".join(parts)


FULL = Sample(
    text="café 漢",
    perhaps=Inner(1, -0.5),
    z=(Inner(1), Inner(-(2**63), 1e300)),
    numbers=tuple(range(-200, 200)),
    maybe=2**64 - 1,
)


def test_a_message_round_trips_with_every_kind_of_field() -> None:
    for message in (Sample(), FULL):
        assert decode(Sample, encode(message)) == message
        assert type(decode(Sample, encode(message)).digest) is Digest
        assert type(decode(Sample, encode(message)).run) is RunId
        assert decode(Sample, encode(message)).colour is Colour.RED


def test_fields_stand_in_sorted_order_whatever_the_class_says() -> None:
    assert list(msgpack.unpackb(encode(Sample()))) == sorted(msgpack.unpackb(encode(Sample())))


def test_a_message_of_one_field_round_trips() -> None:
    single = make_dataclass("Single", [("only", tuple[Digest, ...])], frozen=True)
    message = single(only=(Digest(b"x" * 32),))
    assert decode(single, encode(message)) == message


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("count", b"\xcc\x05"),
        ("count", b"\xcd\x00\x05"),
        ("count", b"\xce\x00\x00\x00\x05"),
        ("count", b"\xcf\x00\x00\x00\x00\x00\x00\x00\x05"),
        ("count", b"\xd0\x05"),
        ("count", b"\xd1\x01\x00"),
        ("maybe", b"\xd1\xff\xff"),
        ("ratio", b"\xca\x3f\x00\x00\x00"),
        ("text", b"\xd9\x02hi"),
        ("text", b"\xda\x00\x02hi"),
        ("text", b"\xdb\x00\x00\x00\x02hi"),
        ("data", b"\xc5\x00\x01\x07"),
        ("data", b"\xc6\x00\x00\x00\x01\x07"),
        ("z", b"\xdc\x00\x00"),
        ("numbers", b"\xdd\x00\x00\x00\x00"),
        ("perhaps", b"\xde\x00\x02\xa1a\x01\xa1b\xcb" + bytes(8)),
    ],
)
def test_a_longer_form_of_the_same_value_is_refused_by_field(name: str, raw: bytes) -> None:
    path, problem = refusal(with_raw(name, raw))
    assert (path, "not in the canonical encoding" in problem) == (f"Sample.{name}", True)


def test_a_longer_form_deep_inside_is_refused_by_its_path() -> None:
    inner = b"\x82\xa1a\x01\xa1b\xcb" + bytes(8)
    twisted = inner.replace(b"\xa1a\x01", b"\xa1a\xcc\x01")
    assert refusal(with_raw("z", b"\x92" + inner + twisted))[0] == "Sample.z[1].a"


def test_a_longer_form_of_a_key_or_of_the_whole_map_is_refused() -> None:
    frame = encode(Sample())
    assert refusal(frame.replace(b"\xa5count", b"\xd9\x05count"))[0] == "Sample.count"
    assert refusal(b"\xde\x00\x0d" + frame[1:])[0] == "Sample"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("count", True, "is a boolean, expected an integer"),
        ("count", 5.0, "is a float, expected an integer"),
        ("count", "5", "is a string, expected an integer"),
        ("count", None, "is null, expected an integer"),
        ("count", 1001, "is 1001, allowed is 0 to 1000"),
        ("count", -1, "is -1, allowed is 0 to 1000"),
        ("step", -1, f"is -1, allowed is 0 to {2**63 - 1}"),
        ("step", 2**63, f"is {2**63}, allowed is 0 to {2**63 - 1}"),
        ("ratio", 1, "is an integer, expected a float"),
        ("ratio", math.nan, "is nan, allowed is a finite number from 0.0 to 1.0"),
        ("ratio", math.inf, "is inf, allowed is a finite number from 0.0 to 1.0"),
        ("ratio", -math.inf, "is -inf, allowed is a finite number from 0.0 to 1.0"),
        ("ratio", 1.5, "is 1.5, allowed is a finite number from 0.0 to 1.0"),
        ("is_on", 1, "is an integer, expected true or false"),
        ("text", b"hello", "is bytes, expected a string"),
        ("text", "ninechars", "has 9 characters, allowed is 0 to 8"),
        ("data", "\x01", "is a string, expected bytes"),
        ("data", b"12345", "has 5 bytes, allowed is 0 to 4"),
        ("digest", "0" * 32, "is a string, expected bytes"),
        ("digest", b"short", "is 5 bytes, expected 32"),
        ("run", b"run-1", "is bytes, expected a string"),
        ("run", "Run", "must be 1 to 40 characters of a-z, 0-9 and inner dashes"),
        ("colour", "green", "is not one of red or blue"),
        ("colour", 1, "is an integer, expected a string"),
        ("perhaps", [1], "is a list, expected a map"),
        ("z", {"a": 1}, "is a map, expected a list"),
        ("z", b"", "is bytes, expected a list"),
        ("numbers", 7, "is an integer, expected a list"),
        ("z", [{"a": 1, "b": 0.0}] * 4, "has 4 items, allowed is 0 to 3"),
        ("count", msgpack.Timestamp(1, 2), "is an extension, expected an integer"),
        ("data", msgpack.ExtType(5, b"\x01"), "is an extension, expected bytes"),
    ],
)
def test_a_value_of_another_type_or_out_of_bounds_is_refused_by_field(name: str, value: Any, problem: str) -> None:
    assert refusal_of(**{name: value}) == (f"Sample.{name}", problem)


@pytest.mark.parametrize(
    ("value", "field_path", "problem"),
    [
        ([{"a": "x", "b": 0.0}], "Sample.z[0].a", "is a string, expected an integer"),
        ([{"a": 1, "b": 0.0}, {"a": 1, "b": True}], "Sample.z[1].b", "is a boolean, expected a float"),
        ([{"a": 13, "b": 0.0}], "Sample.z[0].a", "is unlucky"),
        ([{"b": 0.0, "a": 1}], "Sample.z[0].b", "is out of order: fields are sorted by name"),
        ([{"a": 1}], "Sample.z[0].b", "is missing"),
        ([{"a": 1, "b": 0.0, "c": 1}], "Sample.z[0].c", "is not a known field"),
        ([7], "Sample.z[0]", "is an integer, expected a map"),
    ],
)
def test_a_refusal_deep_inside_names_the_whole_path(value: Any, field_path: str, problem: str) -> None:
    assert refusal_of(z=value) == (field_path, problem)


def test_an_optional_message_is_checked_like_any_other() -> None:
    assert refusal_of(perhaps={"a": 13, "b": 0.0}) == ("Sample.perhaps.a", "is unlucky")


@pytest.mark.parametrize(
    ("character", "what"),
    [
        ("\x00", "null"),
        ("\n", "newline"),
        ("\x1b", "escape"),
        ("\x7f", "delete"),
        ("\x85", "next line"),
        ("\xa0", "no-break space"),
        ("\xad", "invalid hyphen"),
        ("\u061c", "Arabic letter mark"),
        ("\u200b", "zero-width space"),
        ("\u200f", "right-to-left mark"),
        ("\u2028", "line separator"),
        ("\u202e", "right-to-left override"),
        ("\u2066", "left-to-right isolate"),
        ("\u3000", "ideographic space"),
        ("\ufeff", "byte-order mark"),
        ("\uffff", "no character"),
        ("\U000e0041", "tag"),
    ],
)
def test_control_bidi_and_invisible_characters_are_refused(character: str, what: str) -> None:
    assert refusal_of(text=f"a{character}b") == ("Sample.text", "has characters that cannot be printed"), what


@pytest.mark.parametrize("character", ["~", " ", "é", "漢", "ش", "🜂", "\ue000", "\u0378", "\U0001fae8"])
def test_letters_of_any_script_pass_even_those_that_this_python_does_not_know(character: str) -> None:
    """U+0378 is in no version of Unicode, U+1FAE8 only from 15 on: two Pythons must not disagree."""
    assert decode(Sample, encode(Sample(text=character))).text == character


def test_keys_must_be_the_fields_each_once_and_sorted() -> None:
    honest = [(msgpack.packb(key), msgpack.packb(value)) for key, value in plain().items()]

    def frame(pairs: list[tuple[bytes, bytes]]) -> bytes:
        return bytes([0x80 + len(pairs)]) + b"".join(key + value for key, value in pairs)

    assert decode(Sample, frame(honest)) == Sample()
    assert refusal(frame(honest[:-1])) == ("Sample.z", "is missing")
    assert refusal(frame([*honest[1:], honest[0]]))[1] == "is out of order: fields are sorted by name"
    repeated = [*honest[:2], honest[1], *honest[3:]]
    assert refusal(frame(repeated)) == (f"Sample.{sorted(plain())[1]}", "is repeated")
    strange = [*honest[:-1], (msgpack.packb("zz"), b"\x01")]
    assert refusal(frame(strange)) == ("Sample.zz", "is not a known field")
    assert refusal(frame([(msgpack.packb(b"count"), honest[0][1]), *honest[1:]])) == (
        "Sample.b'count'",
        "is not a known field",
    )


def test_one_field_too_many_is_refused_before_it_is_read() -> None:
    field_path, problem = refusal(msgpack.packb(plain() | {"zz": 1}))
    assert field_path == "Sample"
    assert "14 exceeds max_map_len(13)" in problem


def test_a_hostile_key_is_shown_short_and_harmless() -> None:
    for key in ("\x1b[31m" * 100, "\u202e", "a" * 500):
        shown = refusal(msgpack.packb({key: 1}))[0]
        assert len(shown) < 300
        assert shown.isprintable()


def test_a_key_that_is_no_string_is_refused() -> None:
    assert refusal(b"\x81\x01\x01")[0] == "Sample"
    assert refusal(b"\x81\xa1\xff\x01")[0] == "Sample"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"\xa2\xff\xfe", "utf-8"),
        (b"\xa2\xc0\x80", "utf-8"),
        (b"\xa3\xed\xa0\x80", "utf-8"),
        (b"\xc1", "cannot be read"),
        (b"\xd6\xff\x00", "cannot be read"),
        (b"\xc7\x03\xff\x00\x00\x00", "cannot be read"),
        (b"\xdd\xff\xff\xff\xff", "exceeds max_array_len"),
        (b"\xdf\xff\xff\xff\xff", "exceeds max_map_len"),
        (b"\xdb\xff\xff\xff\xff", "cannot be read"),
        (b"\xc6\xff\xff\xff\xff", "cannot be read"),
        (b"\x91" * 2000, "cannot be read"),
    ],
)
def test_what_is_no_msgpack_is_refused_by_field(raw: bytes, problem: str) -> None:
    cut = with_raw("text", b"\xa6MARKER")
    field_path, found = refusal(cut[: cut.index(b"\xa6MARKER")] + raw)
    assert field_path.startswith("Sample.text")
    assert problem in found


def test_an_extension_with_a_reserved_code_is_refused_by_field() -> None:
    assert refusal(with_raw("text", b"\xd4\xfb\x00")) == ("Sample.text", "is an extension, expected a string")


def test_every_cut_of_a_frame_is_refused_at_the_field_it_fell_in() -> None:
    frame = encode(FULL)
    for end in range(len(frame)):
        assert refusal(frame[:end])[0].startswith("Sample")
    assert refusal(frame[: frame.index(b"\xa5ratio") + 8])[0] == "Sample.ratio"
    assert refusal(frame[:-3])[0] == "Sample.z[1].b"


def test_trailing_bytes_are_counted_and_refused() -> None:
    assert refusal(encode(Sample()) + b"\x00\x00") == ("Sample", "is followed by 2 bytes")


def test_a_frame_that_is_no_map_is_refused() -> None:
    assert refusal(b"\x01") == ("Sample", "is an integer, expected a map")
    assert refusal(b"\x90") == ("Sample", "is a list, expected a map")
    assert refusal(b"")[0] == "Sample"


def test_a_frame_past_the_limit_is_not_even_looked_at() -> None:
    assert refusal(b"\xc1" * (FRAME_BYTES_MAX + 1)) == (
        "Sample",
        f"is {FRAME_BYTES_MAX + 1} bytes, the limit is {FRAME_BYTES_MAX}",
    )
    frame = encode(Sample())
    assert decode(Sample, frame, bytes_max=len(frame)) == Sample()
    with pytest.raises(RemoteError, match=r"^Sample: is \d+ bytes, the limit is"):
        decode(Sample, frame, bytes_max=len(frame) - 1)


def test_text_and_lists_without_a_bound_of_their_own_have_the_common_one() -> None:
    loose = make_dataclass("Loose", [("text", str), ("words", tuple[bool, ...])], frozen=True)
    longest = loose(text="x" * TEXT_CHARS_MAX, words=(True,) * ITEMS_MAX)
    assert decode(loose, encode(longest)) == longest
    with pytest.raises(RemoteError, match=rf"^Loose\.text: has {TEXT_CHARS_MAX + 1} characters"):
        decode(loose, encode(loose(text="x" * (TEXT_CHARS_MAX + 1), words=())))
    with pytest.raises(RemoteError, match=rf"^Loose\.words: cannot be read: {ITEMS_MAX + 1} exceeds"):
        decode(loose, encode(loose(text="", words=(True,) * (ITEMS_MAX + 1))))


def test_a_list_longer_than_any_of_the_type_is_refused_by_field() -> None:
    tight = make_dataclass("Tight", [("few", Annotated[tuple[int, ...], Size(1, 2)])], frozen=True)
    assert refusal(encode(tight(few=(1, 2, 3))), tight)[0] == "Tight.few"
    assert refusal(encode(tight(few=())), tight) == ("Tight.few", "has 0 items, allowed is 1 to 2")


def test_lists_inside_lists_round_trip_and_are_bounded() -> None:
    grid = make_dataclass("Grid", [("rows", tuple[tuple[int, ...], ...])], frozen=True)
    assert decode(grid, encode(grid(rows=((1, 2), (), (3,))))) == grid(rows=((1, 2), (), (3,)))
    assert refusal(msgpack.packb({"rows": [[1], [2, "x"]]}), grid)[0] == "Grid.rows[1][1]"


def test_negative_zero_is_a_value_of_its_own() -> None:
    frames = {encode(Inner(1, zero)) for zero in (0.0, -0.0)}
    assert len(frames) == 2
    assert {math.copysign(1.0, decode(Inner, frame).b) for frame in frames} == {1.0, -1.0}


def nested(depth: int) -> type:
    kind: Any = int
    for _ in range(depth):
        kind = make_dataclass("Nest", [("n", kind)], frozen=True)
    return kind  # type: ignore[no-any-return]


def test_a_type_may_nest_as_deep_as_the_limit_and_no_deeper() -> None:
    with pytest.raises(RemoteError, match=r"^Nest\.n\.n\.n\.n\.n\.n\.n\.n: is a string"):
        frame: Any = "bottom"
        for _ in range(DEPTH_MAX):
            frame = {"n": frame}
        decode(nested(DEPTH_MAX), msgpack.packb(frame))
    with pytest.raises(AssertionError, match="nests 9 deep"):
        decode(nested(DEPTH_MAX + 1), b"")


Count = NewType("Count", int)


@pytest.mark.parametrize(
    "annotation",
    [
        int | str,
        int | str | None,
        tuple[int, str],
        tuple[int],
        list[int],
        dict[str, int],
        object,
        complex,
        Annotated[int, Size(0, 1)],
        Annotated[float, Size(0, 1)],
        Annotated[str, Range(0, 1)],
        Annotated[bytes, Range(0, 1)],
        Annotated[tuple[int, ...], Range(0, 1)],
        Annotated[Count, Size(0, 1)],
        Annotated[bool, Range(0, 1)],
        Annotated[Digest, Size(0, 1)],
        Annotated[Colour, Size(0, 1)],
        Annotated[Inner, Size(0, 1)],
    ],
)
def test_a_type_that_cannot_be_a_message_is_a_bug_and_not_a_refusal(annotation: Any) -> None:
    with pytest.raises(AssertionError):
        decode(make_dataclass("Impossible", [("x", annotation)]), b"\x81\xa1x\x01")


def test_a_message_without_fields_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="has no fields"):
        encode(make_dataclass("Empty", [])())


def test_a_number_of_things_may_have_bounds_of_its_own() -> None:
    few = make_dataclass("Few", [("n", Annotated[Count, Range(0, 9)])], frozen=True)
    assert refusal(b"\x81\xa1n\x0a", few) == ("Few.n", "is 10, allowed is 0 to 9")


def test_every_accepted_vector_decodes_to_its_value_and_encodes_to_its_bytes() -> None:
    for vector in VECTORS["accepted"]:
        frame, value = bytes.fromhex(vector["frame"]), vector["value"]
        message = decode(Sample, frame)
        assert encode(message) == frame, vector["why"]
        assert {name: READ.get(name, same)(value[name]) for name in value} == {
            name: getattr(message, name) for name in value
        }, vector["why"]


def test_every_refused_vector_is_refused_at_its_field() -> None:
    for vector in VECTORS["refused"]:
        assert refusal(bytes.fromhex(vector["frame"]))[0] == vector["field"], vector["why"]


def same(value: Any) -> Any:
    return value


READ: dict[str, Callable[[Any], Any]] = {
    "data": bytes.fromhex,
    "digest": bytes.fromhex,
    "numbers": tuple,
    "perhaps": lambda value: value and Inner(**value),
    "z": lambda value: tuple(Inner(**item) for item in value),
}


def test_an_address_is_a_field_like_a_digest() -> None:
    holder = make_dataclass("Holder", [("node", NodeId)], frozen=True)
    message = holder(node=NodeId(b"n" * 20))
    assert decode(holder, encode(message)) == message
    assert refusal(msgpack.packb({"node": bytes(32)}), holder) == ("Holder.node", "is 32 bytes, expected 20")


@pytest.mark.parametrize("item", [b"\x80", b"\x90", b"\xdd\x00\x00\xff\xff", b"\xdf\x00\x00\xff\xff", b"\xa0"])
def test_a_hostile_frame_takes_little_more_memory_than_its_size(item: bytes) -> None:
    """Four million empty containers, or headers that promise much: refused without building them."""
    frame = b"\x81\xa5count\xdd" + (FRAME_BYTES_MAX // 2).to_bytes(4, "big")
    frame += item * ((FRAME_BYTES_MAX - len(frame)) // len(item))
    tracemalloc.start()
    try:
        assert refusal(frame)[0].startswith("Sample")
        assert tracemalloc.get_traced_memory()[1] < 4 * FRAME_BYTES_MAX
    finally:
        tracemalloc.stop()
