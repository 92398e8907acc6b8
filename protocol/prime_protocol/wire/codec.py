"""Message <-> canonical msgpack: one accepted encoding per value, everything bounded, every refusal names the field.

A message type is a frozen dataclass. It becomes a map with its field names in sorted order. The annotations say what
each field may hold: int, bool, float, str, bytes, an id, a StrEnum, another dataclass, `tuple[X, ...]`, `X | None`, and
any of these inside `Annotated` with Range or Size. Rules between fields are in the dataclass's `__post_init__`.
"""

import math
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, NewType, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from prime_protocol.constants import DEPTH_MAX, FRAME_BYTES_MAX, ITEMS_MAX, TEXT_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.error_path import find_first_difference, find_path_at, find_unreadable_path, format_key
from prime_protocol.wire.ids import FixedBytes, Name

T = TypeVar("T")
ReadValue = Callable[[Any], Any]
"""Plain msgpack value in, typed value out, or RemoteError with a path relative to the value."""
WriteValue = Callable[[Any], Any]

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
NUMBER_MAX = 2**63 - 1
WORD_CACHE_SIZE = 64
"""Names and words that are not checked anew each time they are read: a network speaks of few."""

UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\U000e0000-\U000e0fff]"
)
"""Control, direction-changing and invisible characters, and spaces but the plain one: they would reach terminals, logs
and pages. The list is fixed: asking Python what is printable would let two versions of it disagree on the log."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, both ends allowed."""

    low: int | float
    high: int | float


@dataclass(frozen=True, slots=True)
class Size:
    """Bounds of the length of a string (characters), bytes or tuple (items), both ends allowed."""

    low: int
    high: int


MAP_TYPES = (dict, list)
"""What a map is read into: a list of pairs where a repeated key must still be visible."""

WIRE_TYPE_NAMES = {
    list: "a map",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    bytes: "bytes",
    tuple: "a list",
    type(None): "null",
}
"""What the types are that msgpack reads into. A map stays a list of pairs, so that a repeated key is still visible."""


@dataclass(frozen=True, slots=True)
class TypeCodec:
    """How values of one type are read and written, and how deep, long and wide they can be."""

    read: ReadValue
    write: WriteValue
    depth: int = 0
    list_max: int = 0
    """Most items of any list in it: a longer one is refused before memory is taken for it."""
    map_max: int = 0


def encode(message: Any) -> bytes:
    """The one encoding of a message."""
    kind: Any = type(message)
    return _pack(_get_codec(kind).write(message))


def encode_flat(values: dict[str, Any]) -> bytes:
    """The same from the values of a message that holds no other message, without making it; names come sorted."""
    return _pack(values)


def decode(kind: type[T], frame: bytes, *, bytes_max: int = FRAME_BYTES_MAX) -> T:
    """One frame, one message of the wanted type, or RemoteError. There is no third outcome."""
    wanted: Any = kind
    name = kind.__name__
    if len(frame) > bytes_max:
        raise RemoteError(name, f"is {len(frame)} bytes, the limit is {bytes_max}")
    codec = _get_codec(wanted)
    message: T | None = _decode_canonical(frame, codec)
    if message is None:
        _refuse_frame(name, frame, codec)
    return message


def _decode_canonical(frame: bytes, codec: TypeCodec) -> Any:
    """The message of a frame that is as it should be; None where it is not, for `_refuse_frame` to say why.

    What was read is packed again and compared before it has its types: they are written as the plain values they wrap.
    A repeated key is lost in the reading and so found by the comparison.
    """
    try:
        plain = msgpack.unpackb(
            frame, use_list=False, ext_hook=_mark_extension, max_array_len=codec.list_max, max_map_len=codec.map_max
        )
        return codec.read(plain) if _pack(plain) == frame else None
    except (RemoteError, ValueError, TypeError, msgpack.UnpackException):
        return None


def _refuse_frame(name: str, frame: bytes, codec: TypeCodec) -> NoReturn:
    """Read it again, slower, with all that it takes to say what is wrong where."""
    plain = _unpack(name, frame, codec)
    try:
        message = codec.read(plain)
    except RemoteError as error:
        raise RemoteError(name + error.field, error.problem) from None
    canonical = _pack(codec.write(message))
    assert canonical != frame, "what is in order was read at the first go"
    at = find_first_difference(canonical, frame)
    raise RemoteError(name + find_path_at(canonical, at), f"is not in the canonical encoding, from byte {at} on")


def _pack(plain: Any) -> bytes:
    packed: bytes = msgpack.Packer().pack(plain)
    return packed


