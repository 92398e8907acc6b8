"""Manifests: one root per set of weights, and nothing hostile gets past the constructor."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prime_protocol.constants import (
    CHECKPOINT_BYTES_MAX,
    FILES_MAX,
    MANIFEST_BYTES_MAX,
    SHARD_BYTES_MIN,
    SHARDS_MAX,
    TENSORS_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.weights.delta import DELTA_HEADER, compute_record_bytes_max, encode_record
from prime_protocol.weights.manifest import (
    Manifest,
    ManifestFile,
    ManifestKind,
    ManifestShard,
    ManifestTensor,
    apply_tensor_delta,
    apply_tensor_delta_in_place,
    compute_blake3,
    compute_checkpoint_root,
    cut_shards,
    verify_base,
    verify_layout,
    verify_shard,
    verify_tensor,
)
from prime_protocol.weights.safetensors_header import Dtype, SafetensorsHeader, SafetensorsTensor
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, RunId, Step

ROOTS: list[dict[str, Any]] = json.loads((Path(__file__).parents[3] / "vectors" / "manifest.json").read_text())["roots"]
SHARD = SHARD_BYTES_MIN
DATA = [bytes([number]) * 6000 for number in (1, 2)]
"""Two files, each a header of 100 bytes and a tensor, each two shards."""


def make_tensor(name: str, /, **changes: Any) -> ManifestTensor:
    fields: dict[str, Any] = {
        "name": name,
        "dtype": Dtype.BF16,
        "shape": (50, 59),
        "size": 5900,
        "digest": compute_blake3(DATA[0][100:]),
        "file": 0,
        "offset": 100,
        "length": 5900,
    }
    return ManifestTensor(**(fields | changes))


def make_shards(data: list[bytes]) -> tuple[ManifestShard, ...]:
    return tuple(
        ManifestShard(
            file=file, offset=offset, length=length, digest=compute_blake3(data[file][offset : offset + length])
        )
        for file, offset, length in cut_shards([len(one) for one in data], SHARD)
    )


KEYFRAME = Manifest(
    run=RunId("run-1"),
    step=Step(7),
    kind=ManifestKind.KEYFRAME,
    base=None,
    shard_bytes=SHARD,
    files=(ManifestFile(name="model-1.safetensors", size=6000), ManifestFile(name="model-2.safetensors", size=6000)),
    shards=make_shards(DATA),
    tensors=(make_tensor("a"), make_tensor("b", file=1, digest=compute_blake3(DATA[1][100:]))),
)
RECORDS = b"r" * 300
DELTA = replace(
    KEYFRAME,
    step=Step(8),
    kind=ManifestKind.DELTA,
    base=KEYFRAME.root,
    files=(ManifestFile(name="weights.delta", size=300),),
    shards=make_shards([RECORDS]),
    tensors=(make_tensor("a", offset=200, length=100), make_tensor("b", offset=0, length=200)),
)


def assert_refused(field: str, manifest: Manifest, **changes: Any) -> None:
    with pytest.raises(RemoteError) as caught:
        replace(manifest, **changes)
    assert caught.value.field == field, caught.value


@pytest.mark.parametrize("vector", ROOTS, ids=lambda vector: str(len(vector["tensors"])))
def test_roots_are_those_of_the_independent_implementation(vector: dict[str, Any]) -> None:
    tensors = []
    for tensor in vector["tensors"]:
        data = bytes.fromhex(tensor["data"])
        shape = tuple(tensor["shape"])
        size = {"shape": shape, "size": len(data), "length": len(data), "digest": compute_blake3(data)}
        tensors.append(make_tensor(tensor["name"], dtype=Dtype(tensor["dtype"]), **size))
    assert str(compute_checkpoint_root(tensors)) == vector["root"]
    assert compute_checkpoint_root(reversed(tensors)) == compute_checkpoint_root(tensors)


@pytest.mark.parametrize("manifest", [KEYFRAME, DELTA], ids=["keyframe", "delta"])
def test_a_manifest_survives_the_codec(manifest: Manifest) -> None:
    assert decode(Manifest, encode(manifest)) == manifest


def test_the_root_names_the_weights_and_not_the_transport() -> None:
    same = tuple(
        replace(tensor, digest=whole.digest) for tensor, whole in zip(DELTA.tensors, KEYFRAME.tensors, strict=True)
    )
    assert replace(DELTA, tensors=same).root == KEYFRAME.root
    assert DELTA.root != KEYFRAME.root


@pytest.mark.parametrize(
    "changes",
    [{"name": "c"}, {"dtype": Dtype.F16}, {"shape": (59, 50)}, {"shape": (2950,)}, {"digest": Digest(bytes(32))}],
)
def test_the_root_depends_on_every_property_of_a_tensor(changes: dict[str, Any]) -> None:
    assert compute_checkpoint_root([make_tensor("b")]) != compute_checkpoint_root([make_tensor("b", **changes)])


def test_a_manifest_of_62_gigabytes_fits_a_message() -> None:
    data_bytes, shards = 62 * 10**9, 3696
    tensors = tuple(
        make_tensor(
            f"model.layers.{n:03}.self_attn.q_proj.weight", shape=(size,), size=2 * size, length=2 * size, offset=o
        )
        for n, size, o in ((n, 10**7, 2 * 10**7 * n) for n in range(771))
    )
    files = (ManifestFile(name="model.safetensors", size=data_bytes),)
    cuts = cut_shards([data_bytes], 2**24)
    entries = tuple(ManifestShard(file=f, offset=o, length=n, digest=Digest(bytes(32))) for f, o, n in cuts)
    manifest = replace(KEYFRAME, shard_bytes=2**24, files=files, shards=entries, tensors=tensors)
    assert len(manifest.shards) == shards
    assert len(encode(manifest)) / (771 * 170 + shards * 80) < 1
    assert decode(Manifest, encode(manifest)) == manifest


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "/etc/passwd", "a/b", "a\\b", ".a", "a.", "a\0", "a\n", "x" * 129]
)
def test_unsafe_file_names_are_refused(name: str) -> None:
    with pytest.raises(RemoteError) as caught:
        ManifestFile(name=name, size=1)
    assert caught.value.field == "name"


@pytest.mark.parametrize("name", ["a", "model-00001-of-00030.safetensors", "config.json", "x" * 128])
def test_ordinary_file_names_pass(name: str) -> None:
    assert ManifestFile(name=name, size=1).name == name


@pytest.mark.parametrize("size", [0, -1, CHECKPOINT_BYTES_MAX + 1])
def test_file_sizes_are_bounded(size: int) -> None:
    with pytest.raises(RemoteError) as caught:
        ManifestFile(name="a", size=size)
    assert caught.value.field == "size"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "../a"}, "name"),
        ({"shape": (1,) * 9}, "shape"),
        ({"shape": (-50, -59)}, "shape"),
        ({"shape": (2**60, 2**60)}, "shape"),
        ({"shape": (50, 60)}, "size"),
        ({"dtype": Dtype.F32}, "size"),
        ({"shape": (2**22, 2**21), "size": 2**44}, "size"),
        ({"offset": -1}, "offset"),
        ({"length": -1}, "length"),
    ],
)
def test_a_hostile_tensor_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        make_tensor("a", **changes)
    assert caught.value.field == field, caught.value


def test_counts_and_numbers_are_bounded() -> None:
    assert_refused("step", KEYFRAME, step=-1)
    assert_refused("shard_bytes", KEYFRAME, shard_bytes=SHARD - 1)
    assert_refused("files", KEYFRAME, files=())
    assert_refused("files", KEYFRAME, files=KEYFRAME.files * FILES_MAX)
    assert_refused("shards", KEYFRAME, shards=())
    assert_refused("shards", KEYFRAME, shards=KEYFRAME.shards * SHARDS_MAX)
    assert_refused("tensors", KEYFRAME, tensors=())
    assert_refused("tensors", KEYFRAME, tensors=KEYFRAME.tensors * TENSORS_MAX)


def test_a_file_is_named_once_whatever_the_case() -> None:
    assert_refused("files", KEYFRAME, files=(KEYFRAME.files[0], replace(KEYFRAME.files[1], name="MODEL-1.safetensors")))


@pytest.mark.parametrize("change", [{"file": 0}, {"file": 2}, {"offset": 1}, {"length": 4095}, {"length": 4097}])
def test_shards_have_the_one_right_cut(change: dict[str, Any]) -> None:
    shards = list(KEYFRAME.shards)
    shards[2] = replace(shards[2], **change)
    assert_refused("shards[2]", KEYFRAME, shards=tuple(shards))


def test_shards_are_complete_and_in_order() -> None:
    assert_refused("shards", KEYFRAME, shards=KEYFRAME.shards[:-1])
    assert_refused("shards", KEYFRAME, shards=(*KEYFRAME.shards, KEYFRAME.shards[-1]))
    assert_refused("shards[0]", KEYFRAME, shards=KEYFRAME.shards[::-1])


def test_tensors_are_sorted_and_named_once() -> None:
    first, second = KEYFRAME.tensors
    assert_refused("tensors[1].name", KEYFRAME, tensors=(second, first))
    assert_refused("tensors[1].name", KEYFRAME, tensors=(first, replace(second, name="a")))


def test_tensors_stay_inside_their_files_and_apart() -> None:
    first, second = KEYFRAME.tensors
    for file in (-1, 2):
        assert_refused("tensors[1].file", KEYFRAME, tensors=(first, replace(second, file=file)))
    assert_refused("tensors[0].length", KEYFRAME, tensors=(replace(first, offset=101), second))
    assert_refused("tensors[1].offset", KEYFRAME, tensors=(first, replace(second, file=0)))
    small = {"shape": (1,), "size": 2, "length": 2}
    assert_refused("tensors[0].offset", KEYFRAME, tensors=(make_tensor("a", offset=101, **small), make_tensor("b")))


def test_an_empty_tensor_may_stand_between_others() -> None:
    empty = make_tensor("c", shape=(0, 5), size=0, length=0, digest=compute_blake3(b""))
    for offset in (100, 6000):
        assert replace(KEYFRAME, tensors=(*KEYFRAME.tensors, replace(empty, offset=offset))).root != KEYFRAME.root


def test_a_keyframe_has_no_base_and_whole_tensors() -> None:
    assert_refused("base", KEYFRAME, base=KEYFRAME.root)
    assert_refused("tensors[0].length", KEYFRAME, tensors=(make_tensor("a", length=5899), KEYFRAME.tensors[1]))


def test_a_delta_has_a_base_and_records_that_fill_its_files() -> None:
    first, second = DELTA.tensors
    assert_refused("base", DELTA, base=None)
    assert_refused("files", DELTA, tensors=(replace(first, length=99), second))
    assert_refused("tensors[0].length", DELTA, tensors=(replace(first, length=DELTA_HEADER.size - 1), second))
    longest = compute_record_bytes_max(5900, 2)
    large = {"files": (ManifestFile(name="d", size=201 + longest),), "shards": make_shards([bytes(201 + longest)])}
    assert_refused("tensors[0].length", DELTA, tensors=(replace(first, length=longest + 1), second), **large)


def test_a_shard_is_verified_by_itself() -> None:
    shard = DATA[0][SHARD:]
    verify_shard(KEYFRAME, 1, shard)
    for index, data, field in [
        (1, shard[:-1], "shards[1].length"),
        (1, shard[:-1] + b"x", "shards[1].digest"),
        (4, shard, "shards"),
        (-1, shard, "shards"),
    ]:
        with pytest.raises(RemoteError) as caught:
            verify_shard(KEYFRAME, index, data)
        assert caught.value.field == field


def test_a_patched_tensor_is_proven_equal_or_refused() -> None:
    old, new = bytes(5900), bytes(5898) + b"\x01\x02"
    record = b"".join(encode_record(old, new, 2))
    tensor = make_tensor("a", digest=compute_blake3(new))
    target = bytearray(old)
    apply_tensor_delta_in_place(tensor, record, target)
    assert target == new
    verify_tensor(tensor, target)
    for wrong in (
        lambda: verify_tensor(tensor, old),
        lambda: apply_tensor_delta_in_place(tensor, record, bytearray(b"\x01" * 5900)),
    ):
        with pytest.raises(RemoteError, match=r"tensors\.a\.digest"):
            wrong()
    for check in (
        lambda: verify_tensor(tensor, new[:-2]),
        lambda: apply_tensor_delta_in_place(tensor, record, target[:-2]),
    ):
        with pytest.raises(RemoteError, match=r"tensors\.a\.size"):
            check()


def test_a_tensor_rebuilt_in_blocks_is_proven_equal_or_refused() -> None:
    old, new = bytes(5900), bytes(5898) + b"\x01\x02"
    record = b"".join(encode_record(old, new, 2))
    tensor = make_tensor("a", digest=compute_blake3(new))

    def rebuild(base: bytes) -> bytes:
        written = bytearray(len(base))

        def read(start: int, stop: int) -> NDArray[np.uint8]:
            return np.frombuffer(bytearray(base[start:stop]), np.uint8)

        def write(start: int, block: NDArray[np.uint8]) -> None:
            written[start : start + block.size] = block.tobytes()

        apply_tensor_delta(tensor, record, read, write)
        return bytes(written)

    assert rebuild(old) == new
    with pytest.raises(RemoteError, match=r"tensors\.a\.digest"):
        rebuild(b"\x01" * 5900)


def test_a_file_with_other_tensors_than_the_manifest_says_is_refused() -> None:
    listed = SafetensorsTensor(name="b", dtype=Dtype.BF16, shape=(50, 59), offset=100, size=5900)
    smuggled = replace(listed, name="c", offset=6000, shape=(0,), size=0)
    verify_layout(KEYFRAME, 1, SafetensorsHeader(data_start=100, tensors=(listed,)))
    for tensors in [(), (listed, smuggled), (replace(listed, dtype=Dtype.F16),), (replace(listed, offset=98),)]:
        with pytest.raises(RemoteError, match=r"tensors\.[bc]"):
            verify_layout(KEYFRAME, 1, SafetensorsHeader(data_start=100, tensors=tensors))


def test_a_delta_continues_its_base() -> None:
    verify_base(DELTA, KEYFRAME)
    other = replace(KEYFRAME, tensors=KEYFRAME.tensors[:1])
    for delta, base, field in [
        (replace(DELTA, base=Digest(bytes(32))), KEYFRAME, "base"),
        (replace(DELTA, run=RunId("run-2")), KEYFRAME, "run"),
        (replace(DELTA, step=Step(7)), KEYFRAME, "step"),
        (replace(DELTA, base=other.root), other, "tensors.b"),
    ]:
        with pytest.raises(RemoteError) as caught:
            verify_base(delta, base)
        assert caught.value.field == field


def test_the_manifest_of_a_large_mixture_of_experts_fits_its_limit() -> None:
    """Qwen3-235B-A22B: 94 layers of 128 experts with three matrices, and 2**14 shards."""
    size, layers, experts = 1536 * 4096 * 2, 94, 128
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
        for layer in range(layers)
        for expert in range(experts)
        for part in ("down", "gate", "up")
    ]
    names += [f"model.layers.{layer}.self_attn.{part}" for layer in range(layers) for part in range(9)]
    assert 36_000 < len(names) < TENSORS_MAX
    digest = compute_blake3(b"")
    total = len(names) * size
    tensors = tuple(
        make_tensor(name, shape=(1536, 4096), size=size, length=size, offset=100 + place * size, digest=digest)
        for place, name in enumerate(sorted(names))
    )
    step = -(-(total + 100) // SHARDS_MAX)
    shards = tuple(
        ManifestShard(file=0, offset=offset, length=min(step, total + 100 - offset), digest=digest)
        for offset in range(0, total + 100, step)
    )
    manifest = replace(
        KEYFRAME,
        shard_bytes=step,
        files=(ManifestFile(name="model.safetensors", size=total + 100),),
        shards=shards,
        tensors=tensors,
    )
    frame = encode(manifest)
    assert 4 * 2**20 < len(frame) < MANIFEST_BYTES_MAX
    assert decode(Manifest, frame, bytes_max=MANIFEST_BYTES_MAX).root == manifest.root
