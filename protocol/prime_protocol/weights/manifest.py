"""The checkpoint manifest: the files that are transported, their shards, and the tensors that must result.

The files of a keyframe are the safetensors files themselves. The files of a delta are delta records, applied to a base
that the node holds. The root depends on the tensors alone, so both kinds name the same weights by the same root. The
constructor refuses everything that a hostile manifest could contain. manifest_builder.py makes manifests, transfer.py
chooses between them.

A manifest travels in its trainer's envelope. An envelope expires, but a statement about weights does not, so the time
is not checked here: the log decides whether a checkpoint is still current.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from blake3 import blake3

from prime_protocol.constants import (
    CHECKPOINT_BYTES_MAX,
    ENVELOPE_LIFE_MS_MAX,
    FILE_NAME_CHARS_MAX,
    FILES_MAX,
    MANIFEST_BYTES_MAX,
    SHARD_BYTES_MAX,
    SHARD_BYTES_MIN,
    SHARDS_MAX,
    TENSOR_DIMS_MAX,
    TENSORS_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.weights.delta import DELTA_HEADER, Buffer, as_bytes, compute_record_bytes_max, patch_blocks
from prime_protocol.weights.delta_lanes import Bytes
from prime_protocol.weights.safetensors_header import TENSOR_NAME, Dtype, SafetensorsHeader
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import open_envelope, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step, digest_fields
from prime_protocol.wire.signing import WalletKey

FILE_NAME = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,{FILE_NAME_CHARS_MAX - 2}}}[A-Za-z0-9])?")
"""Flat: no slash. It cannot start with a dot or end with one, which some file systems drop."""


class ManifestKind(StrEnum):
    """Whether a manifest stands alone or needs a base."""

    KEYFRAME = "keyframe"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """A file as it is transported."""

    name: str
    size: int

    def __post_init__(self) -> None:
        if not FILE_NAME.fullmatch(self.name):
            raise RemoteError("name", f"{self.name[:FILE_NAME_CHARS_MAX]!r} is not allowed")
        check_range("size", self.size, 1, CHECKPOINT_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestShard:
    """A piece of one file, fetched and checked by itself. Its index is its place in the manifest."""

    file: int
    offset: int
    length: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestTensor:
    """A tensor of the checkpoint, and where the manifest's files carry it.

    `size` and `digest` are of the whole resulting tensor. The `length` bytes at `offset` are the tensor itself in a
    keyframe, its record in a delta.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    size: int
    digest: Digest
    file: int
    offset: int
    length: int

    def __post_init__(self) -> None:
        if not TENSOR_NAME.fullmatch(self.name):
            raise RemoteError("name", f"{self.name[:64]!r} is not allowed")
        if len(self.shape) > TENSOR_DIMS_MAX:
            raise RemoteError("shape", f"has {len(self.shape)} dimensions, the limit is {TENSOR_DIMS_MAX}")
        for dimension in self.shape:
            check_range("shape", dimension, 0, CHECKPOINT_BYTES_MAX)
        if math.prod(self.shape) * self.dtype.item_bytes != self.size:
            raise RemoteError("size", f"is {self.size}, not the product of shape and dtype")
        check_range("size", self.size, 0, CHECKPOINT_BYTES_MAX)
        check_range("offset", self.offset, 0, CHECKPOINT_BYTES_MAX)
        check_range("length", self.length, 0, CHECKPOINT_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a trainer signs to publish checkpoint `step`. Tensors are sorted by name, which makes the form unique."""

    run: RunId
    step: Step
    kind: ManifestKind
    base: Digest | None
    """Root of the checkpoint a delta is applied to."""
    shard_bytes: int
    files: tuple[ManifestFile, ...]
    shards: tuple[ManifestShard, ...]
    tensors: tuple[ManifestTensor, ...]

    def __post_init__(self) -> None:
        check_range("step", self.step, 0, 2**63 - 1)
        check_range("shard_bytes", self.shard_bytes, SHARD_BYTES_MIN, SHARD_BYTES_MAX)
        check_range("files", len(self.files), 1, FILES_MAX)
        check_range("shards", len(self.shards), 1, SHARDS_MAX)
        check_range("tensors", len(self.tensors), 1, TENSORS_MAX)
        check_file_names(self.files)
        check_shards(self.files, self.shards, self.shard_bytes)
        check_tensor_names(self.tensors)
        check_tensor_ranges(self.files, self.tensors)
        if self.kind is ManifestKind.KEYFRAME:
            check_keyframe(self)
        else:
            check_delta(self)

    @property
    def root(self) -> Digest:
        """The checkpoint root: computed anew at each call, a millisecond for a thousand tensors."""
        return compute_checkpoint_root(self.tensors)

    @property
    def transport_bytes(self) -> int:
        return sum(file.size for file in self.files)


def check_range(field: str, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise RemoteError(field, f"is {number}, allowed is {low} to {high}")


def check_file_names(files: Sequence[ManifestFile]) -> None:
    """Unique whatever the payload case: some disks do not tell them apart."""
    if len({file.name.lower() for file in files}) != len(files):
        raise RemoteError("files", "name a file twice")


def cut_shards(sizes: Sequence[int], shard_bytes: int) -> Iterator[tuple[int, int, int]]:
    """File, offset and length of every shard: each file by itself, its last shard what remains."""
    for file, size in enumerate(sizes):
        for offset in range(0, size, shard_bytes):
            yield file, offset, min(shard_bytes, size - offset)


def check_shards(files: Sequence[ManifestFile], shards: Sequence[ManifestShard], shard_bytes: int) -> None:
    """There is one way to cut given files, so every byte is in exactly one shard."""
    expected = sum(-(-file.size // shard_bytes) for file in files)
    if len(shards) != expected:
        raise RemoteError("shards", f"are {len(shards)}, the files take {expected}")
    cuts = cut_shards([file.size for file in files], shard_bytes)
    for index, (shard, (file, offset, length)) in enumerate(zip(shards, cuts, strict=True)):
        if (shard.file, shard.offset, shard.length) != (file, offset, length):
            problem = f"is file {shard.file}, offset {shard.offset}, length {shard.length}"
            raise RemoteError(f"shards[{index}]", f"{problem}; expected {file}, {offset}, {length}")


def check_tensor_names(tensors: Sequence[ManifestTensor]) -> None:
    for index in range(1, len(tensors)):
        if tensors[index - 1].name >= tensors[index].name:
            raise RemoteError(f"tensors[{index}].name", "is not after the one before it")


def check_tensor_ranges(files: Sequence[ManifestFile], tensors: Sequence[ManifestTensor]) -> None:
    """Inside their files, and no byte in two tensors."""
    ends = [0] * len(files)
    for index, tensor in sorted(enumerate(tensors), key=lambda item: (item[1].offset, item[1].length)):
        check_range(f"tensors[{index}].file", tensor.file, 0, len(files) - 1)
        if tensor.offset < ends[tensor.file]:
            raise RemoteError(f"tensors[{index}].offset", "is inside another tensor")
        ends[tensor.file] = tensor.offset + tensor.length
        if ends[tensor.file] > files[tensor.file].size:
            raise RemoteError(f"tensors[{index}].length", "reaches past the end of the file")


def check_keyframe(manifest: Manifest) -> None:
    if manifest.base is not None:
        raise RemoteError("base", "must be absent in a keyframe")
    for index, tensor in enumerate(manifest.tensors):
        if tensor.length != tensor.size:
            raise RemoteError(f"tensors[{index}].length", f"is {tensor.length}, the tensor has {tensor.size}")


def check_delta(manifest: Manifest) -> None:
    """Records fill the files to the last byte, and none is longer than an honest encoder's."""
    if manifest.base is None:
        raise RemoteError("base", "is missing in a delta")
    for index, tensor in enumerate(manifest.tensors):
        longest = compute_record_bytes_max(tensor.size, tensor.dtype.lane_bytes)
        check_range(f"tensors[{index}].length", tensor.length, DELTA_HEADER.size, longest)
    records = sum(tensor.length for tensor in manifest.tensors)
    if records != manifest.transport_bytes:
        raise RemoteError("files", f"hold {manifest.transport_bytes} bytes, the records {records}")


def compute_checkpoint_root(tensors: Iterable[ManifestTensor]) -> Digest:
    """Over name, dtype, shape and digest of every tensor, in the order of their names."""
    fields: list[bytes] = []
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        shape = b"".join(size.to_bytes(8, "big") for size in tensor.shape)
        fields += [tensor.name.encode(), tensor.dtype.value.encode(), shape, tensor.digest]
    return digest_fields("checkpoint-root/2", *fields)


def compute_blake3(data: Buffer) -> Digest:
    """BLAKE3, for whatever is as long as weights are; see docs/decisions/0005-blake3-for-weights.md."""
    return Digest(blake3(as_bytes(data).data).digest())


def verify_shard(manifest: Manifest, index: int, data: Buffer) -> None:
    """The bytes are shard `index`, or RemoteError: ask another peer."""
    check_range("shards", index, 0, len(manifest.shards) - 1)
    shard = manifest.shards[index]
    size = as_bytes(data).size
    if size != shard.length:
        raise RemoteError(f"shards[{index}].length", f"is {shard.length}, got {size} bytes")
    if compute_blake3(data) != shard.digest:
        raise RemoteError(f"shards[{index}].digest", "does not match the bytes")


def verify_tensor(tensor: ManifestTensor, data: Buffer) -> None:
    """The bytes are the whole tensor the manifest promised, whether they came whole or were patched."""
    size = as_bytes(data).size
    if size != tensor.size:
        raise RemoteError(f"tensors.{tensor.name}.size", f"is {tensor.size}, got {size} bytes")
    if compute_blake3(data) != tensor.digest:
        raise RemoteError(f"tensors.{tensor.name}.digest", "does not match the bytes")


def apply_tensor_delta(
    tensor: ManifestTensor, record: Buffer, read: Callable[[int, int], Bytes], write: Callable[[int, Bytes], object]
) -> None:
    """Apply a delta's record to a tensor read in blocks, write the result in blocks, and check it, in one pass.

    `read(start, stop)` gives bytes of the old tensor that may be changed, `write(start, block)` takes those of the new
    one. After a RemoteError what was written is of no use: the record is bad, or this was not its base.
    """
    digest, position = blake3(), 0
    for block in patch_blocks(
        record, tensor.size, tensor.dtype.lane_bytes, read, lambda piece: digest.update(piece.data)
    ):
        write(position, block)
        position += block.size
    if digest.digest() != tensor.digest:
        raise RemoteError(f"tensors.{tensor.name}.digest", "does not match the bytes")


def apply_tensor_delta_in_place(tensor: ManifestTensor, record: Buffer, target: Buffer) -> None:
    """The same in place. After a RemoteError the target is lost."""
    lanes = as_bytes(target)
    if lanes.size != tensor.size:
        raise RemoteError(f"tensors.{tensor.name}.size", f"is {tensor.size}, got {lanes.size} bytes")
    apply_tensor_delta(tensor, record, lambda start, stop: lanes[start:stop], lambda start, block: None)


def verify_layout(manifest: Manifest, file: int, header: SafetensorsHeader) -> None:
    """A keyframe's file holds exactly the tensors the manifest says it holds: none moved, none smuggled in."""
    listed = {
        (tensor.name, tensor.dtype, tensor.shape, tensor.offset) for tensor in manifest.tensors if tensor.file == file
    }
    found = {(tensor.name, tensor.dtype, tensor.shape, tensor.offset) for tensor in header.tensors}
    if listed != found:
        name = min(listed ^ found)[0]
        raise RemoteError(f"tensors.{name}", f"is not the same in the header of file {file}")


def verify_base(delta: Manifest, base: Manifest) -> None:
    """The delta continues this base: same run, a later step, the same tensors with the same shapes."""
    if delta.base != base.root:
        raise RemoteError("base", f"is {delta.base}, held is {base.root}")
    if delta.run != base.run:
        raise RemoteError("run", f"is {delta.run}, the base is of {base.run}")
    if delta.step <= base.step:
        raise RemoteError("step", f"is {delta.step}, the base is step {base.step}")
    wanted = {(tensor.name, tensor.dtype, tensor.shape) for tensor in delta.tensors}
    held = {(tensor.name, tensor.dtype, tensor.shape) for tensor in base.tensors}
    if wanted != held:
        name = min(wanted ^ held)[0]
        raise RemoteError(f"tensors.{name}", "is not the same in the base")


MANIFEST_KIND = "manifest"


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest whose signature was checked."""

    manifest: Manifest
    frame: bytes
    digest: Digest
    """SHA-256 of the frame: what the log and announcements name."""
    root: Digest
    """Of the weights it leads to."""


def seal_manifest(
    key: WalletKey, manifest: Manifest, *, network: NetworkId, sequence: int, now_ms: int
) -> SignedManifest:
    """By the run's trainer. Sealing again gives another frame with another name."""
    frame = seal_envelope(
        key,
        kind=MANIFEST_KIND,
        body=encode(manifest),
        network=network,
        run=manifest.run,
        sequence=sequence,
        issued_at_ms=now_ms,
        life_ms=ENVELOPE_LIFE_MS_MAX,
    )
    return open_manifest(frame, network=network, run=manifest.run, trainer=key.node)


def open_manifest(frame: bytes, *, network: NetworkId, run: RunId, trainer: NodeId) -> SignedManifest:
    """What the trainer of this run signed, or RemoteError."""
    envelope = open_envelope(frame, network=network, bytes_max=MANIFEST_BYTES_MAX)
    payload = envelope.payload
    if payload.kind != MANIFEST_KIND:
        raise RemoteError("Payload.kind", f"is {payload.kind}, expected {MANIFEST_KIND}")
    if payload.sender != trainer:
        raise RemoteError("Payload.sender", f"is {payload.sender}, the trainer of {run} is {trainer}")
    manifest = decode(Manifest, payload.body, bytes_max=MANIFEST_BYTES_MAX)
    for field, named in (("Payload.run", payload.run), ("Manifest.run", manifest.run)):
        if named != run:
            raise RemoteError(field, f"is {named}, this is about {run}")
    return SignedManifest(manifest, frame, envelope.digest, manifest.root)
