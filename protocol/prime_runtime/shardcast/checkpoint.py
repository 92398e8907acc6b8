"""A checkpoint, mapped: its files, its tensors by name, and how to prove it. patching.py makes the next one of it.

Tensors are worked on in threads: hashing, unpacking and patching all let go of the interpreter.
"""

import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.manifest import FILE_NAME, Manifest, verify_tensor
from prime_protocol.manifest_build import SourceFile
from prime_protocol.safetensors_header import Header, HeaderTensor, get_head_bytes, parse_header

TENSOR_SUFFIX = ".safetensors"
PREFIX_BYTES = 8

Job = tuple[int, Callable[[], None]]
"""A tensor's size, and what is done with it."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file in memory; `header` where it holds tensors."""

    path: Path
    data: mmap.mmap
    header: Header | None

    @property
    def source(self) -> SourceFile:
        return SourceFile(name=self.path.name, header=self.header, data=memoryview(self.data))


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


def list_files(checkpoint: Path) -> list[Path]:
    """Of one file, itself; of a folder what is published: plain files. Hidden ones and subfolders are left out."""
    if not checkpoint.exists():
        raise LocalError(f"{checkpoint} is neither a {TENSOR_SUFFIX} file nor a folder of them")
    found = checkpoint.iterdir() if checkpoint.is_dir() else [checkpoint]
    files = sorted(path for path in found if path.is_file() and not path.name.startswith("."))
    if not any(path.suffix == TENSOR_SUFFIX for path in files):
        raise LocalError(f"{checkpoint} holds no {TENSOR_SUFFIX} file")
    for path in files:
        if not FILE_NAME.fullmatch(path.name):
            raise LocalError(f"{path} has a name that others may not be able to store; rename it")
    return [path for path in files if path.stat().st_size]


def map_checkpoint(checkpoint: Path, *, writable: bool = False) -> MappedCheckpoint:
    return MappedCheckpoint(tuple(map_file(path, writable=writable) for path in list_files(checkpoint)))


def map_file(path: Path, *, writable: bool = False) -> MappedFile:
    """What is to be written has its pages at once, so that nobody waits for them one by one."""
    try:
        with path.open("r+b" if writable else "rb") as file:
            if writable:
                data = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            else:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise LocalError(f"cannot map {path}: {error}") from None
    return describe(path, data)


def describe(path: Path, data: mmap.mmap) -> MappedFile:
    """A file that is mapped already."""
    header = None
    if path.suffix == TENSOR_SUFFIX:
        try:
            header = parse_header(data[: get_head_bytes(data[:PREFIX_BYTES])], file_bytes=len(data))
        except RemoteError as error:
            raise LocalError(f"{path} is not a safetensors file: {error}") from None
    return MappedFile(path, data, header)


def run_all(jobs: Iterable[Job], threads: int) -> None:
    """The first error, if any, once everything has ended. Largest first: no thread is left alone with a long one."""
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for future in [pool.submit(work) for _, work in sorted(jobs, key=lambda job: -job[0])]:
            future.result()


def verify_checkpoint(checkpoint: MappedCheckpoint, manifest: Manifest, *, threads: int) -> None:
    """Every tensor is what the manifest says, and there is no other; RemoteError says which is not."""
    entries = {entry.name: entry for entry in manifest.tensors}
    found = list(checkpoint.tensors())
    compare_names(entries.keys(), [span.name for span, _ in found])
    run_all([(span.size, partial(verify_tensor, entries[span.name], view)) for span, view in found], threads)


def compare_names(wanted: Iterable[str], found: Iterable[str]) -> None:
    """Both have the same tensors, each once; RemoteError names one that is not in both."""
    if sorted(wanted) != sorted(found):
        name = min(set(wanted) ^ set(found), default="")
        raise RemoteError(f"tensors.{name}", "is not in both the manifest and the files")


def link_or_copy(source: Path, target: Path) -> None:
    """One file under two names where the file system can, else two files. Never a link to a link: it may lead away."""
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
