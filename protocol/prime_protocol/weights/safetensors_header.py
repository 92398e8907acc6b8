"""The header of a safetensors file, read strictly: which tensor is where, and of which element type.

The caller reads the first eight bytes of the file, asks `get_head_bytes` how many more to read, and passes all of them
to `parse_header`. Tensor data is not read here. Types of less than a byte (F4, F6) are not supported: not every shape
of them is a whole number of bytes.
"""

import math
import re
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prime_protocol.constants import (
    CHECKPOINT_BYTES_MAX,
    SAFETENSORS_HEADER_BYTES_MAX,
    TENSOR_DIMS_MAX,
    TENSOR_NAME_CHARS_MAX,
    TENSORS_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.wire.strict_json import parse_json


class Dtype(StrEnum):
    """An element type. Only its size matters here: weights are digested and patched as bytes, never as numbers."""

    BOOL = "BOOL"
    U8 = "U8"
    I8 = "I8"
    F8_E4M3 = "F8_E4M3"
    F8_E4M3FNUZ = "F8_E4M3FNUZ"
    F8_E5M2 = "F8_E5M2"
    F8_E5M2FNUZ = "F8_E5M2FNUZ"
    F8_E8M0 = "F8_E8M0"
    U16 = "U16"
    I16 = "I16"
    F16 = "F16"
    BF16 = "BF16"
    U32 = "U32"
    I32 = "I32"
    F32 = "F32"
    U64 = "U64"
    I64 = "I64"
    F64 = "F64"
    C64 = "C64"

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self]

    @property
    def lane_bytes(self) -> int:
        """The unit a delta compares: one element, or half of an 8-byte one."""
        return min(self.item_bytes, LANE_BYTES_MAX)


LANE_BYTES_MAX = 4
TWO_BYTE_DTYPES = frozenset({Dtype.U16, Dtype.I16, Dtype.F16, Dtype.BF16})
FOUR_BYTE_DTYPES = frozenset({Dtype.U32, Dtype.I32, Dtype.F32})
EIGHT_BYTE_DTYPES = frozenset({Dtype.U64, Dtype.I64, Dtype.F64, Dtype.C64})
ITEM_BYTES = {
    dtype: 2 if dtype in TWO_BYTE_DTYPES else 4 if dtype in FOUR_BYTE_DTYPES else 8 if dtype in EIGHT_BYTE_DTYPES else 1
    for dtype in Dtype
}


LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"
FIELD = "safetensors.header"
TENSOR_KEYS = {"dtype", "shape", "data_offsets"}
TENSOR_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{TENSOR_NAME_CHARS_MAX - 1}}}")
"""No slash, no quote, no space: safe as a file name, in a log line and in a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsTensor:
    """One tensor of the file; `offset` counts from the start of the file."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """The tensors in the order of their data, which follows the header without a hole up to the end of the file."""

    data_start: int
    tensors: tuple[SafetensorsTensor, ...]


def get_header_bytes(prefix: bytes) -> int:
    """How many bytes from the start of the file `parse_header` wants, told by the first eight."""
    if len(prefix) < LENGTH.size:
        raise RemoteError("safetensors.length", f"needs {LENGTH.size} bytes, got {len(prefix)}")
    (length,) = LENGTH.unpack_from(prefix)
    if length > SAFETENSORS_HEADER_BYTES_MAX:
        raise RemoteError("safetensors.length", f"is {length}, the limit is {SAFETENSORS_HEADER_BYTES_MAX}")
    return LENGTH.size + int(length)


def parse_safetensors_header(head: bytes, *, file_bytes: int) -> SafetensorsHeader:
    """`head` is the file up to where its data starts: exactly `get_head_bytes` of it."""
    data_start = get_header_bytes(head)
    if len(head) != data_start:
        raise RemoteError("safetensors.header", f"is {len(head)} bytes with its length, expected {data_start}")
    if file_bytes < data_start:
        raise RemoteError("safetensors.length", f"ends the header at {data_start}, the file at {file_bytes}")
    entries = parse_entries(head[LENGTH.size :])
    check_metadata(entries.pop(METADATA, {}))
    if len(entries) > TENSORS_MAX:
        raise RemoteError("safetensors.header", f"names {len(entries)} tensors, the limit is {TENSORS_MAX}")
    tensors = [parse_tensor(name, value, data_start) for name, value in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.size))
    check_cover(tensors, data_start, file_bytes)
    return SafetensorsHeader(data_start=data_start, tensors=tuple(tensors))


def parse_entries(text: bytes) -> dict[str, Any]:
    if text[:1] != b"{":
        raise RemoteError(FIELD, "does not start with {")
    # A parsed list or object weighs 30 times its text: bound their number before parsing.
    if text.count(b"{") + text.count(b"[") > 4 * TENSORS_MAX:
        raise RemoteError(FIELD, "holds too many lists and objects")
    entries = parse_json(FIELD, text)
    assert isinstance(entries, dict), "JSON that starts with { is an object"
    return entries


def check_metadata(value: Any) -> None:
    """Checks only that it maps text to text: metadata is not part of the weights."""
    if type(value) is not dict or not all(type(text) is str for text in value.values()):
        raise RemoteError(f"safetensors.{METADATA}", "must map strings to strings")


def parse_tensor(name: str, value: Any, data_start: int) -> SafetensorsTensor:
    if not TENSOR_NAME.fullmatch(name):
        raise RemoteError("safetensors.name", f"{name[:TENSOR_NAME_CHARS_MAX]!r} is not allowed")
    field = f"safetensors.{name}"
    if type(value) is not dict or value.keys() != TENSOR_KEYS:
        raise RemoteError(field, "must have dtype, shape and data_offsets, nothing else")
    dtype = parse_dtype(value["dtype"], f"{field}.dtype")
    shape = parse_numbers(value["shape"], f"{field}.shape")
    offsets = parse_numbers(value["data_offsets"], f"{field}.data_offsets")
    if len(shape) > TENSOR_DIMS_MAX:
        raise RemoteError(f"{field}.shape", f"has {len(shape)} dimensions, the limit is {TENSOR_DIMS_MAX}")
    if len(offsets) != 2:
        raise RemoteError(f"{field}.data_offsets", "must be two numbers")
    start, stop = offsets
    size = math.prod(shape) * dtype.item_bytes
    if stop - start != size:
        raise RemoteError(f"{field}.data_offsets", f"span {stop - start} bytes, the shape takes {size}")
    return SafetensorsTensor(name=name, dtype=dtype, shape=shape, offset=data_start + start, size=size)


def parse_dtype(value: Any, field: str) -> Dtype:
    if type(value) is not str or value not in Dtype.__members__:
        raise RemoteError(field, "is not known")
    return Dtype(value)


def parse_numbers(value: Any, field: str) -> tuple[int, ...]:
    # `type is`, because JSON's true is an int to isinstance.
    if type(value) is not list or not all(type(number) is int for number in value):
        raise RemoteError(field, "must be a list of whole numbers")
    if not all(0 <= number <= CHECKPOINT_BYTES_MAX for number in value):
        raise RemoteError(field, f"must be from 0 to {CHECKPOINT_BYTES_MAX}")
    return tuple(value)


def check_cover(tensors: list[SafetensorsTensor], data_start: int, file_bytes: int) -> None:
    """Every byte after the header belongs to exactly one tensor: nothing overlaps, nothing hides."""
    position = data_start
    for tensor in tensors:
        if tensor.offset != position:
            raise RemoteError(
                f"safetensors.{tensor.name}.data_offsets", f"start at byte {tensor.offset}, expected {position}"
            )
        position += tensor.size
    if position != file_bytes:
        raise RemoteError("safetensors.data", f"ends at byte {position}, the file at {file_bytes}")
