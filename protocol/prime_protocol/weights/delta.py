"""Sparse lossless patches between two tensors of one shape and dtype: the delta record, written and applied.

A record is a header and one block per DELTA_BLOCK_LANES lanes; docs/protocol/weights.md gives the bytes. A block is
checked before a byte of the target changes. Which base a record belongs to, and whether the result is right, is decided
in manifest.py.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias, assert_never

import numpy as np
import zstandard

from prime_protocol.constants import DELTA_BLOCK_LANES, DELTA_ZSTD_LEVEL
from prime_protocol.errors import RemoteError, explain_version
from prime_protocol.weights.delta_lanes import (
    ESCAPE,
    UNSIGNED,
    Bytes,
    OnPiece,
    ignore_piece,
    scan,
    scatter,
    split_planes,
)

Buffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any]
"""Contiguous bytes: also a memory-mapped file, or a slice of one."""

DELTA_VERSION = 1
DELTA_HEADER = struct.Struct("<BBQ")
"""Version, lane width, tensor bytes."""

SPARSE_HEAD = struct.Struct("<II")
"""Changed lanes, gap bytes."""

LENGTH = struct.Struct("<I")


class BlockMode(IntEnum):
    """How a block is written."""

    SAME = 0
    SPARSE = 1
    """Gap codes and value planes of the changed lanes, relative to the base."""
    PLANES = 2
    """Value planes of every lane, compressed, whatever the base."""
    RAW = 3


@dataclass(frozen=True, slots=True)
class DeltaBlock:
    """A parsed block: where it goes, and its streams as they came, still compressed."""

    mode: BlockMode
    start: int
    stop: int
    field: str
    count: int = 0
    gap_bytes: int = 0
    streams: tuple[memoryview, ...] = ()


def compute_record_bytes_max(tensor_bytes: int, width: int) -> int:
    """No record of an honest encoder is longer: a block that does not shrink is written raw."""
    return DELTA_HEADER.size + -(-tensor_bytes // (DELTA_BLOCK_LANES * width)) + tensor_bytes


def encode_record(old: Buffer, new: Buffer, width: int, see: OnPiece = ignore_piece) -> Iterator[bytes]:
    """The record that turns `old` into `new`, block by block: joined, the chunks are the record.

    `see` is shown all of `new`, piece by piece, while it is in the processor's cache.
    """
    before, after = as_bytes(old), as_bytes(new)
    assert before.size == after.size, "a delta keeps the shape"
    assert after.size % width == 0, "a tensor is a whole number of lanes"
    compressor = zstandard.ZstdCompressor(level=DELTA_ZSTD_LEVEL)
    yield DELTA_HEADER.pack(DELTA_VERSION, width, after.size)
    for start, stop in get_block_ranges(after.size, width):
        yield encode_block(compressor, before[start:stop], after[start:stop], width, see)


def encode_block(compressor: zstandard.ZstdCompressor, old: Bytes, new: Bytes, width: int, see: OnPiece) -> bytes:
    """The shortest of the four modes; the dense ones are tried only where sparse saves less than half."""
    gaps, planes = scan(old, new, width, see)
    if gaps.size == 0:
        return bytes([BlockMode.SAME])
    head = bytes([BlockMode.SPARSE]) + SPARSE_HEAD.pack(planes.shape[1], gaps.size)
    best = head + encode_streams(compressor, [gaps, *planes])
    if len(best) > new.size // 2:
        dense = bytes([BlockMode.PLANES]) + encode_streams(compressor, list(split_planes(new.view(UNSIGNED[width]))))
        best = min(best, dense, bytes([BlockMode.RAW]) + new.tobytes(), key=len)
    return best


def encode_streams(compressor: zstandard.ZstdCompressor, streams: list[Bytes]) -> bytes:
    """Each stream in a frame of its own: they have different statistics, and zstd's tables serve 128 KiB."""
    frames = [compressor.compress(stream.data) for stream in streams]
    return b"".join(part for frame in frames for part in (LENGTH.pack(len(frame)), frame))


