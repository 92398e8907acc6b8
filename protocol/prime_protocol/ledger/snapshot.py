"""The ledger state as bytes: a versioned canonical form, so that a restart or an auditor need not replay the whole log.

The form follows from the dataclasses of the state. A dataclass is a map of its fields, and a field that has its default
value is left out: a release that adds a field with a default still reads older snapshots, and their digests stay valid.
The order of a mapping is part of the state, because rules may depend on it; a set is sorted. So everyone who folds the
same entries gets the same bytes, and their digest can stand in the log (`SnapshotNoted`).
"""

import types
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import chain, repeat
from typing import Annotated, Any, NewType, Union, get_args, get_origin, get_type_hints

import msgpack

from prime_protocol.constants import SNAPSHOT_BYTES_MAX
from prime_protocol.errors import RemoteError, explain_version
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.codec import INT_MAX, INT_MIN, WIRE_TYPE_NAMES, build_scalar_reader
from prime_protocol.wire.ids import Digest, FixedBytes, NetworkId, hash_bytes

SNAPSHOT_FORMAT = 1
"""Of the bytes. A field that is added with a default does not change it; a field that changes its meaning does."""
ABSENT = object()
"""In place of a field that a map does not have."""


@dataclass(frozen=True, slots=True)
class StateCodec:
    """How values of one type in the state are written and read.

    Most of a large state is one mapping of submissions, hundreds of thousands of equal shape. So values are read many
    at a time, a dataclass column by column: a check of a whole column costs little more than a check of one value.
    """

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


def encode_snapshot(network: NetworkId, state: LedgerState) -> bytes:
    """The one encoding of a state."""
    packed: bytes = msgpack.Packer().pack([SNAPSHOT_FORMAT, network, _get_codec(LedgerState).write(state)])
    return packed


def compute_snapshot_digest(snapshot: bytes) -> Digest:
    return hash_bytes(snapshot)


def decode_snapshot(network: NetworkId, snapshot: bytes, *, is_canonical: bool = False) -> LedgerState:
    """The state in a snapshot of this network; RemoteError names what is wrong.

    `is_canonical` spares a second encoding, half of the time: for bytes that this party has encoded itself, as their
    digest shows.
    """
    if len(snapshot) > SNAPSHOT_BYTES_MAX:
        raise RemoteError("snapshot", f"is {len(snapshot)} bytes, the limit is {SNAPSHOT_BYTES_MAX}")
    try:
        plain = msgpack.unpackb(snapshot)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteError("snapshot", f"cannot be read: {str(error) or type(error).__name__}") from None
    if type(plain) is not list or len(plain) != 3:
        raise RemoteError("snapshot", "is not a list of format, network and state")
    if plain[0] != SNAPSHOT_FORMAT:
        raise RemoteError("snapshot.format", explain_version(plain[0], SNAPSHOT_FORMAT))
    if plain[1] != network:
        raise RemoteError("snapshot.network", f"is {plain[1]}, expected {network}")
    try:
        state: LedgerState = next(iter(_get_codec(LedgerState).read_all([plain[2]])))
    except UnreadableItem as error:
        raise RemoteError(f"snapshot{error.field}", error.problem) from None
    if not is_canonical and encode_snapshot(network, state) != snapshot:
        raise RemoteError("snapshot", "is not in the canonical encoding")
    return state


# --- Codecs from annotations ----------------------------------------------------------------------------------------


@cache
def _get_codec(kind: Any) -> StateCodec:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        # The bound belongs to messages. What is in the state has passed it, or was computed.
        return _get_codec(arguments[0])
    if isinstance(kind, NewType):
        return _get_codec(kind.__supertype__)
    if origin in (Union, types.UnionType):
        return _build_optional_codec(arguments)
    if origin in (dict, Counter):
        return _build_mapping_codec(origin, arguments)
    if origin in (list, set, frozenset) or (origin is tuple and arguments[1:] == (...,)):
        return _build_items_codec(origin, _get_codec(arguments[0]))
    if origin is tuple:
        return _build_pair_codec([_get_codec(argument) for argument in arguments])
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
    codec = _get_codec(inner[0])
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
        return [kind(_read_inner(index, value, item, "[{}]".format)) for index, value in enumerate(values)]

    return StateCodec(write, read_all)


def _read_inner(index: int, values: list[Any], codec: StateCodec, name: Callable[[int], str]) -> Iterable[Any]:
    """The values inside the item with this index; `name` says how an error names each."""
    try:
        return codec.read_all(values)
    except UnreadableItem as error:
        raise UnreadableItem(index, name(error.index) + error.field, error.problem) from None


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
    key = _get_codec(arguments[0])
    value = _get_codec(int if kind is Counter else arguments[1])

    def write(mapping: Any) -> list[Any]:
        return list(chain.from_iterable((key.write(each), value.write(held)) for each, held in mapping.items()))

    def read_all(plains: list[Any]) -> list[Any]:
        _check_types(plains, list, "a list")
        return [read(index, plain) for index, plain in enumerate(plains)]

    def read(index: int, plain: list[Any]) -> Any:
        if len(plain) % 2:
            raise UnreadableItem(index, "", "has a key without a value")
        keys = _read_inner(index, plain[::2], key, "[{}]".format)
        return kind(dict(zip(keys, _read_inner(index, plain[1::2], value, "[{}]".format), strict=True)))

    return StateCodec(write, read_all)


def _build_dataclass_codec(kind: Any) -> StateCodec:
    hints = get_type_hints(kind, include_extras=True)
    columns = {each.name: _get_codec(hints[each.name]) for each in sorted(fields(kind), key=lambda each: each.name)}
    defaults = {each.name: columns[each.name].write(_get_default(each)) for each in fields(kind) if _has_default(each)}
    names = [each.name for each in fields(kind)]

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
        read = [read_column(each, plains, found) for each in fields(kind)]
        if found.total() != sum(map(len, plains)):
            index = next(index for index, plain in enumerate(plains) if not plain.keys() <= columns.keys())
            unknown = min(map(str, plains[index].keys() - columns.keys()))
            raise UnreadableItem(index, f".{unknown:.40}", "is not a known field")
        return make_all(read)

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

    def make_all(read: list[Iterable[Any]]) -> list[Any]:
        if not hasattr(kind, "__post_init__") and not any(each.kw_only for each in fields(kind)):
            return list(map(kind, *read))
        made: list[Any] = []
        try:
            for values in zip(*read, strict=True):
                made.append(kind(**dict(zip(names, values, strict=True))))
        except RemoteError as error:
            raise UnreadableItem(len(made), f".{error.field}", error.problem) from None
        return made

    return StateCodec(write, read_all)


def _has_default(each: Field[Any]) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


def _get_default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _check_types(values: list[Any], wanted: type, expected: str) -> None:
    if {wanted}.issuperset(map(type, values)):
        return
    index = next(index for index, value in enumerate(values) if type(value) is not wanted)
    raise UnreadableItem(index, "", f"is {WIRE_TYPE_NAMES[type(values[index])]}, expected {expected}")
