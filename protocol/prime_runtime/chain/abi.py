"""The ABI of our contracts: call data, return values, custom errors. Pure.

The caller passes web3's codec, so this module needs no chain library. Compared with web3's contract objects it does not
guess which function is meant, and it costs a tenth: a coordinator reads a few hundred values a minute. A call through
one contract can be reverted by another, so the table of errors covers all contracts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.signing import keccak

SELECTOR_BYTES = 4
Abi = Sequence[Mapping[str, Any]]


class AbiCodec(Protocol):
    """ABI encoding of values."""

    def encode(self, types: Sequence[str], values: Sequence[Any]) -> bytes: ...

    def decode(self, types: Sequence[str], data: bytes) -> tuple[Any, ...]: ...


@dataclass(frozen=True, slots=True)
class AbiFunction:
    """A function of a contract."""

    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[Mapping[str, Any], ...]

    def encode(self, codec: AbiCodec, values: Sequence[Any]) -> str:
        return "0x" + (self.selector + codec.encode(self.inputs, values)).hex()

    def decode(self, codec: AbiCodec, data: bytes) -> Any:
        """A struct becomes a mapping of its fields; several values become a tuple."""
        values = codec.decode([get_abi_type(each) for each in self.outputs], data)
        named = tuple(name_fields(each, value) for each, value in zip(self.outputs, values, strict=True))
        return named[0] if len(named) == 1 else named


def list_functions(abi: Abi) -> dict[str, AbiFunction]:
    """Functions by name; our contracts overload none."""
    return {item["name"]: make_function(item) for item in abi if item["type"] == "function"}


def make_function(item: Mapping[str, Any]) -> AbiFunction:
    takes = tuple(get_abi_type(each) for each in item["inputs"])
    selector = keccak(f"{item['name']}({','.join(takes)})".encode())[:SELECTOR_BYTES]
    return AbiFunction(selector, takes, tuple(item["outputs"]))


def get_abi_type(part: Mapping[str, Any]) -> str:
    """The type in signatures and in the codec: a struct is the tuple of its fields."""
    kind = str(part["type"])
    if not kind.startswith("tuple"):
        return kind
    inner = ",".join(get_abi_type(each) for each in part["components"])
    return f"({inner}){kind.removeprefix('tuple')}"


def name_fields(part: Mapping[str, Any], value: Any) -> Any:
    if part["type"] == "tuple":
        return {each["name"]: name_fields(each, inner) for each, inner in zip(part["components"], value, strict=True)}
    if part["type"] == "tuple[]":
        return [name_fields({**part, "type": "tuple"}, each) for each in value]
    return value


def compute_penalty_name(submission: Digest, validator: NodeId) -> Digest:
    """The name of a penalty in court, ICourt.penaltyOf: the hash of the two as ABI words."""
    return Digest(keccak(submission + bytes(WORD_BYTES - len(validator)) + validator))


PLAIN_SELECTOR = bytes.fromhex("08c379a0")
"""Of Error(string), which `require` raises."""
STATIC_TYPES = ("address", "bytes32", "bool")
WORD_BYTES = 32


@dataclass(frozen=True, slots=True)
class ContractError:
    """A custom error of a contract."""

    name: str
    fields: tuple[tuple[str, str], ...]
    """Name and type of each value."""

    @property
    def selector(self) -> bytes:
        types = ",".join(kind for _, kind in self.fields)
        return keccak(f"{self.name}({types})".encode())[:SELECTOR_BYTES]


def list_errors(abis: Iterable[Iterable[Mapping[str, Any]]]) -> dict[bytes, ContractError]:
    """Errors by selector."""
    found = (
        ContractError(item["name"], tuple((field["name"], field["type"]) for field in item["inputs"]))
        for abi in abis
        for item in abi
        if item["type"] == "error"
    )
    return {error.selector: error for error in found}


def decode_contract_error(table: Mapping[bytes, ContractError], data: bytes) -> tuple[str, str]:
    """The name of an error and a text with its values; an empty name if it is unknown."""
    selector, values = data[:SELECTOR_BYTES], data[SELECTOR_BYTES:]
    error = table.get(selector)
    if error is None:
        if selector == PLAIN_SELECTOR:
            length = int.from_bytes(values[WORD_BYTES : 2 * WORD_BYTES], "big")
            return "", values[2 * WORD_BYTES : 2 * WORD_BYTES + length].decode(errors="replace")
        return "", f"an unknown error, 0x{data.hex()}"
    words = [values[place : place + WORD_BYTES] for place in range(0, len(values), WORD_BYTES)]
    shown = [
        f"{name}={_format_word(kind, word)}"
        for (name, kind), word in zip(error.fields, words, strict=False)
        if kind in STATIC_TYPES or kind.startswith("uint")
    ]
    return error.name, f"{error.name}({', '.join(shown)})"


def _format_word(kind: str, word: bytes) -> str:
    if kind == "address":
        return f"0x{word[-20:].hex()}"
    if kind == "bytes32":
        return f"0x{word.hex()}"
    number = int.from_bytes(word, "big")
    return str(bool(number)) if kind == "bool" else str(number)