def _mark_extension(code: int, data: bytes) -> object:
    """Something that no reader takes, so that the refusal says in which field the extension stood."""
    return object()


def _unpack(name: str, frame: bytes, codec: TypeCodec) -> Any:
    try:
        return msgpack.unpackb(
            frame,
            use_list=False,
            object_pairs_hook=_identity,
            ext_hook=_mark_extension,
            max_array_len=codec.list_max,
            max_map_len=codec.map_max,
        )
    except msgpack.ExtraData as error:
        raise RemoteError(name, f"is followed by {len(error.extra)} bytes") from None
    except (ValueError, msgpack.UnpackException) as error:
        path = find_unreadable_path(frame, list_max=codec.list_max, map_max=codec.map_max)
        raise RemoteError(name + path, f"cannot be read: {str(error) or type(error).__name__}") from None


@cache
def _get_codec(kind: Any) -> TypeCodec:
    codec = _build_codec(kind, None)
    assert codec.depth <= DEPTH_MAX, f"{kind} nests {codec.depth} deep"
    return codec


def _build_codec(kind: Any, bound: Range | Size | None) -> TypeCodec:
    """The codec of an annotation; `bound` comes from an enclosing Annotated."""
    if get_origin(kind) is Annotated:
        inner, extra = get_args(kind)
        return _build_codec(inner, extra)
    if isinstance(kind, NewType):
        # Step, Slot and the like are numbers of things, and count from 0.
        return _build_codec(kind.__supertype__, bound or Range(0, NUMBER_MAX))
    if get_origin(kind) in (Union, types.UnionType):
        return _build_optional_codec(kind, bound)
    if get_origin(kind) is tuple:
        assert get_args(kind)[1:] == (...,), f"{kind}: write tuple[X, ...]"
        return _build_tuple_codec(get_args(kind)[0], _bound(kind, bound, Size(0, ITEMS_MAX)))
    if is_dataclass(kind):
        assert bound is None, f"{kind} takes no bound"
        return _build_map_codec(kind)
    return TypeCodec(build_scalar_reader(kind, bound), _identity)


def build_scalar_reader(kind: Any, bound: Range | Size | None = None) -> ReadValue:
    """Reads a value that contains no others."""
    if kind is int:
        return _int_reader(_bound(kind, bound, Range(INT_MIN, INT_MAX)))
    if kind is float:
        return _float_reader(_bound(kind, bound, Range(-math.inf, math.inf)))
    if kind is str:
        return _text_reader(_bound(kind, bound, Size(0, TEXT_CHARS_MAX)))
    if kind is bytes:
        return _bytes_reader(_bound(kind, bound, Size(0, FRAME_BYTES_MAX)))
    assert bound is None, f"{kind} takes no bound"
    if kind is bool:
        return _read_bool
    assert isinstance(kind, type), f"{kind} cannot be a field of a message"
    if issubclass(kind, FixedBytes):
        return _fixed_reader(kind)
    assert issubclass(kind, StrEnum | Name), f"{kind} cannot be a field of a message"
    return _word_reader(kind)


def _bound(kind: Any, bound: Range | Size | None, default: Any) -> Any:
    assert bound is None or type(bound) is type(default), f"{kind} cannot be bounded by {bound}"
    return bound or default


def _identity(value: Any) -> Any:
    return value


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        refuse_type(value, "true or false")
    return value


def _int_reader(bound: Range) -> ReadValue:
    low, high = bound.low, bound.high

    def read(value: Any) -> int:
        if type(value) is not int:
            refuse_type(value, "an integer")
        if not low <= value <= high:
            raise RemoteError("", f"is {value}, allowed is {low} to {high}")
        return value

    return read


def _float_reader(bound: Range) -> ReadValue:
    low, high = bound.low, bound.high

    def read(value: Any) -> float:
        if type(value) is not float:
            refuse_type(value, "a float")
        if not math.isfinite(value) or not low <= value <= high:
            raise RemoteError("", f"is {value}, allowed is a finite number from {low} to {high}")
        return value

    return read


def _text_reader(bound: Size) -> ReadValue:
    def read(value: Any) -> str:
        if type(value) is not str:
            refuse_type(value, "a string")
        _check_size(value, bound, "characters")
        if UNPRINTABLE.search(value):
            raise RemoteError("", "has characters that cannot be printed")
        return value

    return read


def _bytes_reader(bound: Size) -> ReadValue:
    def read(value: Any) -> bytes:
        if type(value) is not bytes:
            refuse_type(value, "bytes")
        _check_size(value, bound, "bytes")
        return value

    return read


