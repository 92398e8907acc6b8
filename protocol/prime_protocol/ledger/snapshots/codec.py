"""How the dataclasses of the state are written as plain values and read back: one codec for each type annotation.

Most of a large state is one mapping of submissions, hundreds of thousands of equal shape. So values are read many at a
time, a dataclass column by column and nested collections as one: a check of a whole column costs little more than a
check of one value.
"""

import types
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import accumulate, chain, islice, repeat
from typing import Annotated, Any, NewType, Union, get_args, get_origin, get_type_hints

import msgpack

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.snapshots.packed import LABEL_BYTES, PackedMapping
from prime_protocol.wire.codec import INT_MAX, INT_MIN, WIRE_TYPE_NAMES, build_scalar_reader
from prime_protocol.wire.ids import FixedBytes

ABSENT = object()
"""In place of a field that a map does not have."""


@dataclass(frozen=True, slots=True)
class StateCodec:
    """How values of one type in the state are written and read."""

    write: Callable[[Any], Any]
    read_all: Callable[[list[Any]], Iterable[Any]]
    """From plain values to as many of this type, in their order. UnreadableItem names the first that is wrong."""


class UnreadableItem(Exception):
    """One of the values that were read together is wrong."""

    def __init__(self, index: int, field: str, problem: str) -> None:
        super().__init__(index, field, problem)
        self.index = index
        self.field = field
        """Where in the item."""
        self.problem = problem


@cache
def get_codec(kind: Any) -> StateCodec:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        # The bound belongs to messages. What is in the state has passed it, or was computed.
        return get_codec(arguments[0])
    if isinstance(kind, NewType):
        return get_codec(kind.__supertype__)
    if origin in (Union, types.UnionType):
        return _build_optional_codec(arguments)
    if origin is PackedMapping:
        return _build_packed_codec(get_codec(arguments[0]), get_codec(arguments[1]))
    if origin in (dict, Counter):
        return _build_mapping_codec(origin, arguments)
    if origin in (list, set, frozenset) or (origin is tuple and arguments[1:] == (...,)):
        return _build_items_codec(origin, get_codec(arguments[0]))
    if origin is tuple:
        return _build_pair_codec([get_codec(argument) for argument in arguments])
    if is_dataclass(kind):
        return _build_dataclass_codec(kind)
    return _build_scalar_codec(kind)


def _identity(value: Any) -> Any:
    return value


def _build_scalar_codec(kind: Any) -> StateCodec:
    read = build_scalar_reader(kind)

    def read_one_by_one(values: list[Any]) -> list[Any]:
        found: list[Any] = []
        try:
            for value in values:
                found.append(read(value))
        except RemoteError as error:
            raise UnreadableItem(len(found), error.field, error.problem) from None
        return found

    def read_integers(values: list[Any]) -> list[Any]:
        if {int}.issuperset(map(type, values)) and INT_MIN <= min(values, default=0) <= max(
            values, default=0
        ) <= INT_MAX:
            return values
        return read_one_by_one(values)

    def read_fixed_bytes(values: list[Any]) -> Iterable[Any]:
        if {bytes}.issuperset(map(type, values)) and {kind.SIZE}.issuperset(map(len, values)):
            return map(bytes.__new__, repeat(kind), values)
        return read_one_by_one(values)

    if kind is int:
        return StateCodec(_identity, read_integers)
    return StateCodec(_identity, read_fixed_bytes if issubclass(kind, FixedBytes) else read_one_by_one)


def _build_optional_codec(options: tuple[Any, ...]) -> StateCodec:
    inner = [option for option in options if option is not type(None)]
    assert len(inner) == 1, f"{options}: the only union allowed is X | None"
    codec = get_codec(inner[0])
    return StateCodec(
        lambda value: None if value is None else codec.write(value),
        lambda values: _read_present(values, None, codec, lambda: None),
    )


def _read_present(values: list[Any], absent: Any, codec: StateCodec, instead: Callable[[], Any]) -> Iterable[Any]:
    """Read the values that are present; `instead` makes one for each that is absent."""
    if values.count(absent) == len(values):
        return [instead() for _ in values]
    places = [place for place, value in enumerate(values) if value is not absent]
    try:
        read = codec.read_all([values[place] for place in places])
    except UnreadableItem as error:
        raise UnreadableItem(places[error.index], error.field, error.problem) from None
    if len(places) == len(values):
        return read
    present = iter(read)
    return [instead() if value is absent else next(present) for value in values]


