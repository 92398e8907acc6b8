"""Views of our contracts as bytes: a question to call data, an answer to named values, by the contract's ABI. Pure.

The codec is web3's, handed in: whoever has no chain needs none. Compared with web3's own contract objects this leaves
out guessing which function was meant, and costs a tenth: a coordinator asks a few hundred times a minute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prime_protocol.signing import keccak

SELECTOR_BYTES = 4
Abi = Sequence[Mapping[str, Any]]


class Codec(Protocol):
    """ABI encoding of values."""

    def encode(self, types: Sequence[str], values: Sequence[Any]) -> bytes: ...

    def decode(self, types: Sequence[str], data: bytes) -> tuple[Any, ...]: ...


@dataclass(frozen=True, slots=True)
class View:
    """One function of a contract."""

    selector: bytes
    takes: tuple[str, ...]
    gives: tuple[Mapping[str, Any], ...]

    def encode(self, codec: Codec, values: Sequence[Any]) -> str:
        return "0x" + (self.selector + codec.encode(self.takes, values)).hex()

    def decode(self, codec: Codec, data: bytes) -> Any:
        """A struct comes as a mapping of its fields; several values as a tuple."""
        values = codec.decode([type_of(each) for each in self.gives], data)
        named = tuple(name_fields(each, value) for each, value in zip(self.gives, values, strict=True))
        return named[0] if len(named) == 1 else named


def list_views(abi: Abi) -> dict[str, View]:
    """By name; ours have no two of one name."""
    return {item["name"]: make_view(item) for item in abi if item["type"] == "function"}


def make_view(item: Mapping[str, Any]) -> View:
    takes = tuple(type_of(each) for each in item["inputs"])
    selector = keccak(f"{item['name']}({','.join(takes)})".encode())[:SELECTOR_BYTES]
    return View(selector, takes, tuple(item["outputs"]))


def type_of(part: Mapping[str, Any]) -> str:
    """As signatures and the codec spell it: a struct is the tuple of its fields."""
    kind = str(part["type"])
    if not kind.startswith("tuple"):
        return kind
    inner = ",".join(type_of(each) for each in part["components"])
    return f"({inner}){kind.removeprefix('tuple')}"


def name_fields(part: Mapping[str, Any], value: Any) -> Any:
    if part["type"] == "tuple":
        return {each["name"]: name_fields(each, inner) for each, inner in zip(part["components"], value, strict=True)}
    if part["type"] == "tuple[]":
        return [name_fields({**part, "type": "tuple"}, each) for each in value]
    return value
