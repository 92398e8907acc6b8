"""Reading the pages of a rollout file from a stranger: which bytes belong to which column, and their values.

Every byte that is not a value is compared with what rollout_layout.py emits. Nothing is allocated that is larger than
the bytes it was read from. What the values may be is in rollout_checks.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_protocol.errors import RemoteError
from prime_protocol.rollout_layout import DOUBLE, FLOAT, INT32, INT64, Column, levels, page_header

DTYPES = {INT32: "<i4", INT64: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}

LIST_LEVEL_BYTES_MAX = 12
"""Repetition levels of one list: a run for its first element and one for the others, each a number and a byte."""


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """A list column: the elements of all rows end to end, and how many each row has."""

    values: NDArray[Any]
    lengths: list[int]

    def split(self) -> list[NDArray[Any]]:
        """A view for each row."""
        views, start = [], 0
        for length in self.lengths:
            views.append(self.values[start : start + length])
            start += length
        return views


class Cursor:
    """A place in the file that only moves past bytes it knows."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, end: int) -> None:
        self.data = data
        self.end = end
        """Where the pages must stop and the footer starts."""
        self.position = 0

    def expect(self, wanted: bytes, field: str) -> None:
        after = self.position + len(wanted)
        if self.data[self.position : after] != wanted:
            raise RemoteError(field, f"at byte {self.position} is not in the one accepted form")
        self.position = after

    def page(self, field: str) -> tuple[int, memoryview]:
        """The number of values and the body of the page that starts here; the cursor moves behind it."""
        # Three bytes come before the size, which stands twice with one byte between, then two before the values.
        # Reading them may be careless, because the whole header is compared afterwards.
        size, after = peek_varint(self.data, self.position + 3, field)
        values, _ = peek_varint(self.data, 2 * after - self.position, field)
        self.expect(page_header(values // 2, size // 2), f"{field}.page_header")
        start, self.position = self.position, self.position + size // 2
        if self.position > self.end:
            raise RemoteError(f"{field}.page_header", f"states {size // 2} bytes, {self.end - start} are left")
        return values // 2, memoryview(self.data)[start : self.position]


def peek_varint(data: bytes | memoryview, position: int, field: str) -> tuple[int, int]:
    """An unsigned LEB128 number of at most 5 bytes, and the position behind it."""
    number = 0
    for offset, byte in enumerate(data[position : position + 5]):
        number |= (byte & 0x7F) << 7 * offset
        if byte < 0x80:
            return number, position + offset + 1
    raise RemoteError(field, f"at byte {position} is no number of at most 5 bytes")


def read_flat(cursor: Cursor, column: Column, rows: int) -> NDArray[Any]:
    """A column with one value per row."""
    values, body = cursor.page(column.name)
    check_count(column.name, values, rows)
    return plain_values(column, body, values)


def read_lists(cursor: Cursor, column: Column, rows: int) -> Lists:
    """A column with one list per row."""
    values, body = cursor.page(column.name)
    lengths = read_lengths(column.name, body, rows)
    check_count(column.name, values, sum(lengths))
    return Lists(plain_values(column, body[len(levels(lengths)) :], values), lengths)


def read_proofs(cursor: Cursor, column: Column, sizes: list[int]) -> list[bytes]:
    """A column with one byte string per row, each of the size it must have."""
    values, body = cursor.page(column.name)
    check_count(column.name, values, len(sizes))
    wanted = sum(sizes) + 4 * len(sizes)
    if len(body) != wanted:
        raise RemoteError(column.name, f"has {len(body)} bytes, the output tokens need {wanted}")
    proofs, position = [], 0
    for number, size in enumerate(sizes):
        stated = int.from_bytes(body[position : position + 4], "little")
        if stated != size:
            raise RemoteError(f"rows[{number}].{column.name}", f"has {stated} bytes, the output tokens need {size}")
        proofs.append(bytes(body[position + 4 : position + 4 + size]))
        position += 4 + size
    return proofs


def check_count(field: str, values: int, wanted: int) -> None:
    if values != wanted:
        raise RemoteError(field, f"has {values} values, expected {wanted}")


def plain_values(column: Column, body: memoryview, values: int) -> NDArray[Any]:
    """A copy of a PLAIN page's values, because a page may start at an address no tensor library accepts."""
    dtype = np.dtype(DTYPES[column.physical])
    if len(body) != values * dtype.itemsize:
        raise RemoteError(column.name, f"has {len(body)} bytes for {values} values of {dtype.itemsize} bytes")
    array = np.frombuffer(body, dtype).copy()
    array.flags.writeable = False
    return array


def read_lengths(field: str, body: memoryview, rows: int) -> list[int]:
    """The length of each list, from levels in exactly the form that `levels` gives them."""
    size = int.from_bytes(body[:4], "little")
    if size > rows * LIST_LEVEL_BYTES_MAX:
        raise RemoteError(field, f"has {size} bytes of repetition levels for {rows} lists")
    lengths: list[int] = []
    position = 4
    while position < min(4 + size, len(body)):
        count, position = peek_varint(body, position, field)
        # Whatever is wrong with a run shows when the levels are made again from the lengths.
        if lengths and bytes(body[position : position + 1]) == b"\1":
            lengths[-1] += count // 2
        elif count // 2 <= rows - len(lengths):
            lengths += [1] * (count // 2)
        else:
            raise RemoteError(field, f"has more than {rows} lists")
        position += 1
    check_count(f"{field}.lists", len(lengths), rows)
    encoded = levels(lengths)
    if body[: len(encoded)] != encoded:
        raise RemoteError(field, "has levels that are not in the one accepted form")
    return lengths
