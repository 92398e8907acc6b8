"""The ledger state as bytes: a versioned canonical form, so that a restart or an auditor need not replay the whole log.

The form follows from the dataclasses of the state. A dataclass is a map of its fields, and a field that has its default
value is left out: a release that adds a field with a default still reads older snapshots, and their digests stay valid.
The order of a mapping is part of the state, because rules may depend on it; a set is sorted. So everyone who folds the
same entries gets the same bytes, and their digest can stand in the log (`SnapshotNoted`).
"""

import types
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from typing import Annotated, Any, NewType, Union, get_args, get_origin, get_type_hints

import msgpack

from prime_protocol.constants import SNAPSHOT_BYTES_MAX
from prime_protocol.errors import RemoteError, explain_version
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.codec import build_scalar_reader, refuse_type
from prime_protocol.wire.ids import Digest, NetworkId, hash_bytes

SNAPSHOT_FORMAT = 1
"""Of the bytes. A field that is added with a default does not change it; a field that changes its meaning does."""


@dataclass(frozen=True, slots=True)
class StateCodec:
    """How values of one type in the state are written and read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def encode_snapshot(network: NetworkId, state: LedgerState) -> bytes:
    """The one encoding of a state."""
    packed: bytes = msgpack.Packer().pack([SNAPSHOT_FORMAT, network, _get_codec(LedgerState).write(state)])
    return packed


def compute_snapshot_digest(snapshot: bytes) -> Digest:
    return hash_bytes(snapshot)


def decode_snapshot(network: NetworkId, snapshot: bytes) -> LedgerState:
    """The state in a snapshot of this network; RemoteError names what is wrong."""
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
        state: LedgerState = _get_codec(LedgerState).read(plain[2])
    except RemoteError as error:
        raise RemoteError(f"snapshot{error.field}", error.problem) from None
    if encode_snapshot(network, state) != snapshot:
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
    return StateCodec(_identity, build_scalar_reader(kind))


def _identity(value: Any) -> Any:
    return value


def _build_optional_codec(options: tuple[Any, ...]) -> StateCodec:
    inner = [option for option in options if option is not type(None)]
    assert len(inner) == 1, f"{options}: the only union allowed is X | None"
    codec = _get_codec(inner[0])
    return StateCodec(
        lambda value: None if value is None else codec.write(value),
        lambda plain: None if plain is None else codec.read(plain),
    )


def _build_items_codec(kind: Any, item: StateCodec) -> StateCodec:
    """A list, a tuple of any length, or a set."""
    order: Callable[[Any], Any] = list if kind in (list, tuple) else sorted

    def write(value: Any) -> list[Any]:
        plain: list[Any] = order(value) if item.write is _identity else order(map(item.write, value))
        return plain

    def read(plain: Any) -> Any:
        return kind(_read_items(plain, item))

    return StateCodec(write, read)


def _read_items(plain: Any, item: StateCodec) -> list[Any]:
    _check_list(plain)
    found: list[Any] = []
    try:
        for raw in plain:
            found.append(item.read(raw))
    except RemoteError as error:
        raise RemoteError(f"[{len(found)}]{error.field}", error.problem) from None
    return found


def _build_pair_codec(items: list[StateCodec]) -> StateCodec:
    """A tuple of fixed length."""

    def write(value: Any) -> list[Any]:
        return [item.write(each) for item, each in zip(items, value, strict=True)]

    def read(plain: Any) -> tuple[Any, ...]:
        _check_list(plain)
        if len(plain) != len(items):
            raise RemoteError("", f"has {len(plain)} items, expected {len(items)}")
        return tuple(item.read(each) for item, each in zip(items, plain, strict=True))

    return StateCodec(write, read)


def _build_mapping_codec(kind: Any, arguments: tuple[Any, ...]) -> StateCodec:
    """Keys and values in turn, in the mapping's own order."""
    key = _get_codec(arguments[0])
    value = _get_codec(int if kind is Counter else arguments[1])

    def write(mapping: Any) -> list[Any]:
        return list(chain.from_iterable((key.write(each), value.write(held)) for each, held in mapping.items()))

    def read(plain: Any) -> Any:
        _check_list(plain)
        if len(plain) % 2:
            raise RemoteError("", "has a key without a value")
        return kind(dict(zip(_read_items(plain[::2], key), _read_items(plain[1::2], value), strict=True)))

    return StateCodec(write, read)


def _build_dataclass_codec(kind: Any) -> StateCodec:
    hints = get_type_hints(kind, include_extras=True)
    columns = {each.name: _get_codec(hints[each.name]) for each in sorted(fields(kind), key=lambda each: each.name)}
    defaults = {each.name: columns[each.name].write(_get_default(each)) for each in fields(kind) if _has_default(each)}
    needed = columns.keys() - defaults.keys()
    missing = object()

    def write(value: Any) -> dict[str, Any]:
        plain = {}
        for name, codec in columns.items():
            written = codec.write(getattr(value, name))
            # Compared as written: a Counter with a zero equals one without it, but its order differs later.
            if written != defaults.get(name, missing):
                plain[name] = written
        return plain

    def read(plain: Any) -> Any:
        if type(plain) is not dict:
            refuse_type(plain, "a map")
        if needed - plain.keys():
            raise RemoteError(f".{min(needed - plain.keys())}", "is missing")
        found = {}
        for name, raw in plain.items():
            if name not in columns:
                raise RemoteError(f".{name!s:.40}", "is not a known field")
            try:
                found[name] = columns[name].read(raw)
            except RemoteError as error:
                raise RemoteError(f".{name}{error.field}", error.problem) from None
        return kind(**found)

    return StateCodec(write, read)


def _has_default(each: Field[Any]) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


def _get_default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _check_list(plain: Any) -> None:
    if type(plain) is not list:
        refuse_type(plain, "a list")
