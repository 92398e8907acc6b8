"""Delta records: what they cost, that they are exact, and that a bad block is refused before it changes anything."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from prime_protocol.constants import DELTA_BLOCK_LANES
from prime_protocol.errors import RemoteError
from prime_protocol.weights.delta import (
    DELTA_HEADER,
    BlockMode,
    Buffer,
    compute_record_bytes_max,
    encode_record,
    patch_blocks,
)

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[3] / "vectors" / "delta.json").read_text())[
    "records"
]
HEAD = DELTA_HEADER.pack(1, 2, 2000)
"""Of a record for 1,000 two-byte lanes."""


def encode(old: bytes, new: bytes, width: int = 2) -> bytes:
    return b"".join(encode_record(old, new, width))


def apply_record(record: bytes, target: Buffer, width: int) -> None:
    """In place."""
    lanes = np.frombuffer(target, np.uint8)
    for _ in patch_blocks(record, lanes.size, width, lambda start, stop: lanes[start:stop]):
        pass


def apply(record: bytes, old: bytes, width: int = 2) -> bytes:
    target = bytearray(old)
    apply_record(record, target, width)
    return bytes(target)


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def frame(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def stream(packed: bytes) -> bytes:
    return struct.pack("<I", len(packed)) + packed


def sparse(gaps: bytes, planes: list[bytes], *, count: int | None = None, gap_bytes: int | None = None) -> bytes:
    """A sparse record for 1,000 two-byte lanes, honest or not."""
    numbers = (len(planes[0]) if count is None else count, len(gaps) if gap_bytes is None else gap_bytes)
    block = bytes([BlockMode.SPARSE]) + struct.pack("<II", *numbers)
    return HEAD + block + b"".join(stream(frame(data)) for data in (gaps, *planes))


def dense(*frames: bytes) -> bytes:
    return HEAD + bytes([BlockMode.PLANES]) + b"".join(stream(packed) for packed in frames)


GOOD = sparse(b"\x05\x06", [b"\x01\x02", b"\x00\x00"])
ZEROS = frame(bytes(1000))


def assert_refused(record: bytes, field: str) -> None:
    """Refused for `field`, and the target is untouched."""
    target = bytearray(2000)
    with pytest.raises(RemoteError) as caught:
        apply_record(record, target, 2)
    assert caught.value.field == field, caught.value
    assert target == bytes(2000)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_records_of_the_independent_encoder_apply_and_ours_do_the_same(vector: dict[str, Any]) -> None:
    old, new, record = (bytes.fromhex(vector[name]) for name in ("old", "new", "record"))
    assert apply(record, old, vector["width"]) == new
    assert apply(encode(old, new, vector["width"]), old, vector["width"]) == new


def test_an_unchanged_tensor_costs_one_byte_per_block() -> None:
    data = bytes(2 * DELTA_BLOCK_LANES + 2)
    assert encode(data, data) == DELTA_HEADER.pack(1, 2, len(data)) + bytes([BlockMode.SAME, BlockMode.SAME])
    assert encode(b"", b"") == DELTA_HEADER.pack(1, 2, 0)


def test_a_tensor_of_several_blocks_is_exact() -> None:
    old = noise(2 * DELTA_BLOCK_LANES + 777)
    new = bytearray(old)
    for position in (0, DELTA_BLOCK_LANES - 1, 2 * DELTA_BLOCK_LANES, len(new) - 1):
        new[position] ^= 0xFF
    record = encode(old, bytes(new), 1)
    assert len(record) < 300
    assert apply(record, old, 1) == new


def test_one_percent_of_neighbouring_steps_costs_under_one_percent() -> None:
    dice = np.random.default_rng(3)
    old = (dice.standard_normal(200_000, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    new = old.copy()
    new[dice.random(old.size) < 0.01] += np.uint16(1)
    record = encode(old.tobytes(), new.tobytes())
    assert len(record) < 0.01 * old.nbytes
    assert apply(record, old.tobytes()) == new.tobytes()


def test_noise_falls_back_to_raw_and_stays_inside_the_bound() -> None:
    old, new = noise(10_000, 1), noise(10_000, 2)
    record = encode(old, new)
    assert record[DELTA_HEADER.size] == BlockMode.RAW
    assert len(record) == compute_record_bytes_max(10_000, 2)
    assert apply(record, old) == new


def test_compressible_values_over_noise_fall_back_to_planes() -> None:
    old, new = noise(10_000), bytes([1, 2, 3, 4] * 2500)
    record = encode(old, new)
    assert record[DELTA_HEADER.size] == BlockMode.PLANES
    assert apply(record, old) == new


def test_a_target_may_be_a_slice_of_a_larger_buffer() -> None:
    file = bytearray(b"head" + bytes(2000) + b"tail")
    apply_record(GOOD, memoryview(file)[4:2004], 2)
    assert file[:4] == b"head"
    assert file[-4:] == b"tail"
    assert np.flatnonzero(np.frombuffer(file[4:2004], np.uint16)).tolist() == [5, 12]


def test_a_wrong_base_gives_a_wrong_result_and_no_error() -> None:
    # The manifest's digest is what catches it: see test_manifest.py.
    assert apply(GOOD, b"\x01" * 2000) != apply(GOOD, bytes(2000))


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (b"", "delta.header"),
        (DELTA_HEADER.pack(2, 2, 2000), "delta.version"),
        (DELTA_HEADER.pack(1, 4, 2000), "delta.width"),
        (DELTA_HEADER.pack(1, 2, 2002), "delta.bytes"),
        (HEAD, "delta.blocks[0].mode"),
        (HEAD + b"\x04", "delta.blocks[0].mode"),
        (HEAD + b"\x03" + bytes(1999), "delta.blocks[0].raw"),
        (HEAD + b"\x01" + bytes(7), "delta.blocks[0].count"),
        (HEAD + b"\x00\x00", "delta"),
        (HEAD + b"\x02" + b"\xff\xff\xff\xff", "delta.blocks[0].streams[0]"),
        (HEAD + b"\x02" + b"\x01", "delta.blocks[0].streams[0]"),
        (GOOD + b"\x00", "delta"),
        (GOOD[:-1], "delta.blocks[0].streams[2]"),
    ],
)
def test_a_broken_record_is_refused_by_field(record: bytes, field: str) -> None:
    assert_refused(record, field)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (sparse(b"\x05", [b"\x01", b"\x00"], count=0), "delta.blocks[0].count"),
        (sparse(b"\x05", [b"\x01", b"\x00"], count=1001), "delta.blocks[0].count"),
        (sparse(b"\x05", [b"\x01", b"\x00"], gap_bytes=0), "delta.blocks[0].gap_bytes"),
        (sparse(b"\xff" * 4 + b"\x00", [b"\x01", b"\x00"]), "delta.blocks[0].gap_bytes"),
        (sparse(b"\x05", [b"\x01\x02", b"\x00\x00"]), "delta.blocks[0].gap_bytes"),
        (sparse(b"\xff\xff", [b"\x01", b"\x00"]), "delta.blocks[0].gaps"),
        (sparse(b"\x01\x01", [b"\x01", b"\x00"]), "delta.blocks[0].gaps"),
        (sparse(b"\xff\xff\xff\xfe", [b"\x01", b"\x00"]), "delta.blocks[0].gaps"),
        (sparse(b"\x05\x05", [b"\x01\x00", b"\x00\x00"]), "delta.blocks[0].planes"),
        (sparse(b"\x05\x05", [b"\x01\x02", b"\x00"]), "delta.blocks[0].streams[2]"),
    ],
)
def test_hostile_changes_are_refused_by_field(record: bytes, field: str) -> None:
    assert_refused(record, field)


def test_the_last_lane_may_change_and_no_lane_after_it() -> None:
    last = b"\xff" * 3 + bytes([999 - 3 * 255])
    beyond = b"\xff" * 3 + bytes([1000 - 3 * 255])
    assert apply(sparse(last, [b"\x02", b"\x00"]), bytes(2000)) == bytes(1998) + b"\x01\x00"
    assert_refused(sparse(beyond, [b"\x02", b"\x00"]), "delta.blocks[0].gaps")


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(frame(bytes(2**24)), id="a bomb that declares itself"),
        pytest.param(frame(bytes(1000), write_content_size=False), id="no declared size"),
        pytest.param(bytes(10), id="not zstd"),
        pytest.param(b"", id="empty"),
        pytest.param(ZEROS + ZEROS, id="two frames"),
        pytest.param(struct.pack("<II", 0x184D2A50, 1000) + bytes(1000), id="a skippable frame"),
        pytest.param(ZEROS[:-1], id="cut off"),
    ],
)
def test_a_stream_that_is_not_one_honest_frame_is_refused(packed: bytes) -> None:
    assert_refused(dense(packed, ZEROS), "delta.blocks[0].streams[0]")


@pytest.mark.parametrize("declared", [999, 1001])
def test_a_frame_that_holds_more_or_less_than_it_declares_is_refused(declared: int) -> None:
    # Magic, a descriptor that says "one segment, size in two bytes, less 256", then that size.
    honest = frame(b"\x01" * declared)
    assert honest[4] == 0x60
    assert_refused(dense(honest[:5] + struct.pack("<H", 1000 - 256) + honest[7:], ZEROS), "delta.blocks[0].streams[0]")


def test_a_compressed_block_longer_than_raw_is_refused() -> None:
    incompressible = frame(noise(1000))
    assert_refused(dense(incompressible, incompressible), "delta.blocks[0]")


def test_a_bad_second_block_leaves_the_first_unpatched() -> None:
    old = bytes(DELTA_BLOCK_LANES + 1)
    new = b"\x01" + old[1:-1] + b"\x01"
    record = encode(old, new, 1)
    assert record[-2] == BlockMode.RAW
    target = bytearray(old)
    with pytest.raises(RemoteError, match=r"blocks\[1\].mode"):
        apply_record(record[:-2] + b"\x09\x01", target, 1)
    assert target == old


def test_a_memory_mapped_file_is_patched_in_place(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(8 + 2000))
    mapped = np.memmap(path, np.uint8, "r+")
    apply_record(GOOD, mapped[8:], 2)
    mapped.flush()
    assert path.read_bytes() == bytes(8) + apply(GOOD, bytes(2000))
