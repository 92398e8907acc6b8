"""A checkpoint folder, mapped: its files, its tensors by name, and how to copy, patch and prove it.

Tensors are worked on in threads: hashing, unpacking and patching all let go of the interpreter.
"""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.manifest import FILE_NAME, Manifest, TensorEntry, patch_tensor, verify_tensor
from prime_protocol.manifest_build import SourceFile
from prime_protocol.safetensors_header import Header, HeaderTensor, get_head_bytes, parse_header

TENSOR_SUFFIX = ".safetensors"
CHUNK_BYTES = 8 * 2**20
PREFIX_BYTES = 8
FICLONE = 0x40049409
"""Linux's ioctl that makes two files share their blocks until one is written."""

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


def patch_checkpoint(folder: Path, delta: Manifest, records: memoryview, *, threads: int) -> None:
    """Apply a delta's records in place and prove every tensor. After an error the folder is of no use."""
    entries = {entry.name: entry for entry in delta.tensors}
    found = list(map_checkpoint(folder, writable=True).tensors())
    _compare_names(entries.keys(), [span.name for span, _ in found])

    def patch(item: tuple[HeaderTensor, memoryview]) -> None:
        entry: TensorEntry = entries[item[0].name]
        patch_tensor(entry, records[entry.offset : entry.offset + entry.length], item[1])

    run_all(patch, _largest_first(found), threads)


def _largest_first(found: list[tuple[HeaderTensor, memoryview]]) -> list[tuple[HeaderTensor, memoryview]]:
    """So that no thread is left alone with a long one at the end."""
    return sorted(found, key=lambda item: -item[0].size)


def _compare_names(wanted: Iterable[str], found: list[str]) -> None:
    if sorted(wanted) != sorted(found):
        name = min(set(wanted) ^ set(found), default="")
        raise RemoteError(f"tensors.{name}", "is not in both the manifest and the files")


def copy_checkpoint(source: Path, target: Path) -> None:
    """Independent copies of all files: shared blocks where the file system can, else plain ones in the kernel."""
    target.mkdir(parents=True)
    for path in list_files(source):
        with path.open("rb") as reader, (target / path.name).open("wb") as writer:
            try:
                fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
            except OSError:
                _copy_bytes(reader.fileno(), writer.fileno(), path.stat().st_size)


def _copy_bytes(reader: int, writer: int, size: int) -> None:
    os.posix_fallocate(writer, 0, size)
    copied = 0
    while copied < size:
        sent = os.copy_file_range(reader, writer, size - copied)
        if not sent:
            raise LocalError("a file became shorter while it was copied")
        copied += sent
