"""The safetensors header reader: agrees with the public package, and refuses what a careless reader would take."""

import json
import struct
from typing import Any

import pytest
import torch
from safetensors.torch import save

from prime_protocol.constants import SAFETENSORS_HEADER_BYTES_MAX, TENSORS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.weights.safetensors_header import (
    Dtype,
    SafetensorsHeader,
    get_header_bytes,
    parse_safetensors_header,
)

NORM = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def head_of(entries: object) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def parse(entries: object, data_bytes: int = 8) -> SafetensorsHeader:
    head = head_of(entries)
    return parse_safetensors_header(head, file_bytes=len(head) + data_bytes)


def test_a_file_of_the_public_package_is_read_as_it_was_written() -> None:
    tensors = {
        "a.weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "b": torch.ones(1, dtype=torch.float64),
        "c.empty": torch.zeros(0, 4),
        "d.bytes": torch.arange(5, dtype=torch.uint8),
        "e": torch.zeros(3, dtype=torch.float8_e4m3fn),
    }
    file = save(tensors, {"format": "pt"})
    size = get_header_bytes(file[:8])
    header = parse_safetensors_header(file[:size], file_bytes=len(file))
    assert header.data_start == size
    assert len(header.tensors) == len(tensors)
    for tensor in header.tensors:
        written = tensors[tensor.name]
        assert tensor.shape == tuple(written.shape)
        assert file[tensor.offset : tensor.offset + tensor.size] == bytes(written.view(torch.uint8).flatten().tolist())
    assert sum(tensor.size for tensor in header.tensors) == len(file) - size


@pytest.mark.parametrize(
    ("dtype", "item", "lane"),
    [("BOOL", 1, 1), ("F8_E5M2", 1, 1), ("BF16", 2, 2), ("F32", 4, 4), ("I64", 8, 4), ("C64", 8, 4)],
)
def test_every_dtype_has_its_size_and_lane(dtype: str, item: int, lane: int) -> None:
    assert (Dtype(dtype).item_bytes, Dtype(dtype).lane_bytes) == (item, lane)


def test_trailing_spaces_pad_the_header() -> None:
    assert parse(json.dumps({"norm": NORM}).encode() + b"   ").tensors[0].name == "norm"


def test_a_file_without_tensors_is_a_file_without_data() -> None:
    assert parse({}, data_bytes=0).tensors == ()
    with pytest.raises(RemoteError, match=r"safetensors\.data"):
        parse({}, data_bytes=1)


@pytest.mark.parametrize(
    ("head", "field"),
    [
        (b"\x00" * 7, "safetensors.length"),
        (struct.pack("<Q", SAFETENSORS_HEADER_BYTES_MAX + 1), "safetensors.length"),
        (struct.pack("<Q", 2**64 - 1), "safetensors.length"),
        (head_of({}) + b" ", "safetensors.header"),
        (head_of({})[:-1], "safetensors.header"),
        (head_of(b""), "safetensors.header"),
        (head_of(b"[]"), "safetensors.header"),
        (head_of(b" {}"), "safetensors.header"),
        (head_of(b"{"), "safetensors.header"),
        (head_of(b'{"\xff": 1}'), "safetensors.header"),
        (head_of(b'{"a": NaN}'), "safetensors.header"),
        (head_of(b'{"a": ' + b"9" * 5000 + b"}"), "safetensors.header"),
        (head_of(b'{"a":' + b"[" * 60_000), "safetensors.header"),
        (head_of(b'{"a":' + b"[" * 4 * TENSORS_MAX), "safetensors.header"),
        (head_of(b'{"a": 1, "a": 1}'), "safetensors.header"),
        (head_of(b'{"a": {"dtype": "U8", "dtype": "U8"}}'), "safetensors.header"),
        (head_of({"__metadata__": []}), "safetensors.__metadata__"),
        (head_of({"__metadata__": {"a": 1}}), "safetensors.__metadata__"),
        (head_of({f"t{number}": 0 for number in range(TENSORS_MAX + 1)}), "safetensors.header"),
    ],
    ids=range(19),
)
def test_a_broken_header_is_refused_by_field(head: bytes, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_safetensors_header(head, file_bytes=len(head))
    assert caught.value.field == field, caught.value


def test_a_header_longer_than_the_file_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"safetensors\.length"):
        parse_safetensors_header(head_of({}), file_bytes=9)


@pytest.mark.parametrize("name", ["", "../a", "/a", "a/b", ".a", "a b", "a\n", "é", "a" * 257, "<b>"])
def test_unsafe_tensor_names_are_refused(name: str) -> None:
    with pytest.raises(RemoteError, match=r"safetensors\.name"):
        parse({name: NORM})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dtype": "F4"}, "safetensors.norm.dtype"),
        ({"dtype": 1}, "safetensors.norm.dtype"),
        ({"dtype": ["F32"]}, "safetensors.norm.dtype"),
        ({"shape": 2}, "safetensors.norm.shape"),
        ({"shape": [2.0]}, "safetensors.norm.shape"),
        ({"shape": [True, 2]}, "safetensors.norm.shape"),
        ({"shape": [-2, -1]}, "safetensors.norm.shape"),
        ({"shape": [2**64]}, "safetensors.norm.shape"),
        ({"shape": [1] * 8 + [2]}, "safetensors.norm.shape"),
        ({"shape": [3]}, "safetensors.norm.data_offsets"),
        ({"data_offsets": [0, 4, 8]}, "safetensors.norm.data_offsets"),
        ({"data_offsets": [8, 0]}, "safetensors.norm.data_offsets"),
        ({"data_offsets": [1, 9]}, "safetensors.norm.data_offsets"),
        ({"extra": 1}, "safetensors.norm"),
    ],
)
def test_a_hostile_tensor_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        parse({"norm": NORM | change})
    assert caught.value.field == field, caught.value


def test_a_tensor_must_be_an_object() -> None:
    with pytest.raises(RemoteError, match=r"safetensors\.norm"):
        parse({"norm": 1})


def test_tensors_leave_no_hole_no_overlap_and_no_rest() -> None:
    second = {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}
    assert len(parse({"b": second, "a": NORM}, data_bytes=12).tensors) == 2
    for offsets, size in (([9, 13], 13), ([7, 11], 11), ([8, 12], 13), ([8, 12], 11)):
        with pytest.raises(RemoteError):
            parse({"a": NORM, "b": second | {"data_offsets": offsets}}, data_bytes=size)