def _build_items_codec(kind: Any, item: StateCodec) -> StateCodec:
    """A list, a tuple of any length, or a set."""
    order: Callable[[Any], Any] = list if kind in (list, tuple) else sorted

    def write(value: Any) -> list[Any]:
        plain: list[Any] = order(value) if item.write is _identity else order(map(item.write, value))
        return plain

    def read_all(values: list[Any]) -> list[Any]:
        _check_types(values, list, "a list")
        inner = _read_nested(values, item)
        return [kind(islice(inner, len(value))) for value in values]

    return StateCodec(write, read_all)


def _read_nested(lists: list[list[Any]], codec: StateCodec) -> Iterator[Any]:
    """The values of all the lists, read together."""
    try:
        return iter(codec.read_all(list(chain.from_iterable(lists))))
    except UnreadableItem as error:
        ends = list(accumulate(map(len, lists)))
        index = bisect_right(ends, error.index)
        place = error.index - ends[index] + len(lists[index])
        raise UnreadableItem(index, f"[{place}]{error.field}", error.problem) from None


def _build_pair_codec(items: list[StateCodec]) -> StateCodec:
    """A tuple of fixed length."""

    def write(value: Any) -> list[Any]:
        return [item.write(each) for item, each in zip(items, value, strict=True)]

    def read_all(values: list[Any]) -> Iterable[Any]:
        _check_types(values, list, "a list")
        for index, value in enumerate(values):
            if len(value) != len(items):
                raise UnreadableItem(index, "", f"has {len(value)} items, expected {len(items)}")
        columns = [item.read_all([value[place] for value in values]) for place, item in enumerate(items)]
        return zip(*columns, strict=True)

    return StateCodec(write, read_all)


def _build_mapping_codec(kind: Any, arguments: tuple[Any, ...]) -> StateCodec:
    """Keys and values in turn, in the mapping's own order."""
    key = get_codec(arguments[0])
    value = get_codec(int if kind is Counter else arguments[1])

    def write(mapping: Any) -> list[Any]:
        return list(chain.from_iterable((key.write(each), value.write(held)) for each, held in mapping.items()))

    def read_all(plains: list[Any]) -> list[Any]:
        keys, values = _read_pairs(plains, key, value.read_all)
        return [kind(dict(zip(islice(keys, size), islice(values, size), strict=True))) for size in _count_pairs(plains)]

    return StateCodec(write, read_all)


def _read_pairs(
    plains: list[Any], key: StateCodec, read_values: Callable[[list[Any]], Iterable[Any]]
) -> tuple[Iterator[Any], Iterator[Any]]:
    """All keys of the mappings, and all values."""
    _check_types(plains, list, "a list")
    for index, plain in enumerate(plains):
        if len(plain) % 2:
            raise UnreadableItem(index, "", "has a key without a value")
    keys = _read_nested([plain[::2] for plain in plains], key)
    return keys, _read_nested([plain[1::2] for plain in plains], StateCodec(_identity, read_values))


