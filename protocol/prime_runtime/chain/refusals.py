"""Custom errors of the contracts: from the first four bytes to the name and the values. Pure.

A call through one contract can be refused by another, so the table is over all of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prime_protocol.signing import keccak

SELECTOR_BYTES = 4
PLAIN = "Error(string)"
PLAIN_SELECTOR = bytes.fromhex("08c379a0")
STATIC = ("address", "bytes32", "bool")
WORD = 32


@dataclass(frozen=True, slots=True)
class CustomError:
    """One error as a contract declares it."""

    name: str
    fields: tuple[tuple[str, str], ...]
    """Name and type of each value."""

    @property
    def selector(self) -> bytes:
        types = ",".join(kind for _, kind in self.fields)
        return keccak(f"{self.name}({types})".encode())[:SELECTOR_BYTES]


def list_errors(abis: Iterable[Iterable[Mapping[str, Any]]]) -> dict[bytes, CustomError]:
    """By selector."""
    found = (
        CustomError(item["name"], tuple((field["name"], field["type"]) for field in item["inputs"]))
        for abi in abis
        for item in abi
        if item["type"] == "error"
    )
    return {error.selector: error for error in found}


def name_refusal(table: Mapping[bytes, CustomError], data: bytes) -> tuple[str, str]:
    """The error's name and a text with its values; an empty name where the table does not have it."""
    selector, values = data[:SELECTOR_BYTES], data[SELECTOR_BYTES:]
    error = table.get(selector)
    if error is None:
        if selector == PLAIN_SELECTOR:
            length = int.from_bytes(values[WORD : 2 * WORD], "big")
            return "", values[2 * WORD : 2 * WORD + length].decode(errors="replace")
        return "", f"an error that is not ours, 0x{data.hex()}"
    words = [values[place : place + WORD] for place in range(0, len(values), WORD)]
    shown = [
        f"{name}={_show(kind, word)}"
        for (name, kind), word in zip(error.fields, words, strict=False)
        if kind in STATIC or kind.startswith("uint")
    ]
    return error.name, f"{error.name}({', '.join(shown)})"


def _show(kind: str, word: bytes) -> str:
    if kind == "address":
        return f"0x{word[-20:].hex()}"
    if kind == "bytes32":
        return f"0x{word.hex()}"
    number = int.from_bytes(word, "big")
    return str(bool(number)) if kind == "bool" else str(number)
