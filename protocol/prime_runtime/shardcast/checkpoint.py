"""A checkpoint folder, mapped: its files, its tensors by name, and how to prove it or make the next one of it.

Tensors are worked on in threads: hashing, unpacking and patching all let go of the interpreter.
"""

import mmap
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from prime_protocol.constants import DELTA_BLOCK_LANES
from prime_protocol.delta_lanes import Bytes
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.manifest import FILE_NAME, Manifest, TensorEntry, rebuild_tensor, verify_tensor
from prime_protocol.manifest_build import SourceFile
from prime_protocol.safetensors_header import Header, HeaderTensor, get_head_bytes, parse_header

TENSOR_SUFFIX = ".safetensors"
CHUNK_BYTES = 8 * 2**20
PREFIX_BYTES = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file in memory; `header` where it holds tensors."""

    path: Path
    data: mmap.mmap
    header: Header | None

    @property
    def source(self) -> SourceFile:
        view = memoryview(self.data)
        chunks = (view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))
        return SourceFile(name=self.path.name, size=len(view), header=self.header, chunks=chunks)


@dataclass(frozen=True, slots=True)
class MappedCheckpoint:
    """All files of a folder."""

    files: tuple[MappedFile, ...]

    def tensors(self) -> Iterator[tuple[HeaderTensor, memoryview]]:
        """Each with its bytes."""
        for file in self.files:
            view = memoryview(file.data)
            for span in file.header.tensors if file.header else ():
                yield span, view[span.offset : span.offset + span.size]


def list_files(folder: Path) -> list[Path]:
    """What is published of a folder: plain files with plain names; hidden ones and subfolders are left out."""
    if not folder.is_dir():
        raise LocalError(f"{folder} is no folder; a checkpoint is a folder with .safetensors files")
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not any(path.suffix == TENSOR_SUFFIX for path in files):
        raise LocalError(f"{folder} holds no .safetensors file")
    for path in files:
        if not FILE_NAME.fullmatch(path.name):
            raise LocalError(f"{path} has a name that others may not be able to store; rename it")
    return [path for path in files if path.stat().st_size]


def map_checkpoint(folder: Path, *, writable: bool = False) -> MappedCheckpoint:
    mapped = [
        map_file(path, writable=writable, has_tensors=path.suffix == TENSOR_SUFFIX) for path in list_files(folder)
    ]
    return MappedCheckpoint(tuple(mapped))


def map_file(path: Path, *, writable: bool, has_tensors: bool) -> MappedFile:
    try:
        with path.open("r+b" if writable else "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise LocalError(f"cannot map {path}: {error}") from None
    header = None
    if has_tensors:
        try:
            header = parse_header(data[: get_head_bytes(data[:PREFIX_BYTES])], file_bytes=len(data))
        except RemoteError as error:
            raise LocalError(f"{path} is not a safetensors file: {error}") from None
    return MappedFile(path, data, header)


def run_all(work: Callable[[T], object], items: Iterable[T], threads: int) -> None:
    """The first error, if any, once everything has ended."""
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for future in [pool.submit(work, item) for item in items]:
            future.result()


def verify_checkpoint(folder: Path, manifest: Manifest, *, threads: int) -> None:
    """Every tensor is what the manifest says, and there is no other; RemoteError says which is not."""
    entries = {entry.name: entry for entry in manifest.tensors}
    found = list(map_checkpoint(folder).tensors())
    _compare_names(entries.keys(), [span.name for span, _ in found])
    run_all(lambda item: verify_tensor(entries[item[0].name], item[1]), _largest_first(found), threads)


def patch_checkpoint(base: Path, target: Path, delta: Manifest, records: memoryview, *, threads: int) -> None:
    """A new checkpoint out of an old one and a delta, every tensor proven. After a RemoteError `target` is of no use.

    `target` is a folder, empty or with files that were allocated ahead. Whatever else is in it goes.
    Blocks go from file to file through one small buffer for each thread: what is touched is touched while it is in the
    processor's cache, and nothing is mapped, which for files of weights costs more than copying.
    """
    entries = {entry.name: entry for entry in delta.tensors}
    mapped = map_checkpoint(base)
    _clear(target, {file.path.name for file in mapped.files if file.header is not None})
    _compare_names(entries.keys(), [span.name for span, _ in mapped.tensors()])
    jobs: list[tuple[int, Callable[[], None]]] = []
    with ExitStack() as stack:
        for file in mapped.files:
            place = target / file.path.name
            if file.header is None:
                link_or_copy(file.path, place)
                continue
            reader = stack.enter_context(file.path.open("rb")).fileno()
            writer = stack.enter_context(place.open("r+b" if place.exists() else "wb")).fileno()
            os.truncate(writer, len(file.data))
            os.pwrite(writer, file.data[: get_head_bytes(file.data[:PREFIX_BYTES])], 0)
            for span in file.header.tensors:
                entry = entries[span.name]
                record = records[entry.offset : entry.offset + entry.length]
                jobs.append((span.size, partial(_rebuild, entry, record, reader, writer, span.offset)))
        run_all(lambda job: job[1](), sorted(jobs, key=lambda job: -job[0]), threads)


def _clear(folder: Path, names: Collection[str]) -> None:
    """Only files of these names stay."""
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def allocate_like(checkpoint: Path, folder: Path) -> None:
    """Room for a checkpoint like this one, to be filled by `patch_checkpoint`. OSError: there is none."""
    folder.mkdir()
    for path in list_files(checkpoint):
        if path.suffix == TENSOR_SUFFIX:
            size = path.stat().st_size
            with (folder / path.name).open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                if is_in_memory(folder):
                    # There, a page is only taken when it is touched, and a virtual machine may have to ask its host.
                    zeros = bytes(CHUNK_BYTES)
                    for start in range(0, size, CHUNK_BYTES):
                        os.pwrite(file.fileno(), zeros[: size - start], start)


def is_in_memory(folder: Path) -> bool:
    """The folder is on a file system that has no disk behind it."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    # Fields of a line: id, parent, device, ..., a dash, type, source, options.
    return any(line.split()[2] == wanted and " - tmpfs " in line for line in lines)


def _rebuild(tensor: TensorEntry, record: memoryview, reader: int, writer: int, offset: int) -> None:
    buffer = np.empty(min(tensor.size, DELTA_BLOCK_LANES * tensor.dtype.lane_bytes), np.uint8)

    def read(start: int, stop: int) -> Bytes:
        block = buffer[: stop - start]
        if os.preadv(reader, [block.data], offset + start) != stop - start:
            raise RemoteError(f"tensors.{tensor.name}", "is cut short in the base")
        return block

    def write(start: int, block: Bytes) -> None:
        view, done = block.data, 0
        while done < len(view):
            done += os.pwrite(writer, view[done:], offset + start + done)

    rebuild_tensor(tensor, record, read, write)


def _largest_first(found: list[tuple[HeaderTensor, memoryview]]) -> list[tuple[HeaderTensor, memoryview]]:
    """So that no thread is left alone with a long one at the end."""
    return sorted(found, key=lambda item: -item[0].size)


def _compare_names(wanted: Iterable[str], found: list[str]) -> None:
    if sorted(wanted) != sorted(found):
        name = min(set(wanted) ^ set(found), default="")
        raise RemoteError(f"tensors.{name}", "is not in both the manifest and the files")


def link_or_copy(source: Path, target: Path) -> None:
    """One file under two names where the file system can, else two files."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
