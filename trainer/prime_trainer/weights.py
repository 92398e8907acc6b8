"""Checkpoints on disk: name them by their root, write the delta between two, and patch one into the other.

A checkpoint is one safetensors file or a folder of them. Files are mapped, not read: a tensor at a time is in memory.
"""

import mmap
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prime_protocol.codec import decode, encode
from prime_protocol.constants import FRAME_BYTES_MAX
from prime_protocol.errors import LocalError
from prime_protocol.ids import RunId, Step
from prime_protocol.manifest import Kind, Manifest, TensorEntry, patch_tensor, verify_base, verify_shard
from prime_protocol.manifest_build import DELTA_FILE, SourceFile, build_delta, build_keyframe
from prime_protocol.safetensors_header import get_head_bytes, parse_header

MANIFEST_FILE = "manifest.msgpack"
CHUNK_BYTES = 8 * 2**20
PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Mapped files and the keyframe manifest that describes them."""

    manifest: Manifest
    maps: tuple[mmap.mmap, ...]

    def tensor(self, entry: TensorEntry) -> memoryview:
        return memoryview(self.maps[entry.file])[entry.offset : entry.offset + entry.length]


def list_files(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in the order of their names."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise LocalError(f"{path} is neither a safetensors file nor a folder of them")
    return files


def open_checkpoint(path: Path, run: RunId, step: Step, *, writable: bool = False) -> Checkpoint:
    """Map and describe a checkpoint; every byte is hashed once."""
    files = list_files(path)
    maps = tuple(map_file(file, writable=writable) for file in files)
    sources = [describe_file(file, mapped) for file, mapped in zip(files, maps, strict=True)]
    return Checkpoint(build_keyframe(run, step, sources), maps)


def map_file(path: Path, *, writable: bool) -> mmap.mmap:
    try:
        with path.open("r+b" if writable else "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise LocalError(f"cannot map {path}: {error}") from None


def describe_file(path: Path, mapped: mmap.mmap) -> SourceFile:
    head = mapped[: get_head_bytes(mapped[:PREFIX_BYTES])]
    header = parse_header(head, file_bytes=len(mapped))
    return SourceFile(name=path.name, size=len(mapped), header=header, chunks=cut(mapped))


def cut(mapped: mmap.mmap) -> Iterator[memoryview]:
    view = memoryview(mapped)
    return (view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))


def write_delta(old: Checkpoint, new: Checkpoint, step: Step, folder: Path) -> Manifest:
    """The delta file and its manifest into `folder`, the manifest last."""
    after = {entry.name: entry for entry in new.manifest.tensors}
    if [entry.name for entry in old.manifest.tensors] != sorted(after):
        raise LocalError("the two checkpoints do not have the same tensors; publish a keyframe")
    pairs = ((entry.name, old.tensor(entry), new.tensor(after[entry.name])) for entry in old.manifest.tensors)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / DELTA_FILE).open("wb") as file:
        manifest = build_delta(old.manifest, step, pairs, file.write)
    (folder / MANIFEST_FILE).write_bytes(encode(manifest))
    return manifest


def patch(base: Path, delta: Path, out: Path, run: RunId, base_step: Step) -> Manifest:
    """A copy of `base` at `out`, patched in place; every shard and every resulting tensor is checked."""
    manifest = decode(Manifest, read_manifest(delta))
    if manifest.kind is not Kind.DELTA:
        raise LocalError(f"{delta} holds a {manifest.kind}, not a delta")
    if out.exists():
        raise LocalError(f"{out} exists and is kept; choose another name")
    records = map_file(delta / DELTA_FILE, writable=False)
    view = memoryview(records)
    for index, shard in enumerate(manifest.shards):
        verify_shard(manifest, index, view[shard.offset : shard.offset + shard.length])
    draft = out.with_name(out.name + ".draft")
    remove(draft)
    (shutil.copytree if base.is_dir() else shutil.copyfile)(base, draft)
    try:
        apply_records(draft, manifest, view, run, base_step)
        draft.rename(out)
    finally:
        remove(draft)
    return manifest


def apply_records(draft: Path, manifest: Manifest, view: memoryview, run: RunId, base_step: Step) -> None:
    target = open_checkpoint(draft, run, base_step, writable=True)
    verify_base(manifest, target.manifest)
    places = {entry.name: entry for entry in target.manifest.tensors}
    for entry in manifest.tensors:
        record = view[entry.offset : entry.offset + entry.length]
        patch_tensor(entry, record, target.tensor(places[entry.name]))
    for mapped in target.maps:
        mapped.flush()


def remove(path: Path) -> None:
    """What an attempt left behind, if anything."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_manifest(folder: Path) -> bytes:
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            return file.read(FRAME_BYTES_MAX + 1)
    except OSError as error:
        raise LocalError(f"cannot read {folder / MANIFEST_FILE}: {error.strerror}") from None