def patch_blocks(
    record: Buffer, tensor_bytes: int, width: int, read: Callable[[int, int], Bytes], see: OnPiece = ignore_piece
) -> Iterator[Bytes]:
    """The new tensor block by block, each made of what `read(start, stop)` gives of the old one.

    The block that is given is patched and handed on: `read` may use one buffer for all, or give the old tensor itself.
    `see` is shown all of the new one, piece by piece, while it is in the processor's cache. A bad record is a
    RemoteError, before the first block where its framing shows it, else before the block that is bad. A wrong or
    damaged base gives a wrong result, not an error: compare the tensor's digest afterwards.
    """
    decompressor = zstandard.ZstdDecompressor()
    for block in parse_record(record, tensor_bytes, width):
        streams = decode_block(decompressor, block, width)
        target = read(block.start, block.stop)
        apply_block(target, block, streams, width, see)
        yield target


def apply_block(target: Bytes, block: DeltaBlock, streams: list[Bytes], width: int, see: OnPiece) -> None:
    match block.mode:
        case BlockMode.SPARSE:
            scatter(target, streams[0], np.stack(streams[1:]), see)
            return
        case BlockMode.SAME:
            pass
        case BlockMode.PLANES:
            for plane, stream in enumerate(streams):
                target[plane::width] = stream
        case BlockMode.RAW:
            target[:] = streams[0]
        case _ as unreachable:
            assert_never(unreachable)
    see(target)


def parse_record(record: Buffer, tensor_bytes: int, width: int) -> list[DeltaBlock]:
    """The blocks of a record for a tensor of this size; their streams are bounded but not yet opened."""
    reader = DeltaReader(as_bytes(record).data)
    version, got_width, got_bytes = DELTA_HEADER.unpack(reader.take(DELTA_HEADER.size, "delta.header"))
    if version != DELTA_VERSION:
        raise RemoteError("delta.version", explain_version(version, DELTA_VERSION))
    if got_width != width:
        raise RemoteError("delta.width", f"is {got_width}, the tensor's lanes have {width} bytes")
    if got_bytes != tensor_bytes:
        raise RemoteError("delta.bytes", f"is {got_bytes}, the tensor has {tensor_bytes}")
    blocks = [
        parse_block(reader, start, stop, width, f"delta.blocks[{number}]")
        for number, (start, stop) in enumerate(get_block_ranges(tensor_bytes, width))
    ]
    if reader.left():
        raise RemoteError("delta", f"{reader.left()} bytes after the last block")
    return blocks


