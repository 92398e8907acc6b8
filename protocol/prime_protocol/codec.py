"""Message <-> canonical msgpack: one accepted encoding per value, everything bounded, every refusal names the field.

A message type is a frozen dataclass. It becomes a map with its field names in sorted order; the annotations say what
each field may hold: int, bool, float, str, bytes, an id, a StrEnum, another dataclass, `tuple[X, ...]`, `X | None`, and
any of these inside `Annotated` with Range or Size. Rules that join fields stand in the dataclass's `__post_init__`.
"""

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, NewType, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from prime_protocol.constants import DEPTH_MAX, FRAME_BYTES_MAX, ITEMS_MAX, TEXT_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ids import FixedBytes, Name

T = TypeVar("T")
Reader = Callable[[Any], Any]
"""Plain msgpack value in, typed value out, or RemoteError with a path relative to the value."""
Writer = Callable[[Any], Any]

INT_MIN, INT_MAX = -(2**63), 2**64 - 1


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


class Pairs(list[tuple[Any, Any]]):
    """A msgpack map as it stood on the wire, so that a repeated key is still visible."""


WIRE_NAMES = {
    Pairs: "a map",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    bytes: "bytes",
    tuple: "a list",
    type(None): "null",
}


def encode(message: Any) -> bytes:
    """The one encoding of a message."""
    kind: Any = type(message)
    return bytes(msgpack.packb(_plan(kind).write(message), use_bin_type=True))


def decode(kind: type[T], frame: bytes, *, bytes_max: int = FRAME_BYTES_MAX) -> T:
    """One frame, one message of the wanted type, or RemoteError. There is no third outcome."""
    wanted: Any = kind
    name = kind.__name__
    if len(frame) > bytes_max:
        raise RemoteError(name, f"is {len(frame)} bytes, the limit is {bytes_max}")
    try:
        plain = msgpack.unpackb(frame, use_list=False, object_pairs_hook=Pairs, ext_hook=_refuse_extension)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteError(name, f"is not msgpack: {str(error) or type(error).__name__}") from None
    plan = _plan(wanted)
    try:
        message: T = plan.read(plain)
    except RemoteError as error:
        raise RemoteError(f"{name}{error.field}", error.problem) from None
    if msgpack.packb(plan.write(message), use_bin_type=True) != frame:
        raise RemoteError(name, "is not in the canonical encoding")
    return message


@dataclass(frozen=True, slots=True)
class Plan:
    """How values of one type are read and written."""

    read: Reader
    write: Writer
    depth: int = 0


@cache
def _plan(kind: Any) -> Plan:
    plan = _plan_of(kind, None)
    assert plan.depth <= DEPTH_MAX, f"{kind} nests {plan.depth} deep"
    return plan


def _plan_of(kind: Any, bound: Range | Size | None) -> Plan:
    """The plan of an annotation; `bound` comes from an enclosing Annotated."""
    if get_origin(kind) is Annotated:
        inner, extra = get_args(kind)
        return _plan_of(inner, extra)
    if isinstance(kind, NewType):
        return _plan_of(kind.__supertype__, bound)
    if get_origin(kind) in (Union, types.UnionType):
        return _optional_plan(kind, bound)
    if get_origin(kind) is tuple:
        return _tuple_plan(get_args(kind)[0], bound or Size(0, ITEMS_MAX))
    if is_dataclass(kind):
        return _map_plan(kind)
    return Plan(_scalar_reader(kind, bound), _same)


def _scalar_reader(kind: Any, bound: Any) -> Reader:
    if kind is bool:
        return _read_bool
    if kind is int:
        return _int_reader(bound or Range(INT_MIN, INT_MAX))
    if kind is float:
        return _float_reader(bound or Range(-math.inf, math.inf))
    if kind is str:
        return _text_reader(bound or Size(0, TEXT_CHARS_MAX))
    if kind is bytes:
        return _bytes_reader(bound or Size(0, FRAME_BYTES_MAX))
    if issubclass(kind, FixedBytes):
        return _fixed_reader(kind)
    assert issubclass(kind, StrEnum | Name), f"{kind} cannot be a field of a message"
    return _word_reader(kind)


def _same(value: Any) -> Any:
    return value


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        _refuse_type(value, "true or false")
    return value


def _int_reader(bound: Range) -> Reader:
    low, high = bound.low, bound.high

    def read(value: Any) -> int:
        if type(value) is not int:
            _refuse_type(value, "an integer")
        if not low <= value <= high:
            raise RemoteError("", f"is {value}, allowed is {low} to {high}")
        return value

    return read


def _float_reader(bound: Range) -> Reader:
    low, high = bound.low, bound.high

    def read(value: Any) -> float:
        if type(value) is not float:
            _refuse_type(value, "a float")
        if not math.isfinite(value) or not low <= value <= high:
            raise RemoteError("", f"is {value}, allowed is a finite number from {low} to {high}")
        return value

    return read