def _count_pairs(plains: list[Any]) -> list[int]:
    return [len(plain) // 2 for plain in plains]


def _build_packed_codec(key: StateCodec, value: StateCodec) -> StateCodec:
    """A PackedMapping: a closed value is a byte string, its label and its encoding; an open one is as anywhere."""

    def write(mapping: PackedMapping[Any, Any]) -> list[Any]:
        packer = msgpack.Packer()

        def write_value(held: Any) -> Any:
            if type(held) is bytes:
                return held
            plain = value.write(held)
            return held.label + packer.pack(plain) if held.is_closed else plain

        return list(chain.from_iterable((key.write(each), write_value(held)) for each, held in mapping.iter_stored()))

    def unpack_all(packed: list[bytes]) -> Iterable[Any]:
        plains: list[Any] = []
        try:
            for each in packed:
                plains.append(msgpack.unpackb(each[LABEL_BYTES:]))
        except (ValueError, msgpack.UnpackException) as error:
            problem = f"cannot be unpacked: {str(error) or type(error).__name__}"
            raise UnreadableItem(len(plains), "", problem) from None
        return value.read_all(plains)

    def read_values(plains: list[Any]) -> list[Any]:
        places = [place for place, plain in enumerate(plains) if type(plain) is not bytes]
        found = list(plains)
        try:
            for place, read in zip(places, value.read_all([plains[place] for place in places]), strict=True):
                found[place] = read
        except UnreadableItem as error:
            raise UnreadableItem(places[error.index], error.field, error.problem) from None
        return found

    def read_all(plains: list[Any]) -> list[Any]:
        keys, values = _read_pairs(plains, key, read_values)
        return [
            PackedMapping(zip(islice(keys, size), islice(values, size), strict=True), unpack_all)
            for size in _count_pairs(plains)
        ]

    return StateCodec(write, read_all)


def _build_shared_codec(codec: StateCodec, shared: Any) -> StateCodec:
    """Of a field whose most common value is one object that all share; it is written as nil."""
    return StateCodec(
        lambda value: None if value == shared else codec.write(value),
        lambda values: _read_present(values, None, codec, lambda: shared),
    )


def _build_dataclass_codec(kind: Any) -> StateCodec:
    hints = get_type_hints(kind, include_extras=True)

    def get_column_codec(each: Field[Any]) -> StateCodec:
        codec = get_codec(hints[each.name])
        return _build_shared_codec(codec, each.metadata["shared"]) if "shared" in each.metadata else codec

    known = fields(kind)
    columns = {each.name: get_column_codec(each) for each in sorted(known, key=lambda each: each.name)}
    defaults = {each.name: columns[each.name].write(_get_default(each)) for each in known if _has_default(each)}

    def write(value: Any) -> dict[str, Any]:
        plain = {}
        for name, codec in columns.items():
            written = codec.write(getattr(value, name))
            # Compared as written: a Counter with a zero equals one without it, but its order differs later.
            if written != defaults.get(name, ABSENT):
                plain[name] = written
        return plain

    def read_all(plains: list[Any]) -> list[Any]:
        _check_types(plains, dict, "a map")
        found = Counter[str]()
        read = [read_column(each, plains, found) for each in known]
        if found.total() != sum(map(len, plains)):
            index = next(index for index, plain in enumerate(plains) if not plain.keys() <= columns.keys())
            unknown = min(map(str, plains[index].keys() - columns.keys()))
            raise UnreadableItem(index, f".{unknown:.40}", "is not a known field")
        return _make_all(kind, read)

    def read_column(each: Field[Any], plains: list[Any], found: Counter[str]) -> Iterable[Any]:
        values = list(map(dict.get, plains, repeat(each.name), repeat(ABSENT)))
        absent = values.count(ABSENT)
        found[each.name] = len(values) - absent
        if absent and each.name not in defaults:
            raise UnreadableItem(values.index(ABSENT), f".{each.name}", "is missing")
        try:
            return _read_present(values, ABSENT, columns[each.name], lambda: _get_default(each))
        except UnreadableItem as error:
            raise UnreadableItem(error.index, f".{each.name}{error.field}", error.problem) from None

    return StateCodec(write, read_all)


def _make_all(kind: Any, columns: list[Iterable[Any]]) -> list[Any]:
    """Values of a dataclass from the columns of its fields."""
    names = [each.name for each in fields(kind)]
    if not hasattr(kind, "__post_init__") and not any(each.kw_only for each in fields(kind)):
        return list(map(kind, *columns))
    made: list[Any] = []
    try:
        for values in zip(*columns, strict=True):
            made.append(kind(**dict(zip(names, values, strict=True))))
    except RemoteError as error:
        raise UnreadableItem(len(made), f".{error.field}", error.problem) from None
    return made


def _has_default(each: Field[Any]) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


def _get_default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _check_types(values: list[Any], wanted: type, expected: str) -> None:
    if {wanted}.issuperset(map(type, values)):
        return
    index = next(index for index, value in enumerate(values) if type(value) is not wanted)
    raise UnreadableItem(index, "", f"is {WIRE_TYPE_NAMES[type(values[index])]}, expected {expected}")
