"""The files of a checkpoint: preallocating, mapping, and verifying them.

Files are allocated before the first byte arrives, so that a full disk shows at once. A disk reserves blocks cheaply. On
tmpfs a page exists only once it is filled with zeros, which takes too long for gigabytes: there only the free memory is
checked.

A manifest signs a keyframe's files as shards and the tensors of every checkpoint. The small files beside the tensors of
a patched checkpoint (configuration, tokenizer) are copied from its base. A flipped bit there changes what the model
computes too, so their digests are recorded in `.files`.
"""

import json
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, cast

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import FILE_NAME, Manifest, verify_tensor
from prime_protocol.weights.manifest_builder import SourceFile
from prime_protocol.weights.safetensors_header import (
    SafetensorsHeader,
    SafetensorsTensor,
    get_header_bytes,
    parse_safetensors_header,
)


def is_in_memory(folder: Path) -> bool:
    """The folder is on a tmpfs."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    # Fields of a line: id, parent, device, ..., a dash, type, source, options.
    return any(line.split()[2] == wanted and " - tmpfs " in line for line in lines)


def open_no_follow(path: Path, mode: str) -> BinaryIO:
    """Open a file; OSError if it is a symbolic link.

    Other users of the machine may share a folder of weights. The target of their link must neither be sent to other
    nodes nor be overwritten.
    """
    return cast(BinaryIO, open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o644)))


def preallocate_file(path: Path, size: int) -> None:
    """Create a file of zeros. LocalError: there is not enough space."""
    try:
        with open_no_follow(path, "wb") as file:
            if not is_in_memory(path.parent):
                os.posix_fallocate(file.fileno(), 0, size)
            elif count_free_bytes(path.parent) >= size:
                os.truncate(file.fileno(), size)
            else:
                raise OSError("not enough free memory")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LocalError(
            f"no space for {size} bytes of weights in {path.parent}: {error}; free some, or choose another folder"
        ) from None


def count_folder_bytes(folder: Path) -> int:
    """Total size of the files below a folder; a file with two names counts once."""
    sizes: dict[int, int] = {}
    # Files and folders may disappear meanwhile: os.walk skips a folder that is gone.
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(parent, name))
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def count_free_bytes(folder: Path) -> int:
    """Bytes that can be written there; on tmpfs at most the available memory."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    return min(free, read_available_bytes()) if is_in_memory(folder) else free


def read_available_bytes() -> int:
    """Available memory, as estimated by the kernel."""
    text = Path("/proc/meminfo").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable:"))


TENSOR_SUFFIX = ".safetensors"
HEADER_LENGTH_BYTES = 8

TensorJob = tuple[int, Callable[[], None]]
"""The size of a tensor, and the work on it."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A mapped file; it has a `header` if it contains tensors."""

    path: Path
    data: mmap.mmap
    header: SafetensorsHeader | None

    @property
    def source(self) -> SourceFile:
        return SourceFile(name=self.path.name, header=self.header, data=memoryview(self.data))


@dataclass(frozen=True, slots=True)
class MappedCheckpoint:
    """All files of a checkpoint folder."""

    files: tuple[MappedFile, ...]

    def tensors(self) -> Iterator[tuple[SafetensorsTensor, memoryview]]:
        """Each tensor with its bytes."""
        for file in self.files:
            view = memoryview(file.data)
            for span in file.header.tensors if file.header else ():
                yield span, view[span.offset : span.offset + span.size]


def list_files(checkpoint: Path) -> list[Path]:
    """The published files of a checkpoint: the file itself, or the plain files of a folder without hidden ones."""
    if not checkpoint.exists():
        raise LocalError(f"{checkpoint} is neither a {TENSOR_SUFFIX} file nor a folder of them")
    found = checkpoint.iterdir() if checkpoint.is_dir() else [checkpoint]
    files = sorted(path for path in found if path.is_file() and not path.name.startswith("."))
    if not any(path.suffix == TENSOR_SUFFIX for path in files):
        raise LocalError(f"{checkpoint} holds no {TENSOR_SUFFIX} file")
    for path in files:
        if not FILE_NAME.fullmatch(path.name):
            raise LocalError(f"{path} has a name that other nodes cannot store; rename it")
    return [path for path in files if path.stat().st_size]