def _text_reader(bound: Size) -> Reader:
    def read(value: Any) -> str:
        if type(value) is not str:
            _refuse_type(value, "a string")
        _check_size(value, bound, "characters")
        # Control and direction-changing characters would reach terminals, logs and pages.
        if not value.isprintable():
            raise RemoteError("", "has characters that cannot be printed")
        return value

    return read


def _bytes_reader(bound: Size) -> Reader:
    def read(value: Any) -> bytes:
        if type(value) is not bytes:
            _refuse_type(value, "bytes")
        _check_size(value, bound, "bytes")
        return value

    return read


def _fixed_reader(kind: type[FixedBytes]) -> Reader:
    def read(value: Any) -> FixedBytes:
        if type(value) is not bytes:
            _refuse_type(value, "bytes")
        try:
            return kind(value)
        except RemoteError as error:
            raise RemoteError("", error.problem) from None

    return read


def _word_reader(kind: Any) -> Reader:
    allowed = " or ".join(kind) if issubclass(kind, StrEnum) else kind.__name__

    def read(value: Any) -> Any:
        if type(value) is not str:
            _refuse_type(value, "a string")
        try:
            return kind(value)
        except ValueError:
            raise RemoteError("", f"is not one of {allowed}") from None
        except RemoteError as error:
            raise RemoteError("", error.problem) from None

    return read


def _optional_plan(kind: Any, bound: Any) -> Plan:
    inner = [option for option in get_args(kind) if option is not type(None)]
    assert len(inner) == 1, f"{kind}: the only union allowed is X | None"
    plan = _plan_of(inner[0], bound)
    read, write = plan.read, plan.write
    return Plan(
        lambda value: None if value is None else read(value),
        write if write is _same else lambda value: None if value is None else write(value),
        plan.depth,
    )


def _tuple_plan(item: Any, bound: Any) -> Plan:
    plan = _plan_of(item, None)
    read_item, write_item = plan.read, plan.write

    def read(value: Any) -> tuple[Any, ...]:
        # Pairs is a list, so a map never passes for a tuple.
        if type(value) is not tuple:
            _refuse_type(value, "a list")
        _check_size(value, bound, "items")
        items: list[Any] = []
        try:
            for raw in value:
                items.append(read_item(raw))
        except RemoteError as error:
            raise RemoteError(f"[{len(items)}]{error.field}", error.problem) from None
        return tuple(items)

    write = _same if write_item is _same else lambda value: [write_item(item) for item in value]
    return Plan(read, write, plan.depth + 1)


def _map_plan(kind: Any) -> Plan:
    hints = get_type_hints(kind, include_extras=True)
    names = sorted(field.name for field in fields(kind))
    plans = {name: _plan_of(hints[name], None) for name in names}
    readers = {name: plan.read for name, plan in plans.items()}
    nested = {name: plan.write for name, plan in plans.items() if plan.write is not _same}
    pick = attrgetter(*names)
    single = len(names) == 1

    def read(value: Any) -> Any:
        if type(value) is not Pairs:
            _refuse_type(value, "a map")
        found: dict[str, Any] = {}
        for key, raw in value:
            reader = readers.get(key) if type(key) is str else None
            if reader is None or key in found:
                raise RemoteError(_printable(key), "is repeated" if key in found else "is not a known field")
            try:
                found[key] = reader(raw)
            except RemoteError as error:
                raise RemoteError(f".{key}{error.field}", error.problem) from None
        if len(found) < len(names):
            raise RemoteError(f".{next(name for name in names if name not in found)}", "is missing")
        return _construct(kind, found)

    def write(message: Any) -> dict[str, Any]:
        plain = dict(zip(names, (pick(message),) if single else pick(message), strict=True))
        for name, write_field in nested.items():
            plain[name] = write_field(plain[name])
        return plain

    return Plan(read, write, 1 + max(plan.depth for plan in plans.values()))


def _construct(kind: Any, found: dict[str, Any]) -> Any:
    try:
        return kind(**found)
    except RemoteError as error:
        raise RemoteError(f".{error.field}", error.problem) from None


def _check_size(value: Any, bound: Any, unit: str) -> None:
    if not bound.low <= len(value) <= bound.high:
        raise RemoteError("", f"has {len(value)} {unit}, allowed is {bound.low} to {bound.high}")


def _refuse_type(value: Any, expected: str) -> NoReturn:
    raise RemoteError("", f"is {WIRE_NAMES.get(type(value), 'an extension')}, expected {expected}")


def _printable(key: Any) -> str:
    """A hostile key, fit to stand in an error."""
    return f".{repr(key)[:40]}" if type(key) is not str or not key.isidentifier() else f".{key[:40]}"


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code} is not used here")
