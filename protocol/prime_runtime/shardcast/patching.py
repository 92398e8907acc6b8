"""Builds the next checkpoint from an old one and a delta, verifies every tensor, and prepares the space for it.

On tmpfs the space is a mapped copy of the old checkpoint, and the delta is applied in place: then only some bytes
change, and all are hashed. On a disk that would write everything twice, so the files are only preallocated, and blocks
go from file to file through one small buffer per thread.
"""

import os
import shutil
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from prime_protocol.constants import DELTA_BLOCK_LANES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.delta_lanes import Bytes
from prime_protocol.weights.manifest import Manifest, ManifestTensor, apply_tensor_delta, apply_tensor_delta_in_place
from prime_protocol.weights.safetensors_header import get_header_bytes
from prime_runtime.shardcast.checkpoint_files import (
    HEADER_LENGTH_BYTES,
    TENSOR_SUFFIX,
    MappedCheckpoint,
    TensorJob,
    check_same_tensors,
    count_free_bytes,
    is_in_memory,
    link_or_copy,
    list_files,
    map_checkpoint,
    preallocate_file,
    run_tensor_jobs,
)

COPIES_FREE_MIN = 2
"""A copy in advance is optional: it is made only if this many copies would fit."""
PIECE_BYTES = 64 * 2**20
"""Bytes copied between two checks of the free memory, which other programs use too."""


def patch_checkpoint(base: Path, target: Path, delta: Manifest, records: memoryview, *, threads: int) -> None:
    """Build the next checkpoint in `target`; the base is only read. After a RemoteError `target` is unusable.

    `target` is empty or has preallocated files. All other files in it are removed.
    """
    entries = {entry.name: entry for entry in delta.tensors}
    mapped = map_checkpoint(base)
    _clear(target, {file.path.name for file in mapped.files if file.header is not None})
    check_same_tensors(entries.keys(), [span.name for span, _ in mapped.tensors()])
    jobs: list[TensorJob] = []
    with ExitStack() as stack:
        for file in mapped.files:
            place = target / file.path.name
            if file.header is None:
                link_or_copy(file.path, place)
                continue
            reader = stack.enter_context(file.path.open("rb")).fileno()
            writer = stack.enter_context(place.open("r+b" if place.exists() else "wb")).fileno()
            os.truncate(writer, len(file.data))
            os.pwrite(writer, file.data[: get_header_bytes(file.data[:HEADER_LENGTH_BYTES])], 0)
            for span in file.header.tensors:
                entry = entries[span.name]
                record = records[entry.offset : entry.offset + entry.length]
                jobs.append((span.size, partial(_rebuild, entry, record, reader, writer, span.offset)))
        run_tensor_jobs(jobs, threads)


def patch_copy(copy: MappedCheckpoint, delta: Manifest, records: memoryview, *, threads: int) -> None:
    """Patch a private copy of the base in place. After a RemoteError the copy is unusable."""
    entries = {entry.name: entry for entry in delta.tensors}
    found = list(copy.tensors())
    check_same_tensors(entries.keys(), [span.name for span, _ in found])
    jobs: list[TensorJob] = []
    for span, view in found:
        entry = entries[span.name]
        record = records[entry.offset : entry.offset + entry.length]
        jobs.append((span.size, partial(apply_tensor_delta_in_place, entry, record, view)))
    run_tensor_jobs(jobs, threads)


def preallocate_checkpoint(checkpoint: Path, folder: Path) -> MappedCheckpoint | None:
    """Prepare a folder for the next checkpoint: a mapped copy to patch, or None and preallocated files.

    OSError or LocalError: there is not enough space.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = list_files(checkpoint)
    if is_in_memory(folder):
        _copy_into(folder, files)
        return map_checkpoint(folder, writable=True)
    for path in files:
        if path.suffix == TENSOR_SUFFIX:
            preallocate_file(folder / path.name, path.stat().st_size)
    return None


def _copy_into(folder: Path, files: Collection[Path]) -> None:
    whole = left = sum(path.stat().st_size for path in files)
    for path in files:
        with path.open("rb") as source, (folder / path.name).open("wb") as target:
            while True:
                if count_free_bytes(folder) < left + (COPIES_FREE_MIN - 1) * whole:
                    raise LocalError("a copy in advance would use memory that is needed")
                copied = os.sendfile(target.fileno(), source.fileno(), None, PIECE_BYTES)
                if not copied:
                    break
                left -= copied


def _clear(folder: Path, names: Collection[str]) -> None:
    """Remove all files but these."""
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def _rebuild(tensor: ManifestTensor, record: memoryview, reader: int, writer: int, offset: int) -> None:
    buffer = np.empty(min(tensor.size, DELTA_BLOCK_LANES * tensor.dtype.lane_bytes), np.uint8)

    def read(start: int, stop: int) -> Bytes:
        block = buffer[: stop - start]
        if os.preadv(reader, [block.data], offset + start) != stop - start:
            raise RemoteError(f"tensors.{tensor.name}", "is truncated in the base")
        return block

    def write(start: int, block: Bytes) -> None:
        view, done = block.data, 0
        while done < len(view):
            done += os.pwrite(writer, view[done:], offset + start + done)

    apply_tensor_delta(tensor, record, read, write)