def _fixed_reader(kind: type[FixedBytes]) -> ReadValue:
    size, new = kind.SIZE, bytes.__new__

    def read(value: Any) -> FixedBytes:
        if type(value) is not bytes:
            refuse_type(value, "bytes")
        if len(value) != size:
            raise RemoteError("", f"is {len(value)} bytes, expected {size}")
        return new(kind, value)

    return read


def _word_reader(kind: Any) -> ReadValue:
    allowed = " or ".join(kind) if issubclass(kind, StrEnum) else kind.__name__
    make = lru_cache(maxsize=WORD_CACHE_SIZE)(kind)

    def read(value: Any) -> Any:
        if type(value) is not str:
            refuse_type(value, "a string")
        try:
            return make(value)
        except ValueError:
            raise RemoteError("", f"is not one of {allowed}") from None
        except RemoteError as error:
            raise RemoteError("", error.problem) from None

    return read


def _build_optional_codec(kind: Any, bound: Any) -> TypeCodec:
    inner = [option for option in get_args(kind) if option is not type(None)]
    assert len(inner) == 1, f"{kind}: the only union allowed is X | None"
    codec = _build_codec(inner[0], bound)
    read, write = codec.read, codec.write
    return TypeCodec(
        lambda value: None if value is None else read(value),
        write if write is _identity else lambda value: None if value is None else write(value),
        codec.depth,
        codec.list_max,
        codec.map_max,
    )


def _build_tuple_codec(item: Any, bound: Any) -> TypeCodec:
    codec = _build_codec(item, None)
    read_item, write_item = codec.read, codec.write

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            refuse_type(value, "a list")
        _check_size(value, bound, "items")
        items: list[Any] = []
        try:
            for raw in value:
                items.append(read_item(raw))
        except RemoteError as error:
            raise RemoteError(f"[{len(items)}]{error.field}", error.problem) from None
        return tuple(items)

    write = _identity if write_item is _identity else lambda value: [write_item(item) for item in value]
    return TypeCodec(read, write, codec.depth + 1, max(bound.high, codec.list_max), codec.map_max)


def _build_map_codec(kind: Any) -> TypeCodec:
    hints = get_type_hints(kind, include_extras=True)
    names = sorted(field.name for field in fields(kind))
    assert names, f"{kind} has no fields"
    codecs = [_build_codec(hints[name], None) for name in names]
    columns = [(name, codec.read) for name, codec in zip(names, codecs, strict=True)]
    nested = [(name, codec.write) for name, codec in zip(names, codecs, strict=True) if codec.write is not _identity]
    pick = attrgetter(*names)
    single = len(names) == 1

    def read(value: Any) -> Any:
        if type(value) not in MAP_TYPES:
            refuse_type(value, "a map")
        found: dict[str, Any] = dict(value)
        if list(found) != names or len(value) != len(names):
            _refuse_keys([key for key, _ in value], names)
        for name, read_field in columns:
            try:
                found[name] = read_field(found[name])
            except RemoteError as error:
                raise RemoteError(f".{name}{error.field}", error.problem) from None
        try:
            return kind(**found)
        except RemoteError as error:
            raise RemoteError(f".{error.field}", error.problem) from None

    def write(message: Any) -> dict[str, Any]:
        plain = dict(zip(names, (pick(message),) if single else pick(message), strict=True))
        for name, write_field in nested:
            plain[name] = write_field(plain[name])
        return plain

    return TypeCodec(
        read,
        write,
        1 + max(codec.depth for codec in codecs),
        max(codec.list_max for codec in codecs),
        max(len(names), *(codec.map_max for codec in codecs)),
    )


def _refuse_keys(keys: list[str | bytes], names: list[str]) -> NoReturn:
    for index, key in enumerate(keys):
        if key not in names:
            raise RemoteError(format_key(key), "is not a known field")
        if key in keys[:index]:
            raise RemoteError(format_key(key), "is repeated")
    for name in names:
        if name not in keys:
            raise RemoteError(f".{name}", "is missing")
    key = next(key for key, name in zip(keys, names, strict=True) if key != name)
    raise RemoteError(format_key(key), "is out of order: fields are sorted by name")


def _check_size(value: Any, bound: Any, unit: str) -> None:
    if not bound.low <= len(value) <= bound.high:
        raise RemoteError("", f"has {len(value)} {unit}, allowed is {bound.low} to {bound.high}")


def refuse_type(value: Any, expected: str) -> NoReturn:
    raise RemoteError("", f"is {WIRE_TYPE_NAMES.get(type(value), 'an extension')}, expected {expected}")