def parse_block(reader: "DeltaReader", start: int, stop: int, width: int, field: str) -> DeltaBlock:
    (number,) = reader.take(1, f"{field}.mode")
    left = reader.left()
    match number:
        case BlockMode.SAME:
            return DeltaBlock(BlockMode.SAME, start, stop, field)
        case BlockMode.RAW:
            return DeltaBlock(BlockMode.RAW, start, stop, field, streams=(reader.take(stop - start, f"{field}.raw"),))
        case BlockMode.PLANES:
            block = DeltaBlock(BlockMode.PLANES, start, stop, field, streams=take_streams(reader, width, field))
        case BlockMode.SPARSE:
            count, gap_bytes = SPARSE_HEAD.unpack(reader.take(SPARSE_HEAD.size, f"{field}.count"))
            check_counts(count, gap_bytes, (stop - start) // width, field)
            streams = take_streams(reader, 1 + width, field)
            block = DeltaBlock(BlockMode.SPARSE, start, stop, field, count, gap_bytes, streams)
        case _:
            raise RemoteError(f"{field}.mode", f"{number} is not known")
    if left - reader.left() > stop - start:
        raise RemoteError(field, f"takes {left - reader.left()} bytes, raw it would take {stop - start}")
    return block


def check_counts(count: int, gap_bytes: int, lanes: int, field: str) -> None:
    """Bound what a sparse block may make us allocate.

    Each change has one code that ends its gap, and each further code stands for 255 of the unchanged lanes.
    """
    if not 1 <= count <= lanes:
        raise RemoteError(f"{field}.count", f"is {count} in a block of {lanes} lanes")
    if not count <= gap_bytes <= count + (lanes - count) // ESCAPE:
        raise RemoteError(f"{field}.gap_bytes", f"is {gap_bytes} for {count} changes in {lanes} lanes")


def take_streams(reader: "DeltaReader", number: int, field: str) -> tuple[memoryview, ...]:
    names = [f"{field}.streams[{index}]" for index in range(number)]
    return tuple(reader.take(LENGTH.unpack(reader.take(LENGTH.size, name))[0], name) for name in names)


def decode_block(decompressor: zstandard.ZstdDecompressor, block: DeltaBlock, width: int) -> list[Bytes]:
    """The block's streams, opened and checked against the block's size."""
    lanes = (block.stop - block.start) // width
    match block.mode:
        case BlockMode.SPARSE:
            sizes = [block.gap_bytes] + [block.count] * width
        case BlockMode.PLANES:
            sizes = [lanes] * width
        case BlockMode.SAME | BlockMode.RAW:
            return [np.frombuffer(stream, np.uint8) for stream in block.streams]
        case _ as unreachable:
            assert_never(unreachable)
    streams = [
        decompress(decompressor, stream, size, f"{block.field}.streams[{index}]")
        for index, (stream, size) in enumerate(zip(block.streams, sizes, strict=True))
    ]
    if block.mode is BlockMode.SPARSE:
        check_changes(block, streams[0], streams[1:], lanes)
    return streams


def check_changes(block: DeltaBlock, gaps: Bytes, planes: list[Bytes], lanes: int) -> None:
    """Gaps cannot go backwards, so the last position bounds them all.

    Threat: the C kernel writes where the gaps lead and reads codes until as many gaps have ended as there are changes.
    These checks alone keep it inside its buffers. The signed manifest does not: its digests say that the record is the
    trainer's, and a trainer, or a thief with its key, is a peer too. A step of zero is refused because it would give
    one change several records.
    """
    if gaps[-1] == ESCAPE:
        raise RemoteError(f"{block.field}.gaps", "end inside a gap")
    ends = int(np.count_nonzero(gaps != ESCAPE))
    if ends != block.count:
        raise RemoteError(f"{block.field}.gaps", f"name {ends} lanes, the count is {block.count}")
    last = int(np.sum(gaps, dtype=np.int64)) + block.count - 1
    if last >= lanes:
        raise RemoteError(f"{block.field}.gaps", f"reach lane {last} of {lanes}")
    if not np.bitwise_or.reduce(planes, axis=0).all():
        raise RemoteError(f"{block.field}.planes", "name a lane that does not change")


def decompress(decompressor: zstandard.ZstdDecompressor, stream: memoryview, size: int, field: str) -> Bytes:
    """One zstd frame of exactly `size` bytes. The frame's own claim is compared before anything is allocated."""
    try:
        claimed = zstandard.get_frame_parameters(stream).content_size
        if claimed != size:
            raise RemoteError(field, f"declares {claimed} bytes, expected {size}")
        data = decompressor.decompress(stream, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise RemoteError(field, f"is not one zstd frame: {error}") from None
    assert len(data) == size, "zstandard refuses a frame that holds another number of bytes than it declares"
    return np.frombuffer(data, np.uint8)


def get_block_ranges(tensor_bytes: int, width: int) -> Iterator[tuple[int, int]]:
    """Where each block starts and stops, in bytes."""
    step = DELTA_BLOCK_LANES * width
    for start in range(0, tensor_bytes, step):
        yield start, min(start + step, tensor_bytes)


def as_bytes(buffer: Buffer) -> Bytes:
    return np.frombuffer(buffer, np.uint8)


class DeltaReader:
    """A cursor over a record that never reads past its end."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, size: int, field: str) -> memoryview:
        if size > self.left():
            raise RemoteError(field, f"needs {size} bytes, {self.left()} are left")
        self.position += size
        return self.data[self.position - size : self.position]