def map_checkpoint(checkpoint: Path, *, writable: bool = False) -> MappedCheckpoint:
    return MappedCheckpoint(tuple(map_file(path, writable=writable) for path in list_files(checkpoint)))


def map_file(path: Path, *, writable: bool = False) -> MappedFile:
    """A writable map gets all its pages at once, so that writes do not fault page by page."""
    try:
        with path.open("r+b" if writable else "rb") as file:
            if writable:
                data = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            else:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise LocalError(f"cannot map {path}: {error}") from None
    return make_mapped_file(path, data)


def make_mapped_file(path: Path, data: mmap.mmap) -> MappedFile:
    """Wrap a file that is already mapped."""
    header = None
    if path.suffix == TENSOR_SUFFIX:
        try:
            header = parse_safetensors_header(
                data[: get_header_bytes(data[:HEADER_LENGTH_BYTES])], file_bytes=len(data)
            )
        except RemoteError as error:
            raise LocalError(f"{path} is not a safetensors file: {error}") from None
    return MappedFile(path, data, header)


def run_tensor_jobs(jobs: Iterable[TensorJob], threads: int) -> None:
    """Run all jobs, then raise the first error. Largest first: no thread ends up alone with a long job."""
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for future in [pool.submit(work) for _, work in sorted(jobs, key=lambda job: -job[0])]:
            future.result()


def verify_checkpoint(checkpoint: MappedCheckpoint, manifest: Manifest, *, threads: int) -> None:
    """Check that the tensors are exactly those of the manifest. RemoteError names one that is not."""
    entries = {entry.name: entry for entry in manifest.tensors}
    found = list(checkpoint.tensors())
    check_same_tensors(entries.keys(), [span.name for span, _ in found])
    run_tensor_jobs([(span.size, partial(verify_tensor, entries[span.name], view)) for span, view in found], threads)


def check_same_tensors(wanted: Iterable[str], found: Iterable[str]) -> None:
    """Check that both have the same tensors, each once. RemoteError names one that is not in both."""
    if sorted(wanted) != sorted(found):
        name = min(set(wanted) ^ set(found), default="")
        raise RemoteError(f"tensors.{name}", "is not in both the manifest and the files")


def link_or_copy(source: Path, target: Path) -> None:
    """Hard link the file, or copy it. The source is resolved first: a link to a symbolic link could lead elsewhere."""
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


FILE_DIGESTS_NAME = ".files"


def write_file_digests(folder: Path) -> None:
    (folder / FILE_DIGESTS_NAME).write_text(json.dumps(_digest_files(_list_small_files(folder))))


def verify_checkpoint_folder(folder: Path, manifest: Manifest, *, threads: int) -> None:
    """Check the tensors and small files of a checkpoint on disk. RemoteError or LocalError names what is wrong."""
    verify_checkpoint(map_checkpoint(folder), manifest, threads=threads)
    verify_file_digests(folder)


def verify_file_digests(folder: Path) -> None:
    """RemoteError: a small file has changed, or its digest is not recorded."""
    try:
        recorded = json.loads((folder / FILE_DIGESTS_NAME).read_bytes())
    except (OSError, ValueError):
        raise RemoteError(FILE_DIGESTS_NAME, "is missing or cannot be read") from None
    found = _digest_files(_list_small_files(folder))
    if recorded != found:
        names = [name for name in found if not isinstance(recorded, dict) or recorded.get(name) != found[name]]
        raise RemoteError(names[0] if names else FILE_DIGESTS_NAME, "has changed since the checkpoint was created")


def _list_small_files(folder: Path) -> list[Path]:
    return [path for path in list_files(folder) if path.suffix != TENSOR_SUFFIX]


def _digest_files(paths: Iterable[Path]) -> dict[str, str]:
    try:
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in paths}
    except OSError as error:
        raise LocalError(f"cannot read {error.filename}: {error.strerror}") from None
