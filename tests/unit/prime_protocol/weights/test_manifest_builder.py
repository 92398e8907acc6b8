"""Building manifests: whoever hashes what first, and a delta carries every tensor of its base."""

import json
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from prime_protocol.constants import SHARD_BYTES_MIN
from prime_protocol.errors import LocalError
from prime_protocol.weights.manifest import (
    Manifest,
    ManifestKind,
    apply_tensor_delta_in_place,
    compute_blake3,
    verify_base,
    verify_layout,
    verify_shard,
)
from prime_protocol.weights.manifest_builder import RangeHasher, SourceFile, build_delta, build_keyframe
from prime_protocol.weights.safetensors_header import SafetensorsHeader, get_header_bytes, parse_safetensors_header
from prime_protocol.wire.ids import RunId, Step

RUN, SHARD = RunId("run"), SHARD_BYTES_MIN


def make_file(tensors: dict[str, bytes]) -> bytes:
    """A safetensors file of byte tensors."""
    entries, position = {}, 0
    for name, data in tensors.items():
        span = [position, position + len(data)]
        entries[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": span}
        position += len(data)
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def header_of(file: bytes) -> SafetensorsHeader:
    return parse_safetensors_header(file[: get_header_bytes(file)], file_bytes=len(file))


def source(name: str, file: bytes, *, plain: bool = False) -> SourceFile:
    return SourceFile(name=name, header=None if plain else header_of(file), data=file)


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


OLD = {"z": noise(1, 9000), "empty": b"", "a": noise(2, 5000)}
NEW = {"z": OLD["z"][:-1] + b"\x07", "empty": b"", "a": OLD["a"]}
FILE = make_file(OLD)
MORE = make_file({"m": noise(3, 100)})
BASE = build_keyframe(RUN, Step(1), [source("m.safetensors", FILE)], shard_bytes=SHARD)


def delta_to(new: dict[str, bytes], written: bytearray) -> Manifest:
    pairs = ((name, OLD[name], new[name]) for name in new)
    return build_delta(BASE, Step(2), pairs, written.extend, shard_bytes=SHARD)


def test_a_keyframe_does_not_depend_on_who_hashes_what_first() -> None:
    def backwards(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        return reversed([work(item) for item in reversed(list(items))])

    again = build_keyframe(RUN, Step(1), [source("m.safetensors", FILE)], shard_bytes=SHARD, each=backwards)
    assert again == BASE


def test_a_keyframe_carries_the_digest_of_every_shard_and_tensor() -> None:
    files = {"m.safetensors": FILE, "config.json": b"{}", "n.safetensors": MORE}
    sources = [source(name, file, plain=name == "config.json") for name, file in files.items()]
    manifest = build_keyframe(RUN, Step(1), sources, shard_bytes=SHARD)
    data = list(files.values())
    for index, shard in enumerate(manifest.shards):
        verify_shard(manifest, index, data[shard.file][shard.offset : shard.offset + shard.length])
    assert [tensor.name for tensor in manifest.tensors] == ["a", "empty", "m", "z"]
    for tensor in manifest.tensors:
        assert tensor.digest == compute_blake3(data[tensor.file][tensor.offset : tensor.offset + tensor.size])
    verify_layout(manifest, 0, header_of(FILE))
    verify_layout(manifest, 2, header_of(MORE))
    assert manifest.transport_bytes == sum(map(len, data))


def test_a_delta_turns_the_base_into_what_a_keyframe_would_carry() -> None:
    written = bytearray()
    delta = delta_to(NEW, written)
    keyframe = build_keyframe(RUN, Step(2), [source("m", make_file(NEW))], shard_bytes=SHARD)
    assert delta.kind is ManifestKind.DELTA
    assert delta.root == keyframe.root
    assert delta.transport_bytes == len(written) < 100
    verify_base(delta, BASE)
    for index, shard in enumerate(delta.shards):
        verify_shard(delta, index, written[shard.offset : shard.offset + shard.length])
    for tensor in delta.tensors:
        target = bytearray(OLD[tensor.name])
        apply_tensor_delta_in_place(tensor, memoryview(written)[tensor.offset : tensor.offset + tensor.length], target)
        assert target == NEW[tensor.name]


def test_a_delta_of_several_shards_is_cut_like_any_file() -> None:
    written = bytearray()
    delta = delta_to(NEW | {"z": noise(9, 9000)}, written)
    assert [shard.length for shard in delta.shards] == [SHARD, SHARD, len(written) - 2 * SHARD]


def test_a_delta_that_leaves_out_a_tensor_is_refused() -> None:
    with pytest.raises(LocalError, match="2 tensors of the base did not come, the first is a"):
        delta_to({"z": NEW["z"]}, bytearray())


def test_a_delta_takes_each_tensor_once_and_whole() -> None:
    with pytest.raises(LocalError, match="came twice"):
        build_delta(BASE, Step(2), [("a", OLD["a"], NEW["a"])] * 2, bytearray().extend)
    with pytest.raises(LocalError, match="not a tensor of the base"):
        build_delta(BASE, Step(2), [("b", b"", b"")], bytearray().extend)
    for old, new in [(OLD["a"][1:], NEW["a"]), (OLD["a"], NEW["a"][1:])]:
        with pytest.raises(LocalError, match="4999 bytes"):
            build_delta(BASE, Step(2), [("a", old, new)], bytearray().extend)


def test_ranges_with_holes_are_digested_across_chunks() -> None:
    hasher = RangeHasher(iter([(2, 3), (6, 1), (7, 9)]))
    for chunk in (b"01", b"234", b"56", b"789"):
        hasher.feed(chunk)
    assert hasher.finish() == [compute_blake3(b"234"), compute_blake3(b"6"), compute_blake3(b"789")]


def test_a_stream_that_ends_with_its_last_range_leaves_nothing_to_digest() -> None:
    hasher = RangeHasher(iter([(0, 2), (2, 2)]))
    hasher.feed(b"0123")
    assert hasher.finish() == [compute_blake3(b"01"), compute_blake3(b"23")]
