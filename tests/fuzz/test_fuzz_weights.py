"""Hostile delta records, safetensors headers and manifests: refused by field, no crash, no byte out of place."""

import json
import struct

import numpy as np
import pytest
import zstandard

from fuzz.harness import assert_survives
from prime_protocol.constants import SHARD_BYTES_MIN
from prime_protocol.errors import RemoteError
from prime_protocol.weights.delta import DELTA_HEADER, BlockMode, encode_record, patch_blocks
from prime_protocol.weights.manifest import Manifest
from prime_protocol.weights.manifest_builder import SourceFile, build_delta, build_keyframe
from prime_protocol.weights.safetensors_header import get_header_bytes, parse_safetensors_header
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import RunId, Step

pytestmark = pytest.mark.fuzz
SIZE = 3000
GUARD = b"\xa5" * 64


def patch_guarded(record: bytes, width: int) -> bytes:
    """Apply to zeros between two guards; a refused record must leave everything as it was."""
    whole = bytearray(GUARD + bytes(SIZE) + GUARD)
    target = np.frombuffer(whole, np.uint8)[64:-64]
    try:
        for _ in patch_blocks(record, SIZE, width, lambda start, stop: target[start:stop]):
            pass
    except RemoteError:
        assert whole == GUARD + bytes(SIZE) + GUARD
        raise
    finally:
        assert whole[:64] == GUARD
        assert whole[-64:] == GUARD
    return bytes(whole)


def make_records() -> list[bytes]:
    """One per mode, for a tensor of SIZE bytes in two-byte lanes."""
    dice = np.random.default_rng(5)
    old = bytes(SIZE)
    few = bytearray(old)
    few[7], few[1200], few[2999] = 1, 2, 3
    return [
        b"".join(encode_record(old, new, 2)) for new in (old, bytes(few), dice.bytes(SIZE), b"\x01\x02" * (SIZE // 2))
    ]


def test_hostile_records_are_refused_or_applied_inside_the_target() -> None:
    assert_survives(lambda data: patch_guarded(data, 2), make_records(), seed=1)


def test_hostile_gaps_and_planes_behind_honest_compression_stay_inside_the_target() -> None:
    compressor = zstandard.ZstdCompressor(level=1)

    def parse(data: bytes) -> object:
        # Two numbers, then the gap codes, then as many plane bytes as the first number says.
        count, gap_bytes = struct.unpack("<HH", data[:4].ljust(4, b"\x00"))
        gaps = data[4 : 4 + gap_bytes]
        planes = data[4 + gap_bytes :].ljust(2 * count, b"\x01")
        streams = [gaps, planes[:count], planes[count : 2 * count]]
        frames = b"".join(struct.pack("<I", len(one)) + one for one in map(compressor.compress, streams))
        block = bytes([BlockMode.SPARSE]) + struct.pack("<II", count, len(gaps)) + frames
        return patch_guarded(DELTA_HEADER.pack(1, 2, SIZE) + block, 2)

    near = struct.pack("<HH", 3, 3) + b"\x01\x02\x03" + b"\x01" * 6
    far = struct.pack("<HH", 2, 7) + b"\x00" + b"\xff" * 5 + b"\xde" + b"\x02" * 4
    assert_survives(parse, [near, far], seed=2)


def test_hostile_headers_end_well() -> None:
    def parse(data: bytes) -> object:
        return parse_safetensors_header(data[: get_header_bytes(data)], file_bytes=len(data))

    assert_survives(parse, [make_file(3), make_file(0)], seed=3)


def make_file(tensors: int) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}} | {
        f"t{number}": {"dtype": "BF16", "shape": [2, 50], "data_offsets": [200 * number, 200 * number + 200]}
        for number in range(tensors)
    }
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(200 * tensors)


def test_hostile_manifests_end_well() -> None:
    file = make_file(40)
    header = parse_safetensors_header(file[: get_header_bytes(file)], file_bytes=len(file))
    source = SourceFile(name="m.safetensors", header=header, data=file)
    keyframe = build_keyframe(RunId("run"), Step(1), [source], shard_bytes=SHARD_BYTES_MIN)
    same = [(tensor.name, bytes(200), bytes(200)) for tensor in keyframe.tensors]
    delta = build_delta(keyframe, Step(2), same, bytearray().extend)
    assert_survives(lambda data: decode(Manifest, data), [encode(keyframe), encode(delta)], seed=4)
