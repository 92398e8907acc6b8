"""How a publisher makes a manifest from bytes in memory or mapped files. No file is opened here.

For a delta the caller receives the chunks of the delta file. A mistake of the caller is a LocalError, because nothing
here comes from a peer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from blake3 import blake3

from prime_protocol.constants import SHARD_BYTES
from prime_protocol.errors import LocalError
from prime_protocol.weights.delta import Buffer, as_bytes, encode_record
from prime_protocol.weights.manifest import (
    Manifest,
    ManifestFile,
    ManifestKind,
    ManifestShard,
    ManifestTensor,
    compute_blake3,
    cut_shards,
)
from prime_protocol.weights.safetensors_header import SafetensorsHeader
from prime_protocol.wire.ids import Digest, RunId, Step

DELTA_FILE = "weights.delta"
MapFunction: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""What the built-in map does, however it does it: on several at once, with the results in order."""
NO_RANGE = (2**64, 0)
"""After the last range: no stream gets that far."""
EMPTY_BLAKE3 = compute_blake3(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to publish: its bytes, and its tensors if it is a safetensors file."""

    name: str
    header: SafetensorsHeader | None
    data: Buffer


class RangeHasher:
    """Digests of ranges of a stream. The ranges come in order, hold at least one byte each and do not overlap."""

    def __init__(self, ranges: Iterator[tuple[int, int]]) -> None:
        self.ranges = ranges
        self.digests: list[Digest] = []
        self.position = 0
        self._open_next()

    def feed(self, chunk: Buffer) -> None:
        """The next bytes of the stream."""
        data = as_bytes(chunk).data
        start, self.position = self.position, self.position + len(data)
        while self.current[0] < self.position:
            low, high = self.current
            self.state.update(data[max(low - start, 0) : min(high, self.position) - start])
            if high > self.position:
                break
            self._close()

    def finish(self) -> list[Digest]:
        """All digests; a range that the stream ended inside is digested as far as it came."""
        if self.current[0] < self.position:
            self._close()
        return self.digests

    def _open_next(self) -> None:
        offset, length = next(self.ranges, NO_RANGE)
        self.current = (offset, offset + length)
        self.state = blake3()

    def _close(self) -> None:
        self.digests.append(Digest(self.state.digest()))
        self._open_next()


def build_keyframe(
    run: RunId, step: Step, files: Iterable[SourceFile], *, shard_bytes: int = SHARD_BYTES, each: MapFunction = map
) -> Manifest:
    """The manifest of whole files."""
    entries: list[ManifestFile] = []
    shards: list[ManifestShard] = []
    tensors: list[ManifestTensor] = []
    for number, source in enumerate(files):
        size = as_bytes(source.data).size
        shard_digests, tensor_digests = hash_file(source, shard_bytes, each)
        entries.append(ManifestFile(name=source.name, size=size))
        shards += list_shards(number, size, shard_digests, shard_bytes)
        tensors += list_tensors(number, source.header, tensor_digests)
    return Manifest(
        run=run,
        step=step,
        kind=ManifestKind.KEYFRAME,
        base=None,
        shard_bytes=shard_bytes,
        files=tuple(entries),
        shards=tuple(shards),
        tensors=tuple(sorted(tensors, key=lambda tensor: tensor.name)),
    )


def hash_file(source: SourceFile, shard_bytes: int, each: MapFunction) -> tuple[list[Digest], list[Digest]]:
    """Digests of the shards and of the non-empty tensors, both in the order of the file."""
    data, found = as_bytes(source.data), source.header.tensors if source.header else ()
    shards = [data[offset : offset + length] for _, offset, length in cut_shards([data.size], shard_bytes)]
    tensors = [data[tensor.offset : tensor.offset + tensor.size] for tensor in found if tensor.size]
    digests = list(each(compute_blake3, shards + tensors))
    return digests[: len(shards)], digests[len(shards) :]


def list_shards(file: int, size: int, digests: Iterable[Digest], shard_bytes: int) -> list[ManifestShard]:
    cuts = cut_shards([size], shard_bytes)
    return [
        ManifestShard(file=file, offset=offset, length=length, digest=digest)
        for (_, offset, length), digest in zip(cuts, digests, strict=True)
    ]


def list_tensors(file: int, header: SafetensorsHeader | None, digests: Iterable[Digest]) -> list[ManifestTensor]:
    remaining = iter(digests)
    return [
        ManifestTensor(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            size=tensor.size,
            digest=next(remaining) if tensor.size else EMPTY_BLAKE3,
            file=file,
            offset=tensor.offset,
            length=tensor.size,
        )
        for tensor in (header.tensors if header else ())
    ]


def build_delta(
    base: Manifest,
    step: Step,
    tensors: Iterable[tuple[str, Buffer, Buffer]],
    write: Callable[[bytes], object],
    *,
    shard_bytes: int = SHARD_BYTES,
    each: MapFunction = map,
) -> Manifest:
    """The manifest of a delta from `base`; `tensors` gives name, old and new bytes, `write` takes the delta file.

    Every tensor of the base must come exactly once. That `old` is what the base's digests say is not checked again:
    if it is not, no node can apply the delta.
    """
    known = {tensor.name: tensor for tensor in base.tensors}
    hasher = RangeHasher((start, shard_bytes) for start in count(0, shard_bytes))
    entries: dict[str, ManifestTensor] = {}
    for before, chunks, digest in each(partial(encode_tensor, known), tensors):
        if before.name in entries:
            raise LocalError(f"{before.name} came twice")
        offset = hasher.position
        for chunk in chunks:
            hasher.feed(chunk)
            write(chunk)
        length = hasher.position - offset
        entries[before.name] = replace(before, digest=digest, file=0, offset=offset, length=length)
    missing = known.keys() - entries.keys()
    if missing:
        raise LocalError(f"{len(missing)} tensors of the base did not come, the first is {min(missing)}")
    return Manifest(
        run=base.run,
        step=step,
        kind=ManifestKind.DELTA,
        base=base.root,
        shard_bytes=shard_bytes,
        files=(ManifestFile(name=DELTA_FILE, size=hasher.position),),
        shards=tuple(list_shards(0, hasher.position, hasher.finish(), shard_bytes)),
        tensors=tuple(entries[name] for name in sorted(entries)),
    )


def encode_tensor(
    known: Mapping[str, ManifestTensor], item: tuple[str, Buffer, Buffer]
) -> tuple[ManifestTensor, list[bytes], Digest]:
    """The base's entry of a tensor, the record of its change, and the digest of what it becomes."""
    name, old, new = item
    before = known.get(name)
    if before is None:
        raise LocalError(f"{name} is not a tensor of the base")
    for size in (as_bytes(old).size, as_bytes(new).size):
        if size != before.size:
            raise LocalError(f"{name} has {size} bytes, in the base it has {before.size}")
    digest = blake3()
    chunks = list(encode_record(old, new, before.dtype.lane_bytes, lambda piece: digest.update(piece.data)))
    return before, chunks, Digest(digest.digest())
